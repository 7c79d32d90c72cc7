//! What is between a call and the answers of the brokers.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rdkafka::ClientContext;
use rdkafka::Message;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::context::{log_error, log_line};
use super::error::from_delivery;
use crate::log::{Appended, LogError, NewRecord, Result, Topic};

/// One call's records and their answers.
pub(super) struct Call {
    pub(super) topic: Topic,
    keys: Vec<Option<Bytes>>,
    state: Mutex<State>,
    outstanding: AtomicUsize,
    any_failed: AtomicBool,
    done: Notify,
    left_behind: Arc<LeftBehind>,
}

struct State {
    answers: Vec<Answer>,
    /// Nobody waits for the answers any more.
    abandoned: bool,
}

enum Answer {
    NotSent,
    OnItsWay,
    Given(Result<Appended>),
}

/// Travels with a record and comes back with its answer.
pub(super) struct Delivery {
    pub(super) call: Arc<Call>,
    pub(super) index: usize,
    pub(super) bytes: usize,
}

impl Call {
    pub(super) fn new(topic: &Topic, records: &[NewRecord], left_behind: &Arc<LeftBehind>) -> Self {
        let answers = records.iter().map(|_| Answer::NotSent).collect();
        Self {
            topic: topic.clone(),
            keys: records.iter().map(|record| record.key.clone()).collect(),
            state: Mutex::new(State { answers, abandoned: false }),
            outstanding: AtomicUsize::new(0),
            any_failed: AtomicBool::new(false),
            done: Notify::new(),
            left_behind: Arc::clone(left_behind),
        }
    }

    /// To be said before a record is handed over: its answer may come at once.
    pub(super) fn on_its_way(&self, index: usize) {
        self.state().answers[index] = Answer::OnItsWay;
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// It was not taken after all.
    pub(super) fn not_sent(&self, index: usize) {
        self.state().answers[index] = Answer::NotSent;
        self.one_less();
    }

    fn one_less(&self) {
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    /// An answer for a record that was never handed over.
    pub(super) fn answer(&self, index: usize, answer: Result<Appended>) {
        self.state().answers[index] = Answer::Given(answer);
    }

    /// The brokers' answer, or librdkafka's.
    fn delivered(&self, index: usize, answer: Result<Appended>) {
        if answer.is_err() {
            self.any_failed.store(true, Ordering::Release);
        }
        {
            let mut state = self.state();
            if state.abandoned {
                self.left_behind.remove(&self.topic, self.keys[index].as_ref());
            } else {
                state.answers[index] = Answer::Given(answer);
            }
        }
        self.one_less();
    }

    /// Keys whose later records must not be sent.
    pub(super) fn add_failed_keys(&self, failed: &mut HashSet<Bytes>) {
        if self.any_failed.swap(false, Ordering::AcqRel) {
            let state = self.state();
            let answers = state.answers.iter().zip(&self.keys);
            let with_error = answers.filter(|(answer, _)| matches!(answer, Answer::Given(Err(_))));
            failed.extend(with_error.filter_map(|(_, key)| key.clone()));
        }
    }

    /// Resolves when every record that was handed over has its answer.
    pub(super) async fn answered(&self) {
        while self.outstanding.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
    }

    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        let answers = state.answers.iter().zip(&self.keys);
        let missing = answers.filter(|(answer, _)| matches!(answer, Answer::OnItsWay));
        self.left_behind.add(&self.topic, missing.filter_map(|(_, key)| key.clone()));
    }

    pub(super) fn take_answers(&self, waited: Duration) -> Vec<Result<Appended>> {
        let answers = std::mem::take(&mut self.state().answers);
        let given = |answer| match answer {
            Answer::Given(answer) => answer,
            Answer::NotSent => Err(LogError::Unavailable("it was not sent".to_owned())),
            Answer::OnItsWay => Err(LogError::UnknownOutcome(format!(
                "no answer from topic '{}' within {waited:?}; the record may still be appended",
                self.topic
            ))),
        };
        answers.into_iter().map(given).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records whose calls gave up waiting and that may still be appended, by topic and key.
#[derive(Default)]
pub(super) struct LeftBehind {
    /// No more than the client's queue holds.
    counts: Mutex<HashMap<(Topic, Bytes), usize>>,
    any: AtomicBool,
    settled: Notify,
    /// Told with every answer: the queue has room again.
    pub(super) room: Notify,
}

impl LeftBehind {
    pub(super) fn holds(&self, topic: &Topic, record: &NewRecord) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let Some(key) = &record.key else { return false };
        self.counts().contains_key(&(topic.clone(), key.clone()))
    }

    /// Until none of the records has an earlier one of its key on the way.
    pub(super) async fn wait_for(&self, topic: &Topic, records: &[NewRecord], deadline: Instant) {
        loop {
            let settled = self.settled.notified();
            if !records.iter().any(|record| self.holds(topic, record)) {
                return;
            }
            if timeout_at(deadline, settled).await.is_err() {
                return;
            }
        }
    }

    fn add(&self, topic: &Topic, keys: impl Iterator<Item = Bytes>) {
        let mut counts = self.counts();
        for key in keys {
            *counts.entry((topic.clone(), key)).or_default() += 1;
        }
        self.any.store(!counts.is_empty(), Ordering::Release);
    }

    fn remove(&self, topic: &Topic, key: Option<&Bytes>) {
        let Some(key) = key else { return };
        let mut counts = self.counts();
        let key = (topic.clone(), key.clone());
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
        self.any.store(!counts.is_empty(), Ordering::Release);
        self.settled.notify_waiters();
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<(Topic, Bytes), usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes librdkafka's delivery reports to the calls they belong to.
pub(super) struct Deliveries(pub(super) Arc<LeftBehind>);

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Delivery>;

    fn delivery(&self, result: &DeliveryResult<'_>, delivery: Box<Delivery>) {
        let call = &delivery.call;
        let answer = match result {
            Ok(message) => Ok(Appended {
                partition: u32::try_from(message.partition()).unwrap_or(u32::MAX),
                offset: u64::try_from(message.offset()).unwrap_or(u64::MAX),
            }),
            Err((error, _)) => {
                let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
                Err(from_delivery(code, &call.topic, delivery.bytes))
            }
        };
        call.delivered(delivery.index, answer);
        self.0.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &'static str) -> NewRecord {
        NewRecord { key: Some(Bytes::from_static(key.as_bytes())), ..NewRecord::default() }
    }

    #[test]
    fn only_what_is_on_its_way_is_left_behind() {
        let (topic, left_behind) = (Topic::from("t"), Arc::<LeftBehind>::default());
        let records = [record("sent"), record("sent"), record("answered"), record("never sent")];
        let call = Call::new(&topic, &records, &left_behind);
        (0..3).for_each(|index| call.on_its_way(index));
        call.delivered(2, Ok(Appended { partition: 0, offset: 7 }));
        assert!(!left_behind.holds(&topic, &records[0]), "somebody still waits for it");
        call.abandon();
        assert!(left_behind.holds(&topic, &records[0]));
        assert!(!left_behind.holds(&Topic::from("other"), &records[0]));
        assert!(!left_behind.holds(&topic, &records[2]) && !left_behind.holds(&topic, &records[3]));
        call.delivered(0, Ok(Appended { partition: 0, offset: 8 }));
        assert!(left_behind.holds(&topic, &records[0]), "the second of its key is still missing");
        call.delivered(1, Err(LogError::EarlierFailed));
        assert!(!left_behind.holds(&topic, &records[0]));
    }

    #[test]
    fn a_failure_is_known_by_its_key_and_answers_keep_their_places() {
        let (topic, left_behind) = (Topic::from("t"), Arc::<LeftBehind>::default());
        let records = [record("a"), record("b"), record("c")];
        let call = Call::new(&topic, &records, &left_behind);
        (0..2).for_each(|index| call.on_its_way(index));
        call.delivered(1, Err(LogError::Invalid("no".to_owned())));
        let mut failed = HashSet::new();
        call.add_failed_keys(&mut failed);
        assert_eq!(failed, HashSet::from([Bytes::from_static(b"b")]));
        let answers = call.take_answers(Duration::from_secs(1));
        assert!(matches!(answers[0], Err(LogError::UnknownOutcome(_))));
        assert!(matches!(answers[1], Err(LogError::Invalid(_))));
        assert!(matches!(answers[2], Err(LogError::Unavailable(_))));
    }
}
