//! What a source and a stage are to the runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::ack::{Place, ReadAcks, ReplyTo};
use crate::batch::Batch;
use crate::error::StageError;
use crate::ledger::Progress;
use crate::record::Record;

/// A transform or a sink.
///
/// One object serves every lane of a run, so calls overlap; state is behind `&self`. The runtime calls `open`
/// once, then `process` any number of times, then `close` once; after an error from `open` or a panic nothing
/// more is called. A restart builds a new object.
#[async_trait]
pub trait Stage: Send + Sync {
    /// Connects to what the stage needs. Building did no I/O, so checking a file works offline.
    async fn open(&self) -> Result<(), StageError> {
        Ok(())
    }

    /// Works on a batch in place: records left alone go on, the others get a verdict.
    ///
    /// An error speaks for every record of the batch that has no verdict yet; the runtime retries, and the stage
    /// never does, so that back-off, deadlines and the circuit are the same everywhere. Records of one key come
    /// in order, in one call or in calls that do not overlap; a stage with effects keeps that order and, after a
    /// retryable failure, holds the later records of that key ([`Batch::each`] does both). The future is dropped
    /// in the middle only when a drain runs out of time.
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError>;

    /// What goes on by the first output when the runtime gives up on a record, whatever `on_error` makes of the record
    /// itself: such as a word to those who wait for an answer. May be asked again for the same record, after a crash or
    /// a redrive. Nothing for most stages.
    fn instead(&self, record: &Record, error: &StageError) -> Option<Record> {
        let _ = (record, error);
        None
    }

    /// Makes what was accepted last, such as a buffered file; called after the last `process`.
    async fn close(&self) -> Result<(), StageError> {
        Ok(())
    }
}

/// A part of a source that is read in order and committed on its own, such as a Kafka partition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Partition(Arc<str>);

impl Partition {
    /// The name for sources that have only one.
    pub fn only() -> Self {
        Self::from("0")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Partition {
    fn from(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where to read on, by partition: the position after the last settled record.
pub type Positions = BTreeMap<Partition, u64>;

/// Records read together from one partition, in order.
#[derive(Debug)]
pub struct ReadBatch {
    pub(crate) partition: Partition,
    pub(crate) records: Batch,
    /// For each record, where reading resumes once it is settled. Same length as `records`.
    pub(crate) resume_at: Vec<u64>,
    /// For request/response sources, who waits for each record; empty if nobody does.
    pub(crate) replies: Vec<Option<ReplyTo>>,
}

impl ReadBatch {
    pub fn new(partition: Partition, capacity: usize) -> Self {
        Self {
            partition,
            records: Batch::with_capacity(capacity),
            resume_at: Vec::with_capacity(capacity),
            replies: Vec::new(),
        }
    }

    #[inline]
    pub fn push(&mut self, record: Record, resume_at: u64) {
        self.records.push(record);
        self.resume_at.push(resume_at);
        if !self.replies.is_empty() {
            self.replies.push(None);
        }
    }

    /// Adds a record that somebody waits for.
    pub fn push_request(&mut self, record: Record, reply: ReplyTo) {
        self.replies.resize_with(self.records.len(), || None);
        self.records.push(record);
        self.resume_at.push(0);
        self.replies.push(Some(reply));
    }

    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// As stages are given it, with everything up to `settled` dealt with. The runtime has its own way: this is for
    /// trying a stage alone, and nobody waits for how the records end.
    pub fn into_read(self, source: &str, settled: Option<u64>) -> Batch {
        let Self { partition, mut records, resume_at, replies } = self;
        let place = Place { source: source.into(), partition, settled, positions_last: true };
        records.take_seats(ReadAcks::new(place, resume_at, replies, Arc::new(Progress::default())));
        records
    }

    pub fn records(&self) -> &Batch {
        &self.records
    }

    /// For each record, where reading resumes once it is settled.
    pub fn resume_at(&self) -> &[u64] {
        &self.resume_at
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// What a read brought.
#[derive(Debug)]
pub enum Read {
    Batch(ReadBatch),
    /// Partitions that another reader has now: what was read from them goes on to its end, and its positions are not
    /// committed any more. One that comes back begins anew, wherever the source says.
    Gone(Vec<Partition>),
    /// There is no more and never will be; the pipeline finishes.
    End,
}

/// Who remembers how far a source was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionKeeping {
    /// Nobody: the source has no past, like a socket.
    None,
    /// The runtime, in the process's position store.
    Runtime,
    /// The source, in [`Source::commit`], like a Kafka consumer group.
    Source,
}

/// Where records come from.
///
/// The runtime calls `open` once, then `read` and `commit` in turns, then `close`. It calls nothing at the same
/// time as anything else.
#[async_trait]
pub trait Source: Send {
    /// What is read, such as `file:/var/log/in.jsonl`. Kept positions are good for this identity only.
    fn identity(&self) -> String;

    /// Whose positions they are, for stages that keep which records they have taken. Sources that give the same record
    /// at the same position, such as a group and somebody who reads a range of the same log, say the same here. One that
    /// goes on to something else, as to the next file, says so with the first batch of that, and its positions may begin
    /// again.
    fn origin(&self) -> String {
        self.identity()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::None
    }

    /// Whether a record that is read again has the position it had before, in a later life of the source too. Stages
    /// that keep what they have taken rely on it.
    fn positions_last(&self) -> bool {
        self.keeps_positions() != PositionKeeping::None
    }

    /// Starts at `resume`, or where a new reader starts if it is empty.
    async fn open(&mut self, resume: &Positions) -> Result<(), StageError>;

    /// Waits for records and returns at most `max`, at least one, or says that partitions are gone.
    ///
    /// Must be cancel-safe: the runtime drops the future to commit or to stop, and no record may be lost by
    /// that. A retryable error is answered with back-off and another call, any other stops the pipeline.
    async fn read(&mut self, max: usize) -> Result<Read, StageError>;

    /// Everything before `positions` is settled. With [`PositionKeeping::Source`] this must make it durable.
    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        let _ = positions;
        Ok(())
    }

    /// Records known to wait beyond the last one read.
    fn lag(&self) -> Option<u64> {
        None
    }

    async fn close(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}
