//! Records of one lane that wait at a stage: for a retry, or behind a record of their key that does.
//!
//! Parking instead of blocking keeps a failing key from holding up the others: each key has a queue of its own and is
//! tried again on its own time, so no key can keep another from its turn. Order within a key holds because whatever
//! arrives for a parked key goes behind it, and a record that got through while an earlier one of its key did not waits
//! in the queue until that one has.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use metrics::Gauge;
use rustc_hash::{FxBuildHasher, FxHashMap};
use tokio::time::Instant;

use super::backoff::{Backoff, Jitter};
use crate::batch::{Acked, Output};
use crate::config::{BatchLimits, OnError, Policy};
use crate::error::StageError;
use crate::units::Span;

/// What a lane may hold back at one stage before it stops taking more: a few full batches.
const PARK_RECORDS: usize = 4096;

/// A key's hash, as it was when the record came to the stage; the stage may change the key.
pub(crate) type KeyHash = u64;

/// A record that waits.
pub(crate) struct Parked {
    pub(crate) acked: Acked,
    pub(crate) need: Need,
}

impl Parked {
    /// A record that has not been tried.
    pub(crate) fn new(acked: Acked) -> Self {
        Self { acked, need: Need::Process(Trials::default()) }
    }
}

pub(crate) enum Need {
    /// To be given to the stage, again or for the first time.
    Process(Trials),
    /// Is through this stage; goes on when its predecessors have.
    GoOn(Output),
}

/// What has been tried with a record at this stage.
#[derive(Clone, Default)]
pub(crate) struct Trials {
    pub(crate) attempts: u32,
    /// The first failure and the last error, unless it only waits behind another.
    pub(crate) failing: Option<(Instant, Arc<StageError>)>,
}

impl Trials {
    #[must_use]
    pub(crate) fn failed(mut self, error: Arc<StageError>) -> Self {
        let since = self.failing.map_or_else(Instant::now, |(since, _)| since);
        self.attempts = self.attempts.saturating_add(1);
        self.failing = Some((since, error));
        self
    }
}

/// What waits of one key.
struct Waiting {
    queue: VecDeque<Parked>,
    /// Failures in a row of its first record.
    failures: u32,
    due: Instant,
}

pub(crate) struct Park {
    keys: FxHashMap<KeyHash, Waiting>,
    /// Every key that waits, by when it is to be looked at.
    due: BTreeSet<(Instant, KeyHash)>,
    records: usize,
    backoff: Backoff,
    deadline: Option<Span>,
    depth: Gauge,
}

impl Park {
    pub(crate) fn new(policy: &Policy, depth: Gauge) -> Self {
        Self {
            keys: FxHashMap::with_hasher(FxBuildHasher),
            due: BTreeSet::new(),
            records: 0,
            backoff: Backoff::new(policy.retry.initial, policy.retry.max),
            // Whoever says `retry` never gives up.
            deadline: policy.retry.deadline.filter(|_| policy.on_error != OnError::Retry),
            depth,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.records >= PARK_RECORDS
    }

    pub(crate) fn holds(&self, key: KeyHash) -> bool {
        self.keys.contains_key(&key)
    }

    /// When something here has to be looked at; whatever waits is due at some time.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Puts a record behind what waits of its key.
    pub(crate) fn push_back(&mut self, key: KeyHash, parked: Parked) {
        self.waiting(key).queue.push_back(parked);
        self.added(1);
    }

    /// Puts records back in front of what waits of their keys, in the order they were in.
    pub(crate) fn give_back(&mut self, returned: Vec<(KeyHash, Parked)>) {
        self.added(returned.len());
        for (key, parked) in returned.into_iter().rev() {
            self.waiting(key).queue.push_front(parked);
        }
    }

    /// The key failed again: look at it after a back-off, or when its first record's time is up.
    pub(crate) fn postpone(&mut self, key: KeyHash, jitter: Jitter) {
        let Some(waiting) = self.keys.get_mut(&key) else { return };
        waiting.failures = waiting.failures.saturating_add(1);
        let at = Instant::now() + self.backoff.after(waiting.failures, jitter);
        self.set_due(key, at);
    }

    /// Looks at the key again at `at`, or when its first record's time is up.
    pub(crate) fn set_due(&mut self, key: KeyHash, at: Instant) {
        let deadline = self.deadline;
        let Some(waiting) = self.keys.get_mut(&key) else { return };
        let dies = match (waiting.queue.front().map(|parked| &parked.need), deadline) {
            (Some(Need::Process(Trials { failing: Some((since, _)), .. })), Some(deadline)) => {
                Some(*since + deadline.0)
            }
            _ => None,
        };
        self.due.remove(&(waiting.due, key));
        waiting.due = dies.map_or(at, |dies| at.min(dies));
        self.due.insert((waiting.due, key));
    }

    pub(crate) fn due_keys(&self, now: Instant) -> Vec<KeyHash> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect()
    }

    /// Takes the key's first record if its retries have run out.
    pub(crate) fn take_expired(&mut self, key: KeyHash) -> Option<(Acked, u32, Arc<StageError>)> {
        let front = self.keys.get(&key)?.queue.front()?;
        let Need::Process(trials) = &front.need else { return None };
        if !self.is_past_deadline(trials) {
            return None;
        }
        let Parked { acked, need: Need::Process(trials) } = self.pop_front(key)? else { return None };
        let (_, error) = trials.failing?;
        Some((acked, trials.attempts, error))
    }

    /// Whether a record's retries have run out.
    pub(crate) fn is_past_deadline(&self, trials: &Trials) -> bool {
        match (&trials.failing, self.deadline) {
            (Some((since, _)), Some(deadline)) => Instant::now() >= *since + deadline.0,
            _ => false,
        }
    }

    /// Takes the next records to try, of the keys that are due, within the limits of one call.
    pub(crate) fn take_due(&mut self, now: Instant, limits: &BatchLimits) -> Vec<(KeyHash, Acked, Trials)> {
        let mut taken = Vec::new();
        let (mut records, mut bytes) = (limits.records.get() as usize, limits.bytes.0);
        for key in self.due_keys(now) {
            while let Some(front) = self.keys.get(&key).and_then(|waiting| waiting.queue.front()) {
                let weight = front.acked.record.weight() as u64;
                if records == 0 || (weight > bytes && !taken.is_empty()) {
                    return taken;
                }
                if matches!(front.need, Need::GoOn(_)) {
                    break;
                }
                let Some(Parked { acked, need: Need::Process(trials) }) = self.pop_front(key) else { break };
                (records, bytes) = (records - 1, bytes.saturating_sub(weight));
                taken.push((key, acked, trials));
            }
        }
        taken
    }

    /// The key's first records are dealt with: what was through and waited for them, in order. If more is left of
    /// the key it is due at once.
    pub(crate) fn advance(&mut self, key: KeyHash) -> Vec<(Output, Acked)> {
        let mut through = Vec::new();
        while let Some(Parked { need: Need::GoOn(output), .. }) =
            self.keys.get(&key).and_then(|waiting| waiting.queue.front())
        {
            let output = *output;
            through.extend(self.pop_front(key).map(|parked| (output, parked.acked)));
        }
        match self.keys.get_mut(&key) {
            Some(waiting) if waiting.queue.is_empty() => {
                self.due.remove(&(waiting.due, key));
                self.keys.remove(&key);
            }
            Some(waiting) => {
                waiting.failures = 0;
                self.set_due(key, Instant::now());
            }
            None => {}
        }
        through
    }

    fn waiting(&mut self, key: KeyHash) -> &mut Waiting {
        self.keys.entry(key).or_insert_with(|| {
            let due = Instant::now();
            self.due.insert((due, key));
            Waiting { queue: VecDeque::new(), failures: 0, due }
        })
    }

    fn pop_front(&mut self, key: KeyHash) -> Option<Parked> {
        let parked = self.keys.get_mut(&key)?.queue.pop_front()?;
        self.records -= 1;
        self.depth.decrement(1.0);
        Some(parked)
    }

    fn added(&mut self, records: usize) {
        self.records += records;
        self.depth.increment(records as f64);
    }
}

impl Drop for Park {
    fn drop(&mut self) {
        self.depth.decrement(self.records as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ack::Ack;
    use crate::record::Record;
    use crate::units::Size;
    use std::num::NonZeroU32;

    fn policy() -> Policy {
        Policy {
            lanes: None,
            batch: BatchLimits::default(),
            buffer: None,
            retry: crate::config::RetryPolicy::default(),
            on_error: OnError::DeadLetter,
            dead_letter_queue: "q".into(),
        }
    }

    fn park(records: &[(KeyHash, &str)]) -> Park {
        let mut park = Park::new(&policy(), Gauge::noop());
        for (key, text) in records {
            park.push_back(
                *key,
                Parked::new(Acked { record: Record::new((*text).to_owned()), ack: Ack::default() }),
            );
        }
        park
    }

    fn texts(taken: &[(KeyHash, Acked, Trials)]) -> Vec<String> {
        let text = |record: &Record| String::from_utf8(record.payload.to_json().to_vec()).unwrap();
        taken.iter().map(|(_, acked, _)| text(&acked.record)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_keeps_within_the_limits_of_one_call() {
        let long = "x".repeat(600);
        let one = size_of::<Record>() as u64 + 600;
        let mut park = park(&[(1, &long), (1, &long), (1, &long), (2, "b")]);
        let limits = BatchLimits { bytes: Size(one * 2), ..BatchLimits::default() };
        assert_eq!(park.take_due(Instant::now(), &limits).len(), 2);
        let limits = BatchLimits { records: NonZeroU32::MIN, bytes: Size(1), ..BatchLimits::default() };
        assert_eq!(park.take_due(Instant::now(), &limits).len(), 1, "one record always passes");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_back_goes_in_front_and_a_postponed_key_waits() {
        let mut park = park(&[(1, "a1"), (1, "a2"), (2, "b1")]);
        let limits = BatchLimits { records: NonZeroU32::MIN, ..BatchLimits::default() };
        let mut taken = park.take_due(Instant::now(), &limits);
        assert_eq!(texts(&taken), ["a1"]);
        let (key, acked, trials) = taken.remove(0);
        park.give_back(vec![(key, Parked { acked, need: Need::Process(trials) })]);
        park.postpone(1, Jitter::new());
        assert_eq!(texts(&park.take_due(Instant::now(), &limits)), ["b1"]);
        park.advance(2);
        assert!(!park.holds(2));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(texts(&park.take_due(Instant::now(), &BatchLimits::default())), ["a1", "a2"]);
    }
}
