//! A change stream in memory, whose shards split, go away and fail when told to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::sleep;

use crate::store::{
    Change, ChangeStream, Item, Key, Name, SequenceNumber, Shard, ShardId, ShardRead, ShardReader,
    ShardStart, StoreError,
};

/// Keys are `0..KEYS`; each open shard has a range of them.
pub(super) const KEYS: u32 = 8;
/// Long enough that reads of several shards overlap.
const READ_TAKES: Duration = Duration::from_millis(3);

#[derive(Clone)]
pub(super) struct Simulated(Arc<Mutex<State>>);

pub(super) struct State {
    pub(super) shards: BTreeMap<ShardId, SimulatedShard>,
    last_sequence: u64,
    versions: BTreeMap<u32, u64>,
    /// How many of the next calls fail.
    pub(super) failures: u32,
    pub(super) reads: u32,
    pub(super) reads_under_way: u32,
    pub(super) most_reads_under_way: u32,
}

pub(super) struct SimulatedShard {
    parent: Option<ShardId>,
    keys: Range<u32>,
    ended: bool,
    pub(super) changes: Vec<Change>,
    /// As many of the oldest changes are not kept any more.
    trimmed: usize,
}

/// Which key changed, and for the how many-th time.
pub(super) fn key_and_version(change: &Change) -> (u32, u64) {
    let item = change.new.as_ref().unwrap();
    (u32::try_from(item.u64("key").unwrap()).unwrap(), item.u64("version").unwrap())
}

impl Simulated {
    /// With as many shards as given, which share the keys.
    pub(super) fn new(shards: u32) -> Self {
        let state = State {
            shards: BTreeMap::new(),
            // so that sequence numbers soon get a digit more
            last_sequence: 95,
            versions: BTreeMap::new(),
            failures: 0,
            reads: 0,
            reads_under_way: 0,
            most_reads_under_way: 0,
        };
        let simulated = Self(Arc::new(Mutex::new(state)));
        for shard in 0..shards {
            simulated.state().add(None, KEYS * shard / shards..KEYS * (shard + 1) / shards);
        }
        simulated
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn write(&self, key: u32) {
        self.state().write(key);
    }

    /// Ends the shard of this key; its children share its keys, or one child has them if there is only one key.
    pub(super) fn split(&self, key: u32) -> ShardId {
        let mut state = self.state();
        let id = state.open_shard_of(key);
        let shard = state.shards.get_mut(&id).unwrap();
        shard.ended = true;
        let keys = shard.keys.clone();
        let middle = u32::midpoint(keys.start, keys.end).max(keys.start + 1);
        state.add(Some(id.clone()), keys.start..middle);
        if middle < keys.end {
            state.add(Some(id.clone()), middle..keys.end);
        }
        id
    }

    /// Forgets the oldest changes of a shard.
    pub(super) fn trim(&self, shard: &ShardId, changes: usize) {
        self.state().shards.get_mut(shard).unwrap().trimmed = changes;
    }

    /// Forgets a shard.
    pub(super) fn expire(&self, shard: &ShardId) {
        self.state().shards.remove(shard);
    }
}

impl State {
    fn add(&mut self, parent: Option<ShardId>, keys: Range<u32>) {
        // In the order of their names, children come before their parents.
        let id = ShardId(format!("shard-{:04}", 9999 - self.last_sequence).into());
        self.last_sequence += 1;
        self.shards
            .insert(id, SimulatedShard { parent, keys, ended: false, changes: Vec::new(), trimmed: 0 });
    }

    fn open_shard_of(&self, key: u32) -> ShardId {
        let open = self.shards.iter().find(|(_, shard)| !shard.ended && shard.keys.contains(&key));
        open.expect("every key is in an open shard").0.clone()
    }

    fn write(&mut self, key: u32) {
        let id = self.open_shard_of(key);
        self.last_sequence += 1;
        let version = self.versions.entry(key).or_default();
        *version += 1;
        let change = Change {
            sequence: SequenceNumber(self.last_sequence.to_string().into()),
            at: SystemTime::UNIX_EPOCH,
            key: Key::new("key", key),
            old: None,
            new: Some(Item::new().with("key", key).with("version", *version)),
            expired: false,
        };
        self.shards.get_mut(&id).unwrap().changes.push(change);
    }

    pub(super) fn versions(&self, key: u32) -> u64 {
        self.versions.get(&key).copied().unwrap_or_default()
    }

    fn fail_if_told_to(&mut self) -> Result<(), StoreError> {
        if self.failures == 0 {
            return Ok(());
        }
        self.failures -= 1;
        Err(StoreError::Unavailable("told to fail".into()))
    }

    fn read(&mut self, shard: &ShardId, from: &mut usize, limit: usize) -> Result<ShardRead, StoreError> {
        self.reads_under_way -= 1;
        self.fail_if_told_to()?;
        let gone = || StoreError::Trimmed { table: "t".into(), position: shard.0.to_string() };
        let shard = self.shards.get(shard).ok_or_else(gone)?;
        if *from < shard.trimmed {
            return Err(gone());
        }
        let changes: Vec<_> = shard.changes.iter().skip(*from).take(limit).cloned().collect();
        *from += changes.len();
        Ok(if changes.is_empty() && shard.ended { ShardRead::Ended } else { ShardRead::Changes(changes) })
    }
}

#[async_trait]
impl ChangeStream for Simulated {
    async fn shards(&self, _: &Name) -> Result<Vec<Shard>, StoreError> {
        sleep(READ_TAKES).await;
        let mut state = self.state();
        state.fail_if_told_to()?;
        let shard =
            |(id, shard): (&ShardId, &SimulatedShard)| Shard { id: id.clone(), parent: shard.parent.clone() };
        Ok(state.shards.iter().map(shard).collect())
    }

    async fn open_shard(
        &self,
        _: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>, StoreError> {
        let mut state = self.state();
        state.fail_if_told_to()?;
        let gone = || StoreError::Trimmed { table: "t".into(), position: format!("{start:?}") };
        // the real one says no more than this
        let found = state.shards.get(shard).ok_or_else(|| StoreError::Invalid("no such shard".into()))?;
        let from = match &start {
            ShardStart::Oldest => found.trimmed,
            ShardStart::Latest => found.changes.len(),
            ShardStart::After(sequence) => {
                found.changes.partition_point(|change| change.sequence <= *sequence)
            }
        };
        if from < found.trimmed {
            return Err(gone());
        }
        Ok(Box::new(SimulatedReader { stream: self.clone(), shard: shard.clone(), from }))
    }
}

struct SimulatedReader {
    stream: Simulated,
    shard: ShardId,
    from: usize,
}

#[async_trait]
impl ShardReader for SimulatedReader {
    async fn read(&mut self, limit: usize) -> Result<ShardRead, StoreError> {
        {
            let mut state = self.stream.state();
            state.reads += 1;
            state.reads_under_way += 1;
            state.most_reads_under_way = state.most_reads_under_way.max(state.reads_under_way);
        }
        sleep(READ_TAKES).await;
        self.stream.state().read(&self.shard, &mut self.from, limit)
    }
}
