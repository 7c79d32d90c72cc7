//! Appending: the records that a group brings to a partition become one chunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::super::spare::SpareBuffers;
use super::chunk::{CHUNK_BYTES, ChunkHeader, encode_chunk, encode_record};
use super::topic::{StoredTopic, chunk_key};
use super::{Groups, commit_error};
use crate::log::{Appended, LogError, MAX_RECORD_BYTES, NewRecord, Result, Topic, WriteLog};

/// What a group appends, until it is committed.
#[derive(Default)]
pub(in crate::embedded) struct LogAppends {
    /// By topic number and partition.
    pending: BTreeMap<(u32, u32), PendingChunks>,
    /// Of all that are pending.
    bytes: usize,
    /// Buffers of earlier groups.
    spare: SpareBuffers,
}

struct PendingChunks {
    topic: Arc<StoredTopic>,
    at: u64,
    next_offset: u64,
    /// First offset and count of the chunk being filled.
    base: u64,
    count: u32,
    records: Vec<u8>,
    full: Vec<(u64, Vec<u8>)>,
    /// Of all its chunks, as they are written.
    bytes: u64,
}

impl PendingChunks {
    /// Adds records; returns the offset of the first.
    fn push(&mut self, run: &Run) -> u64 {
        if self.records.len() + run.bytes.len() > CHUNK_BYTES {
            self.close();
        }
        self.records.extend_from_slice(&run.bytes);
        self.count += run.count;
        let first = self.next_offset;
        self.next_offset += u64::from(run.count);
        first
    }

    fn close(&mut self) {
        if self.count == 0 {
            return;
        }
        let header = ChunkHeader { count: self.count, at: self.at };
        let chunk = encode_chunk(header, &self.records);
        self.bytes += chunk.len() as u64;
        self.full.push((self.base, chunk));
        self.records.clear();
        (self.base, self.count) = (self.next_offset, 0);
    }
}

impl LogAppends {
    /// Adds records; returns the offset of the first.
    fn push(&mut self, topic: &Arc<StoredTopic>, run: &Run, now: u64) -> u64 {
        let partition = run.partition;
        self.bytes += run.bytes.len();
        let pending = self.pending.entry((topic.number, partition)).or_insert_with(|| {
            let high = topic.watermarks(partition).expect("records are given to partitions that exist").high;
            PendingChunks {
                topic: Arc::clone(topic),
                at: now.max(topic.last_at(partition)),
                next_offset: high,
                base: high,
                count: 0,
                records: self.spare.take(),
                full: Vec::new(),
                bytes: 0,
            }
        });
        pending.push(run)
    }

    pub(in crate::embedded) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Turns the group's records into writes.
    pub(in crate::embedded) fn write(group: &mut Group) {
        let mut pending = std::mem::take(&mut group.appends.pending);
        for ((_, partition), chunks) in &mut pending {
            chunks.close();
            for (base, chunk) in chunks.full.drain(..) {
                group.put(&chunks.topic.chunks, chunk_key(*partition, base), chunk);
            }
        }
        (group.appends.pending, group.appends.bytes) = (pending, 0);
    }

    /// Lets readers have what is now on disk.
    pub(in crate::embedded) fn announce(&mut self) {
        for ((_, partition), pending) in std::mem::take(&mut self.pending) {
            pending.topic.set_high(partition, pending.next_offset, pending.at, pending.bytes);
            pending.topic.announce();
            self.spare.give(pending.records);
        }
    }
}

#[async_trait]
impl WriteLog for Engine {
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>> {
        let count = records.len();
        let Ok(topic) = self.topic(topic) else {
            return (0..count).map(|_| Err(LogError::NoSuchTopic { topic: topic.clone() })).collect();
        };
        let (runs, answers) = prepare(&topic, &records, &self.shared.groups);
        // the caller's memory is free while its records wait
        drop(records);
        let (reply, answer) = oneshot::channel();
        let job = Append { topic, runs, answers, reply };
        self.committer.submit(Box::new(job)).await;
        let ended = || LogError::UnknownOutcome("the engine ended".to_owned());
        answer.await.unwrap_or_else(|_| (0..count).map(|_| Err(ended())).collect())
    }
}

/// Records of one call for one partition, encoded one behind another. Not longer than a chunk, unless it is one record.
struct Run {
    partition: u32,
    count: u32,
    bytes: Vec<u8>,
}

/// Encodes the records, and answers for each: its place among the call's records for its partition, or why it cannot be
/// appended. After one that cannot be, the later ones of its key are not either.
fn prepare(topic: &StoredTopic, records: &[NewRecord], groups: &Groups) -> (Vec<Run>, Vec<Result<Appended>>) {
    let mut runs: Vec<Run> = Vec::new();
    let mut failed_keys = FxHashSet::default();
    let answers = records.iter().map(|record| {
        if record.key.as_ref().is_some_and(|key| failed_keys.contains(key)) {
            return Err(LogError::EarlierFailed);
        }
        let bytes = record.size();
        if bytes > MAX_RECORD_BYTES {
            failed_keys.extend(record.key.clone());
            return Err(LogError::TooLarge { bytes, limit: MAX_RECORD_BYTES });
        }
        let partition = partition_of(topic, record, groups);
        let before = runs.iter().filter(|run| run.partition == partition).map(|run| u64::from(run.count));
        let offset = before.sum();
        push_record(&mut runs, partition, record);
        Ok(Appended { partition, offset })
    });
    let answers = answers.collect();
    (runs, answers)
}

fn partition_of(topic: &StoredTopic, record: &NewRecord, groups: &Groups) -> u32 {
    let partitions = u64::from(topic.partition_count());
    let hash = match &record.key {
        // Part of what is on disk: a key must stay in its partition, so never change it.
        Some(key) => xxhash_rust::xxh3::xxh3_64(key),
        None => groups.next_spread(),
    };
    u32::try_from(hash % partitions).expect("less than the number of partitions")
}

fn push_record(runs: &mut Vec<Run>, partition: u32, record: &NewRecord) {
    let bytes = record.size();
    let fits = |run: &Run| run.partition == partition && run.bytes.len() + bytes <= CHUNK_BYTES;
    // the last one of a partition is the one that is not full
    if let Some(run) = runs.iter_mut().rev().find(|run| run.partition == partition).filter(|run| fits(run)) {
        encode_record(record, &mut run.bytes);
        run.count += 1;
    } else {
        let mut run = Run { partition, count: 1, bytes: Vec::new() };
        encode_record(record, &mut run.bytes);
        runs.push(run);
    }
}

struct Append {
    topic: Arc<StoredTopic>,
    runs: Vec<Run>,
    /// Offsets count from the call's first record of a partition, until that is appended.
    answers: Vec<Result<Appended>>,
    reply: oneshot::Sender<Vec<Result<Appended>>>,
}

impl Job for Append {
    fn bytes(&self) -> usize {
        self.runs.iter().map(|run| run.bytes.len() + 64).sum()
    }

    fn decide(&mut self, group: &mut Group) {
        if self.topic.check_exists().is_err() {
            for answer in self.answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = Err(LogError::NoSuchTopic { topic: self.topic.name().clone() });
            }
            return;
        }
        let now = group.now;
        let mut firsts: Vec<(u32, u64)> = Vec::with_capacity(self.runs.len());
        for run in std::mem::take(&mut self.runs) {
            let first = group.appends.push(&self.topic, &run, now);
            if firsts.iter().all(|(partition, _)| *partition != run.partition) {
                firsts.push((run.partition, first));
            }
        }
        for appended in self.answers.iter_mut().flatten() {
            let first = firsts.iter().find(|(partition, _)| *partition == appended.partition);
            appended.offset += first.expect("a record is in a run of its partition").1;
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let answers = match committed {
            Ok(()) => self.answers,
            Err(error) => self.answers.iter().map(|_| Err(commit_error(error))).collect(),
        };
        // a caller that went away does not want to know
        let _ = self.reply.send(answers);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fjall::PersistMode;

    use super::super::super::Options;
    use super::*;
    use crate::log::{AdminLog as _, Fetch, Offsets, ReadLog as _, Retention, TopicPartition, TopicSpec};
    use crate::store::Durability;

    /// Several partitions, more than a chunk for each, and some that cannot be appended: every answer names the place
    /// where its record is.
    #[tokio::test]
    async fn each_record_is_where_its_answer_says() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        let topic = Topic::from("events");
        let spec =
            TopicSpec { name: topic.clone(), partitions: 3, retention: Retention::default(), replication: 1 };
        engine.create_topic(&spec).await.unwrap();
        let record = |number: usize| {
            let size = if number % 100 == 42 { MAX_RECORD_BYTES + 1 } else { 4000 };
            let mut payload = number.to_be_bytes().to_vec();
            payload.resize(size, 7);
            let key = Some(Bytes::from(format!("key {}", number % 17)));
            NewRecord { key, payload: payload.into(), headers: Vec::new() }
        };
        for call in 0..2 {
            let numbers = call * 400..(call + 1) * 400;
            let answers = engine.produce(&topic, numbers.clone().map(record).collect()).await;
            assert!(answers.iter().any(|answer| matches!(answer, Err(LogError::TooLarge { .. }))));
            for (number, answer) in numbers.zip(answers) {
                let Ok(Appended { partition, offset }) = answer else { continue };
                let at = TopicPartition::new(&topic, partition);
                let mut reader = engine.read_from(Offsets::from([(at, offset)])).await.unwrap();
                let Fetch::Records { records, .. } = reader.fetch(1).await.unwrap() else { panic!() };
                assert_eq!((records[0].offset, &records[0].payload), (offset, &record(number).payload));
            }
        }
    }

    /// A group that is written in portions brings a partition as many chunks as it has portions with records of it.
    #[tokio::test]
    async fn portions_of_a_group_are_chunks_one_behind_another() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        let name = Topic::from("events");
        let spec =
            TopicSpec { name: name.clone(), partitions: 2, retention: Retention::default(), replication: 1 };
        engine.create_topic(&spec).await.unwrap();
        let topic = engine.topic(&name).unwrap();
        let append = |partition, number: u8| {
            let payload = Bytes::from(vec![number]);
            let mut run = Run { partition, count: 1, bytes: Vec::new() };
            encode_record(&NewRecord { key: None, payload, headers: Vec::new() }, &mut run.bytes);
            let answers = vec![Ok(Appended { partition, offset: 0 })];
            Append { topic: Arc::clone(&topic), runs: vec![run], answers, reply: oneshot::channel().0 }
        };
        let mut group = Group::default();
        for (portions, first) in [(3, 0), (1, 3)] {
            group.begin(1_000);
            for portion in 0..portions {
                append(0, first + portion).decide(&mut group);
                if portion == 1 {
                    append(1, 77).decide(&mut group);
                }
                group.write(&engine.shared, PersistMode::Buffer).unwrap();
            }
            group.commit(&engine.shared, Durability::Synced).unwrap();
        }
        assert_eq!(topic.chunks.iter().count(), 4 + 1);
        for (partition, written) in [(0, &[0, 1, 2, 3][..]), (1, &[77])] {
            let at = TopicPartition::new(&name, partition);
            let mut reader = engine.read_from(Offsets::from([(at, 0)])).await.unwrap();
            let Fetch::Records { records, .. } = reader.fetch(9).await.unwrap() else { panic!() };
            let read: Vec<(u64, u8)> =
                records.iter().map(|record| (record.offset, record.payload[0])).collect();
            assert_eq!(read, (0..).zip(written.iter().copied()).collect::<Vec<_>>());
        }
    }
}
