//! Writes that are decided one after another and reach the disk together.
//!
//! A group is the engine's state as its next writes will leave it: what is on disk, seen through the writes decided so
//! far. Nothing of it can be seen by readers before the commit; the commit is one atomic batch of the engine below, and
//! with [`Durability::Synced`] it is on disk before it becomes visible.

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, Slice};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::log::LogAppends;
use super::store::StoreChanges;
use crate::store::Durability;

/// What rows will be, by key; `None` for those that will be gone.
type RowWrites = FxHashMap<Vec<u8>, Option<Slice>>;

pub(super) struct Group {
    /// Milliseconds since 1970 for everything in the group.
    pub(super) now: u64,
    /// How many jobs will be decided, as a first guess at the number of rows.
    jobs: usize,
    /// One map per keyspace that is written to; a handful at most, so they are searched one by one.
    writes: Vec<(Keyspace, RowWrites)>,
    pub(super) changes: StoreChanges,
    pub(super) appends: LogAppends,
}

impl Group {
    pub(super) fn new(now: u64, jobs: usize) -> Self {
        Self {
            now,
            jobs,
            writes: Vec::new(),
            changes: StoreChanges::default(),
            appends: LogAppends::default(),
        }
    }

    pub(super) fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>, fjall::Error> {
        let decided = self.writes.iter().find(|(written, _)| written.id() == keyspace.id());
        match decided.and_then(|(_, writes)| writes.get(key)) {
            Some(value) => Ok(value.clone()),
            None => keyspace.get(key),
        }
    }

    pub(super) fn put(&mut self, keyspace: &Keyspace, key: Vec<u8>, value: impl Into<Slice>) {
        self.writes_to(keyspace).insert(key, Some(value.into()));
    }

    pub(super) fn remove(&mut self, keyspace: &Keyspace, key: Vec<u8>) {
        self.writes_to(keyspace).insert(key, None);
    }

    fn writes_to(&mut self, keyspace: &Keyspace) -> &mut RowWrites {
        let known = self.writes.iter().position(|(written, _)| written.id() == keyspace.id());
        let index = known.unwrap_or_else(|| {
            let rows = RowWrites::with_capacity_and_hasher(self.jobs, FxBuildHasher);
            self.writes.push((keyspace.clone(), rows));
            self.writes.len() - 1
        });
        &mut self.writes[index].1
    }

    /// Makes all writes, or none if it fails.
    pub(super) fn commit(
        mut self,
        database: &Database,
        durability: Durability,
    ) -> Result<LogAppends, fjall::Error> {
        StoreChanges::write(&mut self);
        LogAppends::write(&mut self);
        let count = self.writes.iter().map(|(_, writes)| writes.len()).sum();
        if count > 0 {
            let mut batch = OwnedWriteBatch::with_capacity(database.clone(), count);
            for (keyspace, writes) in self.writes {
                for (key, value) in writes {
                    match value {
                        Some(value) => batch.insert(&keyspace, key, value),
                        None => batch.remove(&keyspace, key),
                    }
                }
            }
            let persist = match durability {
                Durability::Synced => Some(PersistMode::SyncData),
                // handed to the operating system, so that it outlives the process if not the machine
                Durability::Ordered => Some(PersistMode::Buffer),
            };
            batch.durability(persist).commit()?;
        }
        Ok(self.appends)
    }
}
