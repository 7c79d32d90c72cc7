//! Reading partitions in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures::future::select_all;
use tokio::sync::watch;

use super::super::Engine;
use super::chunk::ChunkCursor;
use super::consumer::Member;
use super::topic::StoredTopic;
use crate::log::{
    Consumer, Fetch, LogError, LogRecord, Offsets, ReadLog, Reader, Result, Subscription, Topic,
    TopicPartition, Watermarks,
};

/// A fetch ends at about this much, whatever its limit in records.
const FETCH_BYTES: usize = 1024 * 1024;

#[async_trait]
impl ReadLog for Engine {
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Consumer>> {
        Ok(Box::new(Member::join(self, subscription)?))
    }

    async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>> {
        let mut partitions = PartitionReaders::default();
        for (partition, offset) in offsets {
            let topic = self.topic(&partition.topic)?;
            topic.check_in_range(partition.partition, offset)?;
            partitions.add(partition, topic, offset);
        }
        Ok(Box::new(partitions))
    }

    async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>> {
        let topic = self.topic(topic)?;
        (0..topic.partition_count()).map(|partition| topic.watermarks(partition)).collect()
    }

    async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets> {
        let topic = self.topic(topic)?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let offsets = (0..topic.partition_count()).map(|partition| {
            Ok((TopicPartition::new(topic.name(), partition), topic.offset_at(partition, millis)?))
        });
        offsets.collect()
    }

    async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets> {
        let topic = self.topic(topic)?;
        let mut offsets = Offsets::new();
        for partition in 0..topic.partition_count() {
            let partition = TopicPartition::new(topic.name(), partition);
            if let Some(offset) = self.committed_offset(group, &partition)? {
                offsets.insert(partition, offset);
            }
        }
        Ok(offsets)
    }

    async fn reset_group(&self, group: &str, offsets: &Offsets) -> Result<()> {
        for (partition, offset) in offsets {
            self.topic(&partition.topic)?.check_in_range(partition.partition, *offset)?;
        }
        self.shared.groups.check_empty(group)?;
        self.store_offsets(group, offsets).await
    }
}

/// Partitions being read, one after another in turn.
#[derive(Default)]
pub(super) struct PartitionReaders {
    partitions: BTreeMap<TopicPartition, PartitionReader>,
    /// The partition whose records were fetched last; the next in order comes first.
    last: Option<TopicPartition>,
}

struct PartitionReader {
    topic: Arc<StoredTopic>,
    next_offset: u64,
    paused: bool,
    /// The chunk being read, so that a small fetch does not look for it again.
    chunk: Option<ChunkCursor>,
    appended: watch::Receiver<()>,
}

impl PartitionReaders {
    pub(super) fn add(&mut self, partition: TopicPartition, topic: Arc<StoredTopic>, next_offset: u64) {
        let appended = topic.appended();
        let reader = PartitionReader { topic, next_offset, paused: false, chunk: None, appended };
        self.partitions.insert(partition, reader);
    }

    pub(super) fn remove(&mut self, partition: &TopicPartition) {
        self.partitions.remove(partition);
    }

    /// What there is now, of the first partition in turn that has something.
    pub(super) fn fetch_now(&mut self, max: usize) -> Result<Option<Fetch>> {
        let start = self.last.clone();
        let in_turn = |partition: &&TopicPartition| start.as_ref().is_none_or(|last| *partition > last);
        let (later, earlier): (Vec<_>, Vec<_>) = self.partitions.keys().partition(in_turn);
        let order: Vec<TopicPartition> = later.into_iter().chain(earlier).cloned().collect();
        for partition in order {
            let Some(reader) = self.partitions.get_mut(&partition) else { continue };
            // marked before looking: what is appended afterwards wakes the next wait
            reader.appended.mark_unchanged();
            if reader.paused {
                continue;
            }
            let records = reader.read(&partition, max)?;
            if !records.is_empty() {
                self.last = Some(partition.clone());
                return Ok(Some(Fetch::Records { from: partition, records }));
            }
        }
        Ok(None)
    }

    /// Waits until something may have been appended; for ever if nothing is read.
    pub(super) async fn wait(&mut self) {
        let waits = self.partitions.values_mut().filter(|reader| !reader.paused);
        let waits: Vec<_> = waits.map(|reader| Box::pin(reader.appended.changed())).collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        // an error means that the topic is gone, which the next look will tell
        let _ = select_all(waits).await;
    }

    pub(super) fn set_paused(&mut self, partitions: &[TopicPartition], paused: bool) -> Result<()> {
        for partition in partitions {
            let reader = self.partitions.get_mut(partition);
            reader.ok_or_else(|| LogError::NotAssigned(partition.clone()))?.paused = paused;
        }
        Ok(())
    }

    pub(super) fn lag_by_partition(&self) -> Vec<(TopicPartition, u64)> {
        let lag = self.partitions.iter().map(|(partition, reader)| {
            let high = reader.topic.watermarks(partition.partition).map_or(0, |watermarks| watermarks.high);
            (partition.clone(), high.saturating_sub(reader.next_offset))
        });
        lag.collect()
    }
}

impl PartitionReader {
    fn next_chunk(&self, partition: &TopicPartition) -> Result<ChunkCursor> {
        if let Some(found) = self.topic.chunk_at(partition.partition, self.next_offset)? {
            return Ok(found);
        }
        // retention was faster, or else something is wrong
        self.topic.check_in_range(partition.partition, self.next_offset)?;
        Err(LogError::Damaged(format!("{partition} misses offset {}", self.next_offset)))
    }

    fn read(&mut self, partition: &TopicPartition, max: usize) -> Result<Vec<LogRecord>> {
        self.topic.check_exists()?;
        let mut records = Vec::new();
        let mut bytes = 0;
        let high = self.topic.watermarks(partition.partition)?.high;
        while self.next_offset < high && records.len() < max && bytes < FETCH_BYTES {
            match self.next_record(partition) {
                Ok(record) => {
                    bytes += record.payload.len();
                    records.push(record);
                }
                // what came before it is handed out, and the next read meets it again
                Err(_) if !records.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    /// The record at the next offset, which is below the partition's end.
    fn next_record(&mut self, partition: &TopicPartition) -> Result<LogRecord> {
        loop {
            if self.chunk.is_none() {
                self.chunk = Some(self.next_chunk(partition)?);
            }
            let cursor = self.chunk.as_mut().expect("it was just put there");
            if let Some(record) = cursor.next()? {
                self.next_offset = record.offset + 1;
                return Ok(record);
            }
            self.chunk = None;
        }
    }
}

#[async_trait]
impl Reader for PartitionReaders {
    async fn fetch(&mut self, max: usize) -> Result<Fetch> {
        loop {
            if let Some(fetched) = self.fetch_now(max)? {
                return Ok(fetched);
            }
            self.wait().await;
        }
    }

    async fn pause(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.set_paused(partitions, true)
    }

    async fn resume(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        self.set_paused(partitions, false)
    }

    fn lag(&self) -> Vec<(TopicPartition, u64)> {
        self.lag_by_partition()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Options;
    use super::super::topic::chunk_key;
    use super::*;
    use crate::log::{AdminLog as _, NewRecord, Retention, TopicSpec, WriteLog as _};

    #[tokio::test]
    async fn what_is_in_front_of_damage_is_read_and_the_damage_told() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        let topic = Topic::from("events");
        let spec =
            TopicSpec { name: topic.clone(), partitions: 1, retention: Retention::default(), replication: 1 };
        engine.create_topic(&spec).await.unwrap();
        for _ in 0..3 {
            let record = NewRecord { payload: vec![7; 100].into(), ..NewRecord::default() };
            engine.produce(&topic, vec![record]).await.remove(0).unwrap();
        }
        let chunks = engine.topic(&topic).unwrap().chunks.clone();
        let second = chunks.get(chunk_key(0, 1)).unwrap().unwrap();
        chunks.insert(chunk_key(0, 1), &second[..second.len() - 5]).unwrap();

        let mut reader = engine.read_from([(TopicPartition::new(&topic, 0), 0)].into()).await.unwrap();
        match reader.fetch(10).await {
            Ok(Fetch::Records { records, .. }) => assert_eq!(records.len(), 1),
            other => panic!("{other:?}"),
        }
        for _ in 0..2 {
            let damaged = reader.fetch(10).await;
            assert!(matches!(damaged, Err(LogError::Damaged(_))), "{damaged:?}");
        }
    }
}
