//! The log: events in topics, kept in order within a partition.
//!
//! Narrow traits, so that a handle can be given out that cannot do more than its holder should: a [`ReadLog`] has no
//! method that appends. Records with the same key are in the same partition. What a method promises, it promises
//! for Kafka and for the embedded engine; `tests/` runs one conformance suite on both.

mod consume;
mod error;
mod record;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use consume::{Assigned, Consumer, Fetch, Reader, Revocation, RevocationDone, StartAt, Subscription};
pub use error::LogError;
pub use record::{Appended, Header, LogRecord, NewRecord, Topic, TopicPartition};

pub type Result<T> = std::result::Result<T, LogError>;

/// Where to go on in each partition: the offset after the last one that is done with.
pub type Offsets = BTreeMap<TopicPartition, u64>;

/// The largest record with key and headers; Kafka's usual limit, which holds for every log.
pub const MAX_RECORD_BYTES: usize = 1_000_000;

/// Reading events, and knowing how far others have read.
#[async_trait]
pub trait ReadLog: Send + Sync {
    /// Joins a group, whose members share the partitions among them and remember how far they came.
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Consumer>>;

    /// Reads the given partitions from the given offsets, for itself alone.
    async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>>;

    /// What each partition of the topic holds, by partition number.
    async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>>;

    /// For each partition the first offset that was written at this time or later; its end if there is none.
    async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets>;

    /// How far a group has come; partitions without a commit are absent.
    async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets>;

    /// Sets how far a group has come, while it has no members.
    async fn reset_group(&self, group: &str, offsets: &Offsets) -> Result<()>;
}

/// Appending events.
#[async_trait]
pub trait WriteLog: Send + Sync {
    /// Appends the records and waits until they are safe. One answer per record, in order. Records of one key are
    /// kept in the order of a call, and of calls that follow one another; after a failed record of a key, none of
    /// the call's later records of that key is appended.
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>>;
}

/// Making topics and looking at how they are made.
#[async_trait]
pub trait AdminLog: Send + Sync {
    async fn topics(&self) -> Result<Vec<Topic>>;

    /// Creates the topic and waits until it can be used.
    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicCreated>;

    async fn describe_topic(&self, topic: &Topic) -> Result<Option<TopicDescription>>;

    /// Removes the topic and all it holds.
    async fn delete_topic(&self, topic: &Topic) -> Result<()>;
}

/// What a partition holds: offsets from `low` up to and not including `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    pub low: u64,
    pub high: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSpec {
    pub name: Topic,
    pub partitions: u32,
    pub retention: Retention,
    /// Copies on different brokers; the embedded engine has one.
    pub replication: u16,
}

/// How long records are kept; whichever limit is reached first removes the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retention {
    pub age: Option<Duration>,
    /// Per partition.
    pub bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicCreated {
    /// With what the log could not do, such as replication on a single broker.
    New {
        warnings: Vec<String>,
    },
    Existing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDescription {
    pub spec: TopicSpec,
    /// What the log does not tell; not to be counted as drift.
    pub unknown: Vec<&'static str>,
    pub bytes: Option<u64>,
}

/// Everything a log can do.
pub trait Log: ReadLog + WriteLog + AdminLog {}
impl<T: ReadLog + WriteLog + AdminLog + ?Sized> Log for T {}
