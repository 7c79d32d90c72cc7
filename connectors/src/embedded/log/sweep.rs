//! Retention: the oldest chunks go when they are too old or a partition is too large.
//!
//! A little at a time, as a job among others. Times are those of the records, so a chunk goes at once and whole.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::super::shared::Shared;
use super::chunk::decode_header;
use super::read_error;
use super::topic::{PartitionEnd, StoredTopic, base_offset, chunk_key, end_key};
use crate::log::Result;
use crate::store::Durability;

/// Chunks per partition and round.
const AT_ONCE: usize = 200;

pub(in crate::embedded) struct SweepLog {
    shared: Arc<Shared>,
    /// Whether there may be more to do.
    more: bool,
    reply: oneshot::Sender<bool>,
}

impl SweepLog {
    pub(in crate::embedded) fn new(shared: Arc<Shared>) -> (Self, oneshot::Receiver<bool>) {
        let (reply, answer) = oneshot::channel();
        (Self { shared, more: false, reply }, answer)
    }

    fn sweep(&mut self, group: &mut Group) -> Result<()> {
        for topic in self.shared.topics().values() {
            if topic.check_exists().is_err() {
                continue;
            }
            for partition in 0..topic.partition_count() {
                self.more |= trim(topic, partition, group)? == AT_ONCE;
            }
        }
        Ok(())
    }
}

/// Removes chunks from the partition's beginning; returns how many.
fn trim(topic: &StoredTopic, partition: u32, group: &mut Group) -> Result<usize> {
    let retention = topic.spec.retention;
    let oldest =
        retention.age.map(|age| group.now.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
    let mut excess = match retention.bytes {
        Some(limit) => topic.partition_bytes(partition)?.saturating_sub(limit),
        None => 0,
    };
    let (mut removed, mut removed_bytes, mut low) = (0, 0, topic.watermarks(partition)?.low);
    for guard in topic.chunks.range(chunk_key(partition, 0)..=chunk_key(partition, u64::MAX)).take(AT_ONCE) {
        let (key, chunk) = guard.into_inner().map_err(read_error)?;
        let header = decode_header(&chunk)?.0;
        let bytes = chunk.len() as u64;
        let too_old = oldest.is_some_and(|oldest| header.at < oldest);
        if !too_old && excess < bytes {
            break;
        }
        excess = excess.saturating_sub(bytes);
        low = base_offset(&key)? + u64::from(header.count);
        group.remove(&topic.chunks, key.to_vec());
        removed += 1;
        removed_bytes += bytes;
    }
    if removed > 0 && low == topic.watermarks(partition)?.high {
        let end = PartitionEnd { high: low, last_at: topic.last_at(partition) };
        let bytes = postcard::to_allocvec(&end).expect("an end can always be written to memory");
        group.put(&topic.chunks, end_key(partition), bytes);
    }
    // before the chunks are gone, so that a reader that misses one finds out why
    topic.set_low(partition, low, removed_bytes);
    Ok(removed)
}

impl Job for SweepLog {
    fn bytes(&self) -> usize {
        64 * 1024
    }

    /// A loss of power brings back what nobody needs, and the next round removes it again.
    fn durability(&self) -> Durability {
        Durability::Ordered
    }

    fn decide(&mut self, group: &mut Group) {
        if let Err(error) = self.sweep(group) {
            tracing::error!(%error, "retention of the log failed");
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // nobody waits once the engine is closing
        let _ = self.reply.send(committed.is_ok() && self.more);
    }
}
