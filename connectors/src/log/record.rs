//! What is in the log, and what names it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// A topic's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Topic(Arc<str>);

impl Topic {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Topic {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    pub topic: Topic,
    pub partition: u32,
}

impl TopicPartition {
    pub fn new(topic: &Topic, partition: u32) -> Self {
        Self { topic: topic.clone(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub name: SmolStr,
    pub value: Bytes,
}

/// A record to be appended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewRecord {
    /// Decides the partition; records without one are spread.
    pub key: Option<Bytes>,
    pub payload: Bytes,
    pub headers: Vec<Header>,
}

impl NewRecord {
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        self.key.as_ref().map_or(0, Bytes::len) + self.payload.len() + headers
    }
}

/// Where a record was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub partition: u32,
    pub offset: u64,
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    pub offset: u64,
    /// When it was appended; never falls within a partition.
    pub at: SystemTime,
    pub key: Option<Bytes>,
    pub payload: Bytes,
    pub headers: Vec<Header>,
}
