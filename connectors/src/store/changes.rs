//! The change stream: what happened to a table's items, in order for each item.
//!
//! A stream consists of shards. Changes of one item are in one shard, or in a shard and later in its children: a
//! shard can end and be split, and its children are read after it.

use std::time::SystemTime;

use async_trait::async_trait;
use smol_str::SmolStr;

use super::error::StoreError;
use super::request::Key;
use super::value::{Item, Name};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The place in the shard: greater for later changes. Text of digits on AWS, so compare with care.
    pub sequence: SequenceNumber,
    pub at: SystemTime,
    pub key: Key,
    /// `None` for a new item.
    pub old: Option<Item>,
    /// `None` for a removed item.
    pub new: Option<Item>,
    /// Removed because its time had come, and not by anybody's request.
    pub expired: bool,
}

/// A place in a shard, as the store writes it: digits without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SequenceNumber(pub SmolStr);

impl Ord for SequenceNumber {
    /// By value: of two numbers without leading zeros the longer one is greater.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for SequenceNumber {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub SmolStr);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    pub id: ShardId,
    /// To be read to its end before this one, if it still exists.
    pub parent: Option<ShardId>,
}

/// Where to start reading a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardStart {
    /// The oldest change that is kept.
    Oldest,
    /// What happens from now on.
    Latest,
    After(SequenceNumber),
}

/// One read of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardRead {
    /// Possibly none, if nothing happened.
    Changes(Vec<Change>),
    /// The shard ended; its children, if any, go on.
    Ended,
}

/// Reads one shard in order.
#[async_trait]
pub trait ShardReader: Send {
    /// The next changes, at most `limit`, at once; none if there are none yet. Cancel-safe: a dropped call loses
    /// nothing.
    async fn read(&mut self, limit: usize) -> Result<ShardRead, StoreError>;

    /// Whether the last read ended for the size of what it found, so that there may be more at once.
    fn has_more(&self) -> bool {
        false
    }

    /// Returns once there may be more than the last read found. Of a store that cannot tell it never does: that one is
    /// read again from time to time. Cancel-safe.
    async fn wait(&mut self) {
        std::future::pending::<()>().await;
    }
}

/// The part of a store that tells what changed.
#[async_trait]
pub trait ChangeStream: Send + Sync {
    /// All shards that are kept, parents and children, in no order.
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>, StoreError>;

    /// Fails with [`StoreError::Trimmed`] if the start is not kept any more, or there is no such shard: nothing but that
    /// means that changes are lost.
    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>, StoreError>;
}
