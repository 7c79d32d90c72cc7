//! Writes that are decided one after another and reach the disk together.
//!
//! A group is the engine's state as its next writes will leave it: what was written, seen through the writes decided since.
//! They are written as an atomic batch of the engine below, all at once or in a few portions, and readers see nothing of
//! the group before it is shown as a whole.

use bytes::BytesMut;
use fjall::{Keyspace, OwnedWriteBatch, PersistMode, Slice};
use rustc_hash::FxHashMap;

use super::log::LogAppends;
use super::shared::Shared;
use super::store::StoreChanges;
use crate::store::Durability;

/// What rows will be, by key; `None` for those that will be gone.
type RowWrites = FxHashMap<Vec<u8>, Option<Vec<u8>>>;

/// Values from this size on are worth an allocation of their own.
const LARGE: usize = 8 * 1024;
/// What a single large group needed is not kept for all later ones.
const SPARE_ROWS: usize = 16 * 1024;

/// One group after another: what it needed is used again by the next, since memory that grows with every group and is
/// given back would be taken from the operating system anew each time.
#[derive(Default)]
pub(super) struct Group {
    /// Milliseconds since 1970 for everything in the group.
    pub(super) now: u64,
    /// What was put into it, also if something else replaced it.
    bytes: usize,
    /// Whether some of it was written and not synced.
    is_unsynced: bool,
    /// One map per keyspace that is written to; a handful at most, so they are searched one by one.
    writes: Vec<(Keyspace, RowWrites)>,
    spare: Vec<RowWrites>,
    pub(super) changes: StoreChanges,
    pub(super) appends: LogAppends,
}

impl Group {
    /// Begins the next group.
    pub(super) fn begin(&mut self, now: u64) {
        (self.now, self.bytes, self.is_unsynced) = (now, 0, false);
    }

    /// Roughly what its writes hold in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.changes.bytes() + self.appends.bytes()
    }

    pub(super) fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>, fjall::Error> {
        let decided = self.writes.iter().find(|(written, _)| written.id() == keyspace.id());
        match decided.and_then(|(_, writes)| writes.get(key)) {
            Some(value) => Ok(value.as_deref().map(Slice::from)),
            None => keyspace.get(key),
        }
    }

    pub(super) fn put(&mut self, keyspace: &Keyspace, key: Vec<u8>, value: impl Into<Vec<u8>>) {
        let value = value.into();
        self.bytes += key.len() + value.len();
        self.writes_to(keyspace).insert(key, Some(value));
    }

    pub(super) fn remove(&mut self, keyspace: &Keyspace, key: Vec<u8>) {
        self.bytes += key.len();
        self.writes_to(keyspace).insert(key, None);
    }

    fn writes_to(&mut self, keyspace: &Keyspace) -> &mut RowWrites {
        let known = self.writes.iter().position(|(written, _)| written.id() == keyspace.id());
        let index = known.unwrap_or_else(|| {
            self.writes.push((keyspace.clone(), self.spare.pop().unwrap_or_default()));
            self.writes.len() - 1
        });
        &mut self.writes[index].1
    }

    /// Makes all writes, or none if it fails. Readers see nothing of them yet, and more can be decided.
    pub(super) fn write(&mut self, shared: &Shared, persist: PersistMode) -> Result<(), fjall::Error> {
        StoreChanges::write(self);
        LogAppends::write(self);
        let count = self.writes.iter().map(|(_, writes)| writes.len()).sum();
        if count > 0 {
            let mut batch = OwnedWriteBatch::with_capacity(shared.database.clone(), count);
            for (keyspace, mut writes) in self.writes.drain(..) {
                add_rows(&mut batch, &keyspace, &mut writes);
                if writes.capacity() <= SPARE_ROWS {
                    self.spare.push(writes);
                }
            }
            batch.durability(Some(persist)).commit()?;
            self.is_unsynced = persist == PersistMode::Buffer;
        } else if self.is_unsynced && persist != PersistMode::Buffer {
            shared.database.persist(persist)?;
        }
        if persist != PersistMode::Buffer {
            // An error of the disk is told once, and maybe to another thread of the engine below, that syncs what was
            // written before: it closes the journal, and this asks whether it is.
            shared.database.persist(PersistMode::Buffer)?;
        }
        Ok(())
    }

    /// Makes all writes, or none if it fails, and lets readers have them and those written before.
    pub(super) fn commit(&mut self, shared: &Shared, durability: Durability) -> Result<(), fjall::Error> {
        let persist = match durability {
            Durability::Synced => PersistMode::SyncData,
            // handed to the operating system, so that it outlives the process if not the machine
            Durability::Ordered => PersistMode::Buffer,
        };
        self.write(shared, persist)?;
        shared.advance();
        self.changes.announce();
        self.appends.announce();
        Ok(())
    }
}

/// Adds one tree's rows to the batch, in the order of their keys: the tree finds the place of each near that of the one
/// before.
///
/// They stay in memory until the tree writes a file and then go together, so they share an allocation for keys and one
/// for values: thousands of small ones, made by one thread and freed by another, cost more than the copy.
fn add_rows(batch: &mut OwnedWriteBatch, keyspace: &Keyspace, writes: &mut RowWrites) {
    let mut rows: Vec<(Vec<u8>, Option<Vec<u8>>)> = writes.drain().collect();
    rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let is_small = |value: &&Vec<u8>| value.len() < LARGE;
    let key_bytes = rows.iter().map(|(key, _)| key.len()).sum();
    let value_bytes =
        rows.iter().filter_map(|(_, value)| value.as_ref()).filter(is_small).map(Vec::len).sum();
    let (mut keys, mut values) = (BytesMut::with_capacity(key_bytes), BytesMut::with_capacity(value_bytes));
    for (key, value) in rows {
        let key = shared_copy(&mut keys, &key);
        match value {
            Some(value) if is_small(&&value) => batch.insert(keyspace, key, shared_copy(&mut values, &value)),
            Some(value) => batch.insert(keyspace, key, value),
            None => batch.remove(keyspace, key),
        }
    }
}

fn shared_copy(shared: &mut BytesMut, bytes: &[u8]) -> Slice {
    shared.extend_from_slice(bytes);
    Slice::from(shared.split().freeze())
}
