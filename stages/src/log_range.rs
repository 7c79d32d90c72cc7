//! A range of the log, read for oneself: from given offsets up to a fence, or on and on.
//!
//! No group remembers anything: whoever reads a range keeps how far it came, by the same partition names and positions
//! as `kafka-consume` gives, so that what was made from a range can be continued by a group and the other way round.

use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

use courant_connectors::capability::RestrictedLog;
use courant_connectors::log::{
    Fetch, LogError, LogRecord, Offsets, ReadLog as _, Reader, Topic, TopicPartition,
};
use courant_connectors::model::Timestamp;
use courant_pipeline::stage::{Partition, Positions};
use courant_pipeline::{StageError, clock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backends::log_error;

/// Whose positions those of the log are, whoever reads it: partitions are named by their topics.
pub(crate) const LOG_ORIGIN: &str = "log";

/// Where a range of the log begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeStart {
    /// With everything that the log still holds.
    #[default]
    Oldest,
    /// With what was published at this moment or later, such as `{ time = "2026-01-30T14:30:00Z" }`.
    Time(Timestamp),
    /// With these offsets, by partition such as `{ offsets = { "messages.persisted/0" = 120 } }`. Partitions that are
    /// not named begin with the oldest.
    Offsets(BTreeMap<String, u64>),
}

/// Where a range of the log ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RangeEnd {
    /// Never: what is published later is read too.
    #[default]
    Live,
    /// With what was published when the source was opened.
    Now,
    /// Before these offsets, by partition. Partitions that are not named are not read.
    Offsets(BTreeMap<String, u64>),
}

/// The offsets of partitions by their names, such as `messages.persisted/0`. Names of no such partition are an error.
pub fn offsets_of(named: &BTreeMap<String, u64>, partitions: &Offsets) -> Result<Offsets, StageError> {
    let find = |name: &str| partitions.keys().find(|partition| partition.to_string() == name);
    let offset = |(name, offset): (&String, &u64)| {
        if let Some(partition) = find(name) {
            return Ok((partition.clone(), *offset));
        }
        let known: Vec<_> = partitions.keys().map(ToString::to_string).collect();
        let reason = format!("there is no partition `{name}`; there are {}", known.join(", "));
        Err(StageError::fatal("find where to read the log", reason))
    };
    named.iter().map(offset).collect()
}

/// What the topics hold: where each partition begins and ends.
#[derive(Debug, Clone, Default)]
pub struct Held {
    pub low: Offsets,
    pub high: Offsets,
}

impl Held {
    pub async fn by(log: &RestrictedLog, topics: &[Topic]) -> Result<Self, StageError> {
        let mut held = Self::default();
        for topic in topics {
            let marks = log.watermarks(topic).await.map_err(find_error)?;
            for (number, marks) in (0..).zip(marks) {
                let partition = TopicPartition::new(topic, number);
                held.low.insert(partition.clone(), marks.low);
                held.high.insert(partition, marks.high);
            }
        }
        Ok(held)
    }

    /// Refuses offsets that are removed, or not written yet.
    pub fn check(&self, offsets: &Offsets) -> Result<(), StageError> {
        for (partition, offset) in offsets {
            let (low, high) = (self.low.get(partition), self.high.get(partition));
            let (Some(&low), Some(&high)) = (low, high) else {
                return Err(find_error(LogError::NoSuchPartition(partition.clone())));
            };
            if !(low..=high).contains(offset) {
                let (partition, offset) = (partition.clone(), *offset);
                let advice = if offset < low {
                    "what was before is removed: begin with a scan of the store, or later"
                } else {
                    "begin earlier"
                };
                let error = LogError::OutOfRange { partition, offset, low, high };
                return Err(StageError::fatal("find where to read the log", format!("{error}; {advice}")));
            }
        }
        Ok(())
    }
}

/// Where reading begins for those who have never read.
pub async fn start_of(
    log: &RestrictedLog,
    topics: &[Topic],
    start: &RangeStart,
    held: &Held,
) -> Result<Offsets, StageError> {
    let mut offsets = held.low.clone();
    match start {
        RangeStart::Oldest => {}
        RangeStart::Time(time) => {
            for topic in topics {
                let time = SystemTime::from(*time);
                offsets.extend(log.offsets_at(topic, time).await.map_err(find_error)?);
            }
        }
        RangeStart::Offsets(named) => {
            let named = offsets_of(named, &held.low)?;
            held.check(&named)?;
            offsets.extend(named);
        }
    }
    Ok(offsets)
}

/// Where reading ends; none if it goes on.
pub fn end_of(end: &RangeEnd, held: &Held) -> Result<Option<Offsets>, StageError> {
    match end {
        RangeEnd::Live => Ok(None),
        RangeEnd::Now => Ok(Some(held.high.clone())),
        RangeEnd::Offsets(named) => offsets_of(named, &held.low).map(Some),
    }
}

/// When the records at some offsets were appended: the first and the last of those times. Now, for partitions that end
/// there.
pub async fn times_at(log: &RestrictedLog, offsets: &Offsets, held: &Held) -> Result<(u64, u64), StageError> {
    let (mut first, mut last) = (u64::MAX, 0);
    for (partition, offset) in offsets {
        let at = if held.high.get(partition).is_some_and(|high| offset < high) {
            let only = Offsets::from([(partition.clone(), *offset)]);
            let mut reader = log.read_from(only).await.map_err(find_error)?;
            match reader.fetch(1).await.map_err(find_error)? {
                Fetch::Records { records, .. } => records.first().map_or_else(clock::now, |record| record.at),
                _ => clock::now(),
            }
        } else {
            clock::now()
        };
        let at = Timestamp::from(at).unix_millis();
        (first, last) = (first.min(at), last.max(at));
    }
    if offsets.is_empty() {
        first = clock::unix_millis();
        last = first;
    }
    Ok((first, last))
}

/// Reads a range.
pub struct LogRange {
    /// None once there is nothing to read.
    reader: Option<Box<dyn Reader>>,
    names: BTreeMap<TopicPartition, Partition>,
    /// Where each partition ends that has not been read so far; empty for ranges without an end.
    ends: Offsets,
    has_end: bool,
    /// Read to their end, and not to be fetched any more.
    finished: Vec<TopicPartition>,
    ready: VecDeque<(TopicPartition, Vec<LogRecord>)>,
}

impl LogRange {
    /// Positions of an earlier run count more than `start`.
    pub async fn open(
        log: &RestrictedLog,
        mut start: Offsets,
        end: Option<Offsets>,
        resume: &Positions,
    ) -> Result<Self, StageError> {
        let name = |at: &TopicPartition| Partition::from(at.to_string().as_str());
        let names: BTreeMap<_, _> = start.keys().map(|at| (at.clone(), name(at))).collect();
        for (at, offset) in &mut start {
            *offset = resume.get(&names[at]).copied().unwrap_or(*offset);
        }
        let has_end = end.is_some();
        let mut ends = end.unwrap_or_default();
        if has_end {
            ends.retain(|at, end| start.get(at).is_some_and(|start| start < end));
            start.retain(|at, _| ends.contains_key(at));
        }
        let reader =
            if start.is_empty() { None } else { Some(log.read_from(start).await.map_err(read_error)?) };
        Ok(Self { reader, names, ends, has_end, finished: Vec::new(), ready: VecDeque::new() })
    }

    /// The next records of a partition with its name; none at the end of the range. Cancel-safe: what was fetched is
    /// kept before anything else is waited for.
    pub async fn next(&mut self, max: usize) -> Result<Option<(Partition, Vec<LogRecord>)>, StageError> {
        loop {
            self.leave_finished().await?;
            if let Some((from, records)) = self.ready.pop_front() {
                return Ok(Some((self.names[&from].clone(), records)));
            }
            if self.has_end && self.ends.is_empty() {
                self.reader = None;
            }
            let Some(reader) = &mut self.reader else { return Ok(None) };
            if let Fetch::Records { from, records } = reader.fetch(max).await.map_err(read_error)? {
                self.take(from, records);
            }
        }
    }

    fn take(&mut self, from: TopicPartition, mut records: Vec<LogRecord>) {
        if self.has_end {
            let Some(end) = self.ends.get(&from).copied() else { return };
            let is_over = records.last().is_some_and(|last| last.offset + 1 >= end);
            records.retain(|record| record.offset < end);
            if is_over {
                self.ends.remove(&from);
                self.finished.push(from.clone());
            }
        }
        if !records.is_empty() {
            self.ready.push_back((from, records));
        }
    }

    async fn leave_finished(&mut self) -> Result<(), StageError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        if !self.finished.is_empty() && !self.ends.is_empty() {
            reader.pause(&self.finished).await.map_err(read_error)?;
            self.finished.clear();
        }
        Ok(())
    }

    /// Records known to wait.
    pub fn lag(&self) -> Option<u64> {
        let reader = self.reader.as_ref()?;
        Some(reader.lag().iter().map(|(_, lag)| lag).sum())
    }
}

fn find_error(error: LogError) -> StageError {
    log_error("find where to read the log", error)
}

fn read_error(error: LogError) -> StageError {
    match error {
        LogError::OutOfRange { .. } => StageError::fatal(
            "read the log",
            format!("{error}: what was not read is removed; begin anew with a scan of the store"),
        ),
        error => log_error("read the log", error),
    }
}
