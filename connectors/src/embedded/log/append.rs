//! Appending: the records that a group brings to a partition become one chunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use rustc_hash::FxHashSet;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::chunk::{CHUNK_BYTES, ChunkHeader, encode_chunk, encode_record};
use super::topic::{StoredTopic, chunk_key};
use super::{Groups, commit_error};
use crate::log::{Appended, LogError, MAX_RECORD_BYTES, NewRecord, Result, Topic, WriteLog};

/// What a group appends, until it is committed.
#[derive(Default)]
pub(in crate::embedded) struct LogAppends {
    /// By topic number and partition.
    pending: BTreeMap<(u32, u32), PendingChunks>,
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
}

impl PendingChunks {
    fn push(&mut self, record: &[u8]) -> u64 {
        if self.records.len() + record.len() > CHUNK_BYTES && self.count > 0 {
            self.close();
        }
        self.records.extend_from_slice(record);
        self.count += 1;
        self.next_offset += 1;
        self.next_offset - 1
    }

    fn close(&mut self) {
        let header = ChunkHeader { count: self.count, at: self.at };
        self.full.push((self.base, encode_chunk(header, &self.records)));
        self.records.clear();
        (self.base, self.count) = (self.next_offset, 0);
    }
}

impl LogAppends {
    fn push(&mut self, topic: &Arc<StoredTopic>, partition: u32, record: &[u8], now: u64) -> u64 {
        let pending = self.pending.entry((topic.number, partition)).or_insert_with(|| {
            let high = topic.watermarks(partition).expect("records are given to partitions that exist").high;
            PendingChunks {
                topic: Arc::clone(topic),
                at: now.max(topic.last_at(partition)),
                next_offset: high,
                base: high,
                count: 0,
                records: Vec::new(),
                full: Vec::new(),
            }
        });
        pending.push(record)
    }

    /// Turns the group's records into writes.
    pub(in crate::embedded) fn write(group: &mut Group) {
        let mut appends = std::mem::take(&mut group.appends);
        for ((_, partition), pending) in &mut appends.pending {
            pending.close();
            for (base, chunk) in pending.full.drain(..) {
                group.put(&pending.topic.chunks, chunk_key(*partition, base), chunk);
            }
        }
        group.appends = appends;
    }

    /// Lets readers have what is now on disk.
    pub(in crate::embedded) fn announce(self) {
        for ((_, partition), pending) in &self.pending {
            pending.topic.set_high(*partition, pending.next_offset, pending.at);
            pending.topic.announce();
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
        let records = prepare(&topic, &records, &self.shared.groups);
        let (reply, answer) = oneshot::channel();
        let job = Append { topic, count, records, appended: Vec::with_capacity(count), reply };
        self.committer.submit(Box::new(job)).await;
        let ended = || LogError::UnknownOutcome("the engine ended".to_owned());
        answer.await.unwrap_or_else(|_| (0..count).map(|_| Err(ended())).collect())
    }
}

struct Encoded {
    partition: u32,
    bytes: Vec<u8>,
}

fn encoded(topic: &StoredTopic, record: &NewRecord, groups: &Groups) -> Result<Encoded> {
    let bytes = record.size();
    if bytes > MAX_RECORD_BYTES {
        return Err(LogError::TooLarge { bytes, limit: MAX_RECORD_BYTES });
    }
    let partitions = u64::from(topic.partition_count());
    let hash = match &record.key {
        // Part of what is on disk: a key must stay in its partition, so never change it.
        Some(key) => xxhash_rust::xxh3::xxh3_64(key),
        None => groups.next_spread(),
    };
    let partition = u32::try_from(hash % partitions).expect("less than the number of partitions");
    Ok(Encoded { partition, bytes: encode_record(record) })
}

/// Makes the records ready. After one that cannot be appended, the later ones of its key are not either.
fn prepare(topic: &StoredTopic, records: &[NewRecord], groups: &Groups) -> Vec<Result<Encoded>> {
    let mut failed_keys = FxHashSet::default();
    let prepared = records.iter().map(|record| {
        if record.key.as_ref().is_some_and(|key| failed_keys.contains(key)) {
            return Err(LogError::EarlierFailed);
        }
        let encoded = encoded(topic, record, groups);
        if encoded.is_err() {
            failed_keys.extend(record.key.clone());
        }
        encoded
    });
    prepared.collect()
}

struct Append {
    topic: Arc<StoredTopic>,
    count: usize,
    records: Vec<Result<Encoded>>,
    appended: Vec<Result<Appended>>,
    reply: oneshot::Sender<Vec<Result<Appended>>>,
}

impl Job for Append {
    fn bytes(&self) -> usize {
        self.records.iter().flatten().map(|record| record.bytes.len() + 64).sum()
    }

    fn decide(&mut self, group: &mut Group) {
        let now = group.now;
        for record in self.records.drain(..) {
            let appended = self.topic.check_exists().and(record).map(|record| {
                let offset = group.appends.push(&self.topic, record.partition, &record.bytes, now);
                Appended { partition: record.partition, offset }
            });
            self.appended.push(appended);
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let answers = match committed {
            Ok(()) => self.appended,
            Err(error) => (0..self.count).map(|_| Err(commit_error(error))).collect(),
        };
        // a caller that went away does not want to know
        let _ = self.reply.send(answers);
    }
}
