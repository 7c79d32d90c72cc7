//! Reading the log, alone or as a member of a group.

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::Offsets;
use super::error::LogError;
use super::record::{LogRecord, Topic, TopicPartition};

/// How to join a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    pub group: String,
    pub topics: Vec<Topic>,
    /// Where to start in partitions the group has never committed.
    pub start: StartAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    Oldest,
    Latest,
}

/// What a fetch brought.
#[derive(Debug)]
pub enum Fetch {
    /// Records of one partition in order; at least one.
    Records { from: TopicPartition, records: Vec<LogRecord> },
    /// Partitions this member reads from now on, beside those it has.
    Assigned(Vec<Assigned>),
    /// Partitions that go to another member as soon as this one is done with them.
    Revoked(Revocation),
    /// Partitions that another member may read already; nothing can be committed for them any more.
    Lost(Vec<TopicPartition>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    pub partition: TopicPartition,
    pub start: u64,
}

/// Partitions being taken away. No more records of them are fetched; commits for them still count until this is
/// dropped, and the next member waits for that. A holder that takes too long loses them anyway.
#[derive(Debug)]
pub struct Revocation {
    pub partitions: Vec<TopicPartition>,
    _done: oneshot::Sender<()>,
}

/// The log's side of a [`Revocation`]: resolves when the holder is done.
pub struct RevocationDone(oneshot::Receiver<()>);

impl Revocation {
    pub fn new(partitions: Vec<TopicPartition>) -> (Self, RevocationDone) {
        let (done, waiting) = oneshot::channel();
        (Self { partitions, _done: done }, RevocationDone(waiting))
    }
}

impl RevocationDone {
    pub async fn wait(self) {
        // nothing is ever sent: the sender's end is the signal
        let _ = self.0.await;
    }

    /// For connectors whose client calls back on a thread of its own.
    pub fn is_done(&mut self) -> bool {
        !matches!(self.0.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }
}

/// Reads partitions in order.
#[async_trait]
pub trait Reader: Send {
    /// Waits for the next records, at most `max`, or for a change of the assignment. Cancel-safe: a dropped call
    /// loses nothing.
    async fn fetch(&mut self, max: usize) -> Result<Fetch, LogError>;

    /// Stops fetching these partitions without giving them up.
    async fn pause(&mut self, partitions: &[TopicPartition]) -> Result<(), LogError>;

    async fn resume(&mut self, partitions: &[TopicPartition]) -> Result<(), LogError>;

    /// Records known to wait beyond the last one fetched, by partition.
    fn lag(&self) -> Vec<(TopicPartition, u64)>;
}

/// A member of a group. Dropping it leaves the group; [`close`](Self::close) does so and waits.
#[async_trait]
pub trait Consumer: Reader {
    /// Everything before these offsets is done with. When it returns this outlives the process, and of an engine without
    /// a server not yet a loss of power, after which some of it is read again. Offsets never move backwards by a
    /// member's own commits. [`LogError::NotAssigned`] if a partition is not this member's any more.
    async fn commit(&mut self, offsets: &Offsets) -> Result<(), LogError>;

    async fn close(self: Box<Self>) -> Result<(), LogError>;
}
