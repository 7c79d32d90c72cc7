//! A topic as the engine keeps it: one keyspace, chunks by partition and first offset, and the ends in memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use fjall::{Database, Keyspace};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::super::shared::open_keyspace;
use super::super::space::TopicSpace;
use super::chunk::{ChunkCursor, decode_header};
use super::read_error;
use crate::log::{LogError, Result, Topic, TopicPartition, TopicSpec, Watermarks};

/// A topic in the catalog. The number names its keyspace, so that a topic deleted and made anew starts empty.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TopicEntry {
    pub(super) number: u32,
    pub(super) spec: TopicSpec,
}

pub(in crate::embedded) struct StoredTopic {
    pub(super) number: u32,
    pub(super) spec: TopicSpec,
    pub(super) chunks: Keyspace,
    partitions: Vec<PartitionEnds>,
    /// Changes whenever something was appended, for those who wait.
    appended: watch::Sender<()>,
    /// Set by the committer, which then refuses what was on its way.
    pub(super) deleted: AtomicBool,
}

/// Only the committer changes these, after what they tell of is visible.
#[derive(Default)]
struct PartitionEnds {
    low: AtomicU64,
    high: AtomicU64,
    /// Time of the last chunk; times never fall, even if the clock does.
    last_at: AtomicU64,
    /// Of its chunks, once somebody has counted them.
    bytes: OnceLock<AtomicU64>,
}

/// Stands in for a partition's last chunk once retention removed that.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct PartitionEnd {
    pub(super) high: u64,
    pub(super) last_at: u64,
}

impl StoredTopic {
    pub(super) fn open(database: &Database, entry: &TopicEntry) -> Result<Self> {
        let chunks = open_keyspace(database, &format!("topic{}.chunks", entry.number)).map_err(read_error)?;
        let partitions = (0..entry.spec.partitions).map(|partition| PartitionEnds::read(&chunks, partition));
        Ok(Self {
            number: entry.number,
            spec: entry.spec.clone(),
            partitions: partitions.collect::<Result<_>>()?,
            chunks,
            appended: watch::Sender::new(()),
            deleted: AtomicBool::new(false),
        })
    }

    pub(in crate::embedded) fn name(&self) -> &Topic {
        &self.spec.name
    }

    pub(in crate::embedded) fn chunks(&self) -> &Keyspace {
        &self.chunks
    }

    pub(in crate::embedded) fn space(&self) -> TopicSpace {
        let held = |ends: &PartitionEnds| {
            ends.high.load(Ordering::Acquire).saturating_sub(ends.low.load(Ordering::Acquire))
        };
        TopicSpace {
            name: self.spec.name.to_string(),
            partitions: self.spec.partitions,
            records: self.partitions.iter().map(held).sum(),
            bytes: self.chunks.disk_space(),
        }
    }

    pub(super) fn partition_count(&self) -> u32 {
        self.spec.partitions
    }

    pub(super) fn check_exists(&self) -> Result<()> {
        if self.deleted.load(Ordering::Relaxed) {
            return Err(LogError::NoSuchTopic { topic: self.name().clone() });
        }
        Ok(())
    }

    fn ends(&self, partition: u32) -> Result<&PartitionEnds> {
        let ends = self.partitions.get(partition as usize);
        ends.ok_or_else(|| LogError::NoSuchPartition(TopicPartition::new(self.name(), partition)))
    }

    pub(super) fn watermarks(&self, partition: u32) -> Result<Watermarks> {
        let ends = self.ends(partition)?;
        let low = ends.low.load(Ordering::Acquire);
        Ok(Watermarks { low, high: ends.high.load(Ordering::Acquire) })
    }

    pub(super) fn last_at(&self, partition: u32) -> u64 {
        self.partitions[partition as usize].last_at.load(Ordering::Relaxed)
    }

    /// There is more, of so many bytes.
    pub(super) fn set_high(&self, partition: u32, high: u64, at: u64, more_bytes: u64) {
        let ends = &self.partitions[partition as usize];
        ends.last_at.store(at, Ordering::Relaxed);
        if let Some(bytes) = ends.bytes.get() {
            bytes.fetch_add(more_bytes, Ordering::Relaxed);
        }
        ends.high.store(high, Ordering::Release);
    }

    /// There is less, of so many bytes.
    pub(super) fn set_low(&self, partition: u32, low: u64, less_bytes: u64) {
        let ends = &self.partitions[partition as usize];
        if let Some(bytes) = ends.bytes.get() {
            bytes.fetch_sub(less_bytes, Ordering::Relaxed);
        }
        ends.low.store(low, Ordering::Release);
    }

    /// What the partition's chunks take. For the committer; the first time it counts them.
    pub(super) fn partition_bytes(&self, partition: u32) -> Result<u64> {
        let ends = self.ends(partition)?;
        if let Some(bytes) = ends.bytes.get() {
            return Ok(bytes.load(Ordering::Relaxed));
        }
        let chunks = self.chunks.range(chunk_key(partition, 0)..=chunk_key(partition, u64::MAX));
        let sizes = chunks.map(|guard| guard.size().map(u64::from).map_err(read_error));
        let counted = sizes.sum::<Result<u64>>()?;
        Ok(ends.bytes.get_or_init(|| counted.into()).load(Ordering::Relaxed))
    }

    pub(super) fn announce(&self) {
        self.appended.send_replace(());
    }

    pub(super) fn appended(&self) -> watch::Receiver<()> {
        self.appended.subscribe()
    }

    pub(super) fn check_in_range(&self, partition: u32, offset: u64) -> Result<()> {
        let Watermarks { low, high } = self.watermarks(partition)?;
        if (low..=high).contains(&offset) {
            return Ok(());
        }
        let partition = TopicPartition::new(self.name(), partition);
        Err(LogError::OutOfRange { partition, offset, low, high })
    }

    /// The chunk with this offset, which lies below the partition's end, ready to be read from there.
    pub(super) fn chunk_at(&self, partition: u32, offset: u64) -> Result<Option<ChunkCursor>> {
        // Who reads on stands where a chunk begins, and finding one key is a small part of the work of finding a place
        // among them.
        if let Some(chunk) = self.chunks.get(chunk_key(partition, offset)).map_err(read_error)? {
            return ChunkCursor::new(offset, Bytes::from(chunk)).map(Some);
        }
        let found = self.chunks.range(chunk_key(partition, 0)..=chunk_key(partition, offset)).next_back();
        let Some(guard) = found else { return Ok(None) };
        let (key, chunk) = guard.into_inner().map_err(read_error)?;
        let mut cursor = ChunkCursor::new(base_offset(&key)?, Bytes::from(chunk))?;
        cursor.skip_to(offset)?;
        Ok((cursor.next_offset() == offset).then_some(cursor))
    }

    /// The first offset that was appended at this time or later, or the end.
    pub(super) fn offset_at(&self, partition: u32, millis: u64) -> Result<u64> {
        let Watermarks { low, high } = self.watermarks(partition)?;
        let (mut before, mut after) = (low, high);
        // Times never fall within a partition, so halve what is left; a chunk's records have one time.
        while before < after {
            let middle = before + (after - before) / 2;
            let found = self.chunks.range(chunk_key(partition, 0)..=chunk_key(partition, middle)).next_back();
            let Some(guard) = found else {
                before = middle + 1; // removed by retention since
                continue;
            };
            let (key, chunk) = guard.into_inner().map_err(read_error)?;
            let (base, header) = (base_offset(&key)?, decode_header(&chunk)?.0);
            if header.at < millis {
                before = base + u64::from(header.count);
            } else {
                after = base;
            }
        }
        Ok(before.clamp(low, high))
    }
}

impl PartitionEnds {
    fn read(chunks: &Keyspace, partition: u32) -> Result<Self> {
        let all = || chunks.range(chunk_key(partition, 0)..=chunk_key(partition, u64::MAX));
        let ends = Self::default();
        if let Some(end) = chunks.get(end_key(partition)).map_err(read_error)? {
            let end: PartitionEnd = postcard::from_bytes(&end).map_err(|error| {
                LogError::Damaged(format!("the end of partition {partition} cannot be read: {error}"))
            })?;
            ends.low.store(end.high, Ordering::Relaxed);
            ends.high.store(end.high, Ordering::Relaxed);
            ends.last_at.store(end.last_at, Ordering::Relaxed);
        }
        if let (Some(first), Some(last)) = (all().next(), all().next_back()) {
            ends.low.store(base_offset(&first.key().map_err(read_error)?)?, Ordering::Relaxed);
            let (key, chunk) = last.into_inner().map_err(read_error)?;
            let header = decode_header(&chunk)?.0;
            ends.high.store(base_offset(&key)? + u64::from(header.count), Ordering::Relaxed);
            ends.last_at.store(header.at, Ordering::Relaxed);
        }
        Ok(ends)
    }
}

pub(super) fn chunk_key(partition: u32, base: u64) -> Vec<u8> {
    [&[0][..], &partition.to_be_bytes(), &base.to_be_bytes()].concat()
}

/// Behind all chunks.
pub(super) fn end_key(partition: u32) -> Vec<u8> {
    [&[1][..], &partition.to_be_bytes()].concat()
}

pub(super) fn base_offset(key: &[u8]) -> Result<u64> {
    let base = key.get(5..).and_then(|bytes| bytes.try_into().ok());
    base.map(u64::from_be_bytes)
        .ok_or_else(|| LogError::Damaged("a chunk of the log has no offset".to_owned()))
}
