//! The partitions a reader has, and what it is to hear next.
//!
//! Every partition has a librdkafka queue of its own, from which [`Partitions::take`] takes records without
//! waiting. So there is no second buffer: what is not taken stays in librdkafka, which stops fetching at its
//! limit, and a paused partition is one that is not taken from. The shared queue carries only rebalances and
//! errors, which are therefore never stuck behind records.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rdkafka::Message;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _};
use rdkafka::statistics::Statistics;
use tokio::sync::Notify;

use super::ask::native_partition;
use super::member::MemberContext;
use crate::log::{Assigned, Fetch, Header, LogError, LogRecord, Offsets, Result, TopicPartition};
use crate::store::Remedy;

pub(super) struct Partitions {
    table: Mutex<Table>,
    /// Told when there may be something to take.
    pub(super) wake: Notify,
}

#[derive(Default)]
struct Table {
    held: BTreeMap<TopicPartition, Held>,
    events: VecDeque<Fetch>,
    trouble: Trouble,
    /// Where the log is could not be asked for a position outside of it: records first, then it is asked again.
    asked_in_vain: bool,
    /// Whose turn is over, so that a busy partition does not starve the others.
    served_last: Option<TopicPartition>,
    closing: bool,
}

/// What went wrong and was not told yet.
#[derive(Default)]
struct Trouble {
    /// What only a person can put right; each is told, once.
    stops: VecDeque<LogError>,
    /// Only the latest: they all say that Kafka cannot be read now.
    passing: Option<LogError>,
}

impl Trouble {
    fn add(&mut self, error: LogError) {
        if error.remedy() != Remedy::Stop {
            self.passing = Some(error);
            return;
        }
        // Some come with every fetch; there are no more than partitions and ways to fail.
        let text = error.to_string();
        if self.stops.iter().all(|known| known.to_string() != text) {
            self.stops.push_back(error);
        }
    }
}

/// What a reader is to hear next.
pub(super) enum Next {
    Heard(Result<Fetch>),
    /// The holder must be told that this position is not in the log.
    OutOfRange(TopicPartition, u64),
}

/// A partition of this reader.
pub(super) struct Held {
    /// None once no more records of it are wanted.
    pub(super) queue: Option<PartitionQueue<MemberContext>>,
    /// The next offset to be given out.
    pub(super) position: u64,
    /// The offset after the last known record.
    pub(super) end: u64,
    pub(super) committed: Option<u64>,
    /// When the last record was appended.
    pub(super) at: SystemTime,
    pub(super) paused: bool,
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Reading,
    /// Its position is not in the log, and the holder does not know yet.
    OutOfRange,
    /// Its position is not in the log; nothing can be read.
    Stuck,
    /// It goes to another member.
    Leaving,
}

impl Partitions {
    pub(super) fn new() -> Self {
        Self { table: Mutex::default(), wake: Notify::new() }
    }

    /// The next thing to hear, if there is one. Who holds a partition must know it first; then comes what stops the
    /// holder or one of its partitions, which a partition that is never empty must not hide; and what passes comes
    /// after the records there are.
    pub(super) fn take(&self, max: usize) -> Option<Next> {
        let mut table = self.table();
        if let Some(event) = table.events.pop_front() {
            return Some(Next::Heard(Ok(event)));
        }
        if let Some(stop) = table.stop() {
            return Some(stop);
        }
        if let Some(records) = table.records(max) {
            return Some(Next::Heard(Ok(records)));
        }
        // Looking for records may have met something.
        if let Some(stop) = table.stop() {
            return Some(stop);
        }
        table.trouble.passing.take().map(|error| Next::Heard(Err(error)))
    }

    /// The place of the log could not be asked for; others may be read meanwhile.
    pub(super) fn asked_in_vain(&self) {
        self.table().asked_in_vain = true;
    }

    pub(super) fn told_out_of_range(&self, partition: &TopicPartition) {
        if let Some(held) = self.table().held.get_mut(partition) {
            held.fate = Fate::Stuck;
        }
    }

    /// A reader that closes takes no more: a queue keeps its client, and nobody would drop that any more.
    pub(super) fn add(&self, new: Vec<(TopicPartition, Held)>, announce: bool) {
        let mut table = self.table();
        if table.closing {
            // outside the lock: dropping a queue takes librdkafka's locks
            drop(table);
            drop(new);
            return;
        }
        if announce {
            let assigned = new
                .iter()
                .map(|(partition, held)| Assigned { partition: partition.clone(), start: held.position });
            let event = Fetch::Assigned(assigned.collect());
            table.events.push_back(event);
        }
        table.held.extend(new);
        drop(table);
        self.wake.notify_one();
    }

    /// No more records of these; commits still count.
    pub(super) fn stop_reading(&self, partitions: &[TopicPartition], event: Fetch) {
        let mut table = self.table();
        for partition in partitions {
            if let Some(held) = table.held.get_mut(partition) {
                held.fate = Fate::Leaving;
                held.queue = None;
            }
        }
        table.events.push_back(event);
        drop(table);
        self.wake.notify_one();
    }

    /// These are not ours any more. Returns those that were.
    pub(super) fn remove(&self, partitions: &[TopicPartition]) -> Vec<TopicPartition> {
        let mut table = self.table();
        let held = partitions.iter().filter(|partition| table.held.remove(partition).is_some());
        held.cloned().collect()
    }

    pub(super) fn announce(&self, event: Fetch) {
        self.table().events.push_back(event);
        self.wake.notify_one();
    }

    pub(super) fn report(&self, trouble: LogError) {
        self.table().trouble.add(trouble);
        self.wake.notify_one();
    }

    pub(super) fn set_paused(&self, partitions: &[TopicPartition], paused: bool) -> Result<()> {
        let mut table = self.table();
        if let Some(other) = partitions.iter().find(|partition| !table.held.contains_key(partition)) {
            return Err(LogError::NotAssigned(other.clone()));
        }
        for partition in partitions {
            table.held.get_mut(partition).expect("all of them were just found").paused = paused;
        }
        drop(table);
        self.wake.notify_one();
        Ok(())
    }

    /// Those of the offsets that are news to the group.
    pub(super) fn to_commit(&self, offsets: &Offsets) -> Result<Offsets> {
        let table = self.table();
        let mut news = Offsets::new();
        for (partition, offset) in offsets {
            let held = table.held.get(partition).ok_or_else(|| LogError::NotAssigned(partition.clone()))?;
            if held.committed.is_none_or(|committed| *offset > committed) {
                news.insert(partition.clone(), *offset);
            }
        }
        Ok(news)
    }

    pub(super) fn committed(&self, offsets: &Offsets) {
        let mut table = self.table();
        for (partition, offset) in offsets {
            if let Some(held) = table.held.get_mut(partition) {
                held.committed = Some(*offset);
            }
        }
    }

    pub(super) fn lag(&self) -> Vec<(TopicPartition, u64)> {
        let table = self.table();
        let lag = table
            .held
            .iter()
            .map(|(partition, held)| (partition.clone(), held.end.saturating_sub(held.position)));
        lag.collect()
    }

    /// Every answer to a fetch says where the partition ends; statistics bring it here without a question.
    pub(super) fn learn_ends(&self, statistics: &Statistics) {
        let mut table = self.table();
        for (at, held) in &mut table.held {
            let topic = statistics.topics.get(at.topic.as_str());
            let partition = topic.and_then(|topic| topic.partitions.get(&native_partition(at.partition)));
            if let Some(end) = partition.and_then(|partition| u64::try_from(partition.hi_offset).ok()) {
                held.end = held.end.max(end);
            }
        }
    }

    pub(super) fn close(&self) {
        let mut table = self.table();
        table.closing = true;
        let (held, events) = (std::mem::take(&mut table.held), std::mem::take(&mut table.events));
        drop(table);
        // outside the lock: dropping a queue takes librdkafka's locks
        drop((held, events));
    }

    pub(super) fn is_closing(&self) -> bool {
        self.table().closing
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn stop(&mut self) -> Option<Next> {
        if let Some(error) = self.trouble.stops.pop_front() {
            return Some(Next::Heard(Err(error)));
        }
        if std::mem::take(&mut self.asked_in_vain) {
            return None;
        }
        let found = self.held.iter().find(|(_, held)| held.fate == Fate::OutOfRange);
        found.map(|(partition, held)| Next::OutOfRange(partition.clone(), held.position))
    }

    fn records(&mut self, max: usize) -> Option<Fetch> {
        let Self { held, served_last, trouble, .. } = self;
        let turn_starts_after = |at: &TopicPartition| served_last.as_ref().is_none_or(|last| at > last);
        let order: Vec<TopicPartition> = {
            let (later, earlier): (Vec<_>, Vec<_>) = held.keys().cloned().partition(turn_starts_after);
            later.into_iter().chain(earlier).collect()
        };
        for from in order {
            let partition = held.get_mut(&from).expect("the key was just listed");
            let records = partition.take(&from, max, trouble);
            if !records.is_empty() {
                *served_last = Some(from.clone());
                return Some(Fetch::Records { from, records });
            }
        }
        None
    }
}

impl Held {
    pub(super) fn new(queue: PartitionQueue<MemberContext>, start: u64, end: u64) -> Self {
        Self {
            queue: Some(queue),
            position: start,
            end,
            committed: None,
            at: SystemTime::UNIX_EPOCH,
            paused: false,
            fate: Fate::Reading,
        }
    }

    fn take(&mut self, from: &TopicPartition, max: usize, trouble: &mut Trouble) -> Vec<LogRecord> {
        let mut records = Vec::new();
        let Some(queue) = self.queue.as_ref().filter(|_| self.fate == Fate::Reading && !self.paused) else {
            return records;
        };
        while records.len() < max {
            match queue.poll(Duration::ZERO) {
                None => break,
                Some(Ok(message)) => {
                    let Some(mut record) = read(&message) else {
                        trouble.add(LogError::Damaged(format!(
                            "{from} has a header at offset {} whose name is not text",
                            message.offset()
                        )));
                        self.fate = Fate::Stuck;
                        break;
                    };
                    // clocks of producers differ, where a topic keeps their times
                    self.at = self.at.max(record.at);
                    record.at = self.at;
                    self.position = record.offset + 1;
                    records.push(record);
                }
                Some(Err(error)) => {
                    match what_happened(&error, from) {
                        Some(LogError::OutOfRange { .. }) => self.fate = Fate::OutOfRange,
                        Some(other) => trouble.add(other),
                        None => continue,
                    }
                    break;
                }
            }
        }
        self.end = self.end.max(self.position);
        records
    }
}

/// Numbers of an [`LogError::OutOfRange`] are filled in by who can ask for them.
fn what_happened(error: &KafkaError, from: &TopicPartition) -> Option<LogError> {
    match error.rdkafka_error_code() {
        Some(Code::AutoOffsetReset | Code::OffsetOutOfRange) => {
            Some(LogError::OutOfRange { partition: from.clone(), offset: 0, low: 0, high: 0 })
        }
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => {
            Some(LogError::NoSuchTopic { topic: from.topic.clone() })
        }
        Some(Code::TopicAuthorizationFailed) => {
            Some(LogError::NotAllowed { access: "read", name: from.topic.to_string() })
        }
        Some(Code::PartitionEOF) => None,
        _ => Some(LogError::Unavailable(format!("cannot read {from}: {error}"))),
    }
}

/// None if a header's name is not text, where the client panics instead of saying so.
fn read(message: &BorrowedMessage<'_>) -> Option<LogRecord> {
    let bytes = |part: Option<&[u8]>| part.map_or_else(Bytes::new, Bytes::copy_from_slice);
    let headers = message.headers().map_or_else(
        || Some(Vec::new()),
        |headers| {
            let read = |header: rdkafka::message::Header<'_, &[u8]>| Header {
                name: header.key.into(),
                value: bytes(header.value),
            };
            catch_unwind(AssertUnwindSafe(|| headers.iter().map(read).collect())).ok()
        },
    )?;
    let millis = message.timestamp().to_millis().and_then(|millis| u64::try_from(millis).ok()).unwrap_or(0);
    Some(LogRecord {
        offset: u64::try_from(message.offset()).ok()?,
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
        key: message.key().map(Bytes::copy_from_slice),
        payload: bytes(message.payload()),
        headers,
    })
}

#[cfg(test)]
mod tests;
