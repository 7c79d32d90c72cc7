//! Every metric of the stages, named in one place; `docs/alerts.yml` says which of them to watch.
//!
//! The runtime counts what every stage does ([`courant_pipeline::metrics`]); here is what only some of them know. Counted
//! once a batch and not once a message, so that looking a counter up costs nothing that matters.

use courant_connectors::model::{ChatId, UserId};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub const ALLOCATION_SECONDS: &str = "courant_sequence_allocation_seconds";
pub const ALLOCATION_ERRORS: &str = "courant_sequence_allocation_errors_total";
pub const ALLOCATED: &str = "courant_sequences_allocated_total";
pub const COUNTER_MISSING: &str = "courant_counter_missing_total";
pub const IDEMPOTENCY_CHECKS: &str = "courant_idempotency_checks_total";
pub const IDEMPOTENCY_HITS: &str = "courant_idempotency_hits_total";
pub const PERSIST_SECONDS: &str = "courant_persist_seconds";
pub const PERSIST_CONFLICTS: &str = "courant_persist_conflicts_total";
pub const PERSISTED: &str = "courant_messages_persisted_total";
pub const STORE_CALLS: &str = "courant_persist_store_calls_total";
pub const STORE_READS: &str = "courant_persist_reads_total";
pub const STORE_WRITE_UNITS: &str = "courant_persist_write_units_total";
pub const CHAT_PER_MINUTE: &str = "courant_chat_messages_per_minute";
pub const WINDOW_LATE: &str = "courant_window_late_records_total";
pub const WINDOWS_OPEN: &str = "courant_windows_open";
pub const LETTERS_WAITING: &str = "courant_dead_letters_waiting";
pub const OLDEST_LETTER: &str = "courant_dead_letter_oldest_seconds";
pub const AGENT_ANSWERS: &str = "courant_agent_answers_total";
pub const AGENT_SECONDS: &str = "courant_agent_seconds";
pub const STREAM_LAG: &str = "courant_stream_lag_seconds";

/// The histograms in seconds, whose buckets are those of the runtime's.
pub const SECONDS: [&str; 3] = [ALLOCATION_SECONDS, PERSIST_SECONDS, AGENT_SECONDS];
/// Bucket bounds for messages per chat and minute. A chat beyond 100 is busy; one beyond 12,000 is more than a partition
/// of DynamoDB takes.
pub const PER_MINUTE_BUCKETS: [f64; 8] = [1.0, 10.0, 100.0, 300.0, 1000.0, 3000.0, 12_000.0, 60_000.0];

/// Says what each metric means, once a process.
pub fn describe() {
    describe_histogram!(
        ALLOCATION_SECONDS,
        "time to allocate the sequences of one chat's messages in a batch"
    );
    describe_counter!(ALLOCATION_ERRORS, "sequences that could not be allocated because the store failed");
    describe_counter!(ALLOCATED, "sequences allocated; those never persisted are gaps");
    describe_counter!(COUNTER_MISSING, "messages refused because their chat's counter is missing or wrong");
    describe_counter!(IDEMPOTENCY_CHECKS, "messages whose client id was looked up");
    describe_counter!(IDEMPOTENCY_HITS, "messages whose client id was known already");
    describe_histogram!(PERSIST_SECONDS, "time of one transaction that stores messages");
    describe_counter!(PERSIST_CONFLICTS, "messages that met another writer when they were stored, by cause");
    describe_counter!(PERSISTED, "messages stored");
    describe_counter!(STORE_CALLS, "calls of the store to persist messages, as DynamoDB counts them");
    describe_counter!(
        STORE_READS,
        "items looked up to persist messages; an eventual one costs half a read unit, a strong one a whole"
    );
    describe_counter!(STORE_WRITE_UNITS, "write units that persisting messages costs on DynamoDB");
    describe_histogram!(CHAT_PER_MINUTE, "messages of one chat in one minute");
    describe_counter!(WINDOW_LATE, "records that came after their windows had closed");
    describe_gauge!(WINDOWS_OPEN, "windows that have not closed yet");
    describe_gauge!(LETTERS_WAITING, "dead letters that wait in a queue of this process");
    describe_gauge!(OLDEST_LETTER, "how long the first letter of a queue has waited; zero if none does");
    describe_counter!(AGENT_ANSWERS, "messages that an agent was to answer, by what came of it");
    describe_histogram!(AGENT_SECONDS, "time to make one answer of an agent, waiting for its turn included");
    describe_gauge!(STREAM_LAG, "age of the oldest change of a table that was read and is not done");
}

/// What is wrong with a chat's counter; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CounterFault {
    Missing,
    /// Its value gives sequences that messages have already, or none at all.
    Wrong,
}

pub(crate) fn counter_fault(fault: CounterFault, messages: usize) {
    let fault = match fault {
        CounterFault::Missing => "missing",
        CounterFault::Wrong => "wrong",
    };
    counter!(COUNTER_MISSING, "fault" => fault).increment(messages as u64);
}

/// Whom a message met when it was stored; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// A copy of itself, or another message with its client id, that was stored since it was looked for.
    KnownKey,
    /// Another transaction at the same item.
    Transaction,
}

pub(crate) fn persist_conflict(met: Met) {
    let cause = match met {
        Met::KnownKey => "known-key",
        Met::Transaction => "transaction",
    };
    counter!(PERSIST_CONFLICTS, "cause" => cause).increment(1);
}

pub(crate) fn idempotency(checks: usize, hits: usize) {
    counter!(IDEMPOTENCY_CHECKS).increment(checks as u64);
    counter!(IDEMPOTENCY_HITS).increment(hits as u64);
}

pub(crate) fn allocation(since: Instant, sequences: usize) {
    histogram!(ALLOCATION_SECONDS).record(since.elapsed().as_secs_f64());
    counter!(ALLOCATED).increment(sequences as u64);
}

pub(crate) fn allocation_failed(since: Instant, sequences: usize) {
    histogram!(ALLOCATION_SECONDS).record(since.elapsed().as_secs_f64());
    counter!(ALLOCATION_ERRORS).increment(sequences as u64);
}

pub(crate) fn transaction(since: Instant) {
    histogram!(PERSIST_SECONDS).record(since.elapsed().as_secs_f64());
}

pub(crate) fn persisted(messages: usize) {
    counter!(PERSISTED).increment(messages as u64);
}

pub(crate) fn store_calls(calls: usize) {
    counter!(STORE_CALLS).increment(calls as u64);
}

pub(crate) fn store_reads(eventual: u64, strong: u64) {
    counter!(STORE_READS, "consistency" => "eventual").increment(eventual);
    counter!(STORE_READS, "consistency" => "strong").increment(strong);
}

pub(crate) fn store_write_units(units: usize) {
    counter!(STORE_WRITE_UNITS).increment(units as u64);
}

/// Of one `window` stage, by pipeline and stage.
pub(crate) fn windows(of: &[String; 2], late: usize, open: u64) {
    let [pipeline, stage] = of.clone();
    gauge!(WINDOWS_OPEN, "pipeline" => pipeline.clone(), "stage" => stage.clone()).set(open as f64);
    if late > 0 {
        counter!(WINDOW_LATE, "pipeline" => pipeline, "stage" => stage).increment(late as u64);
    }
}

/// Of one queue of dead letters.
pub fn letters(queue: &str, waiting: u64, oldest: Duration) {
    gauge!(LETTERS_WAITING, "queue" => queue.to_owned()).set(waiting as f64);
    gauge!(OLDEST_LETTER, "queue" => queue.to_owned()).set(oldest.as_secs_f64());
}

/// What came of a message that an agent was to answer; a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// A model was asked and gave an answer.
    Now,
    /// The answer was stored already.
    Before,
    /// It will be tried again, or given up.
    Not,
    /// It was given up, and the chat hears so.
    Apologized,
}

pub(crate) fn agent(agent: &UserId, answered: Answered) {
    let outcome = match answered {
        Answered::Now => "answered",
        Answered::Before => "answered-before",
        Answered::Not => "failed",
        Answered::Apologized => "apologized",
    };
    counter!(AGENT_ANSWERS, "agent" => agent.to_string(), "outcome" => outcome).increment(1);
}

pub(crate) fn agent_took(agent: &UserId, since: Instant) {
    histogram!(AGENT_SECONDS, "agent" => agent.to_string()).record(since.elapsed().as_secs_f64());
}

/// How far a pipeline is behind the table that it follows.
pub(crate) fn stream_lag(pipeline: &str, lag: Duration) {
    gauge!(STREAM_LAG, "pipeline" => pipeline.to_owned()).set(lag.as_secs_f64());
}

const MINUTE: Duration = Duration::from_secs(60);
/// Chats counted in one minute at the most; full: the others of that minute are left out. Whoever is busy is among the
/// first.
const COUNTED_CHATS: usize = 100_000;

/// Counts messages by chat, minute by minute. A label per chat would be a time series per chat, for ever; a histogram of
/// their numbers tells whether any chat is hot, and the store's own figures tell which.
#[derive(Default)]
pub(crate) struct BusyChats(Mutex<Minute>);

#[derive(Default)]
struct Minute {
    began: Option<Instant>,
    chats: FxHashMap<ChatId, u32>,
}

impl BusyChats {
    pub(crate) fn count<'a>(&self, chats: impl Iterator<Item = (&'a ChatId, usize)>) {
        let over = self.0.lock().unwrap_or_else(PoisonError::into_inner).count(chats);
        let per_minute = histogram!(CHAT_PER_MINUTE);
        for messages in over.into_values() {
            per_minute.record(messages);
        }
    }
}

impl Minute {
    /// Counts messages; the numbers of the minute before if that is over.
    fn count<'a>(&mut self, chats: impl Iterator<Item = (&'a ChatId, usize)>) -> FxHashMap<ChatId, u32> {
        let mut over = FxHashMap::default();
        if self.began.is_none_or(|began| began.elapsed() >= MINUTE) {
            self.began = Some(Instant::now());
            over = std::mem::take(&mut self.chats);
        }
        for (chat, messages) in chats {
            let messages = u32::try_from(messages).unwrap_or(u32::MAX);
            if let Some(count) = self.chats.get_mut(chat) {
                *count = count.saturating_add(messages);
            } else if self.chats.len() < COUNTED_CHATS {
                self.chats.insert(chat.clone(), messages);
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minute_is_told_when_it_is_over() {
        let (busy, quiet) = (ChatId::from("busy"), ChatId::from("quiet"));
        let mut minute = Minute::default();
        assert!(minute.count([(&busy, 50), (&quiet, 1)].into_iter()).is_empty());
        tokio::time::advance(MINUTE.saturating_sub(Duration::from_millis(1))).await;
        assert!(minute.count([(&busy, 70)].into_iter()).is_empty());
        tokio::time::advance(Duration::from_millis(1)).await;
        let over = minute.count([(&quiet, 3)].into_iter());
        assert_eq!((over[&busy], over[&quiet]), (120, 1));
        tokio::time::advance(MINUTE).await;
        assert_eq!(minute.count(std::iter::empty())[&quiet], 3);
    }

    #[tokio::test(start_paused = true)]
    async fn counting_is_bounded() {
        let mut minute = Minute::default();
        let chats: Vec<_> = (0..=COUNTED_CHATS).map(|n| ChatId::from(n.to_string())).collect();
        minute.count(chats.iter().map(|chat| (chat, 1)));
        assert_eq!(minute.chats.len(), COUNTED_CHATS);
    }
}
