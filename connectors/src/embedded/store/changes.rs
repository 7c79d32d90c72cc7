//! The change stream: what happened to a table's rows, kept for a day.
//!
//! Changes are written in the commit that makes them, all changes of a shard in one group as one entry, named by the
//! first of their numbers. The numbers count all changes of the engine and only grow. A shard is a range of buckets (see
//! `encoding`), so the changes of one row are always in the same one; shards never split here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use fjall::{Keyspace, Readable as _, Slice, Snapshot};
use smol_str::{SmolStr, ToSmolStr, format_smolstr};
use tokio::sync::watch;

use super::super::Engine;
use super::super::clock::from_unix_millis;
use super::super::group::Group;
use super::super::shared::Shared;
use super::super::spare::SpareBuffers;
use super::encoding::shard_of;
use super::table::Table;
use super::{damaged, read_error};
use crate::store::codec::{push_number, take_item, take_number};
use crate::store::{
    Change, ChangeStream, Item, Key, Name, Result, SequenceNumber, Shard, ShardId, ShardRead, ShardReader,
    ShardStart, StoreError, TableSchema,
};

/// Enough for as many workers on one table; more would make the entries of a group smaller.
const SHARDS: u8 = 4;
/// The highest number given, in the catalog's keyspace.
const LAST_NUMBER: &[u8] = b"last-change";

/// A change as it is read. It is written from items that are encoded already, see [`RawChange`].
#[derive(Debug, Clone)]
struct StoredChange {
    /// Milliseconds since 1970.
    at: u64,
    old: Option<Item>,
    new: Option<Item>,
    expired: bool,
}

/// A change on its way: its items are the bytes of the rows.
pub(super) struct RawChange<'a> {
    pub(super) at: u64,
    pub(super) old: Option<&'a [u8]>,
    pub(super) new: Option<&'a [u8]>,
    pub(super) expired: bool,
}

impl RawChange<'_> {
    /// The parts one behind another, items as they are on disk.
    fn write(&self, out: &mut Vec<u8>) {
        push_number(self.at, out);
        for item in [self.old, self.new] {
            out.push(u8::from(item.is_some()));
            out.extend_from_slice(item.unwrap_or_default());
        }
        out.push(u8::from(self.expired));
    }
}

impl StoredChange {
    fn take(rest: &mut &[u8]) -> Result<Self> {
        let at = take_number(rest)?;
        let old = take_flag(rest)?.then(|| take_item(rest)).transpose()?;
        let new = take_flag(rest)?.then(|| take_item(rest)).transpose()?;
        Ok(Self { at, old, new, expired: take_flag(rest)? })
    }
}

fn take_flag(rest: &mut &[u8]) -> Result<bool> {
    Ok(take_number(rest)? != 0)
}

/// The changes of a group, until it is committed.
#[derive(Default)]
pub(in crate::embedded) struct StoreChanges {
    /// By table number and shard.
    pending: BTreeMap<(u32, u8), ShardChanges>,
    numbering: Option<Arc<Numbering>>,
    /// Who waits for what is being committed.
    written: Vec<watch::Sender<()>>,
    /// Buffers of earlier groups.
    spare: SpareBuffers,
}

/// What a group changes in one shard.
struct ShardChanges {
    keyspace: Keyspace,
    wakes: watch::Sender<()>,
    count: u64,
    /// The changes as they are written, one behind another.
    bytes: Vec<u8>,
}

impl ShardChanges {
    /// The entry: how many they are, and then they.
    fn entry(&self) -> Vec<u8> {
        const LONGEST_NUMBER: usize = 10;
        let mut entry = Vec::with_capacity(LONGEST_NUMBER + self.bytes.len());
        push_number(self.count, &mut entry);
        entry.extend_from_slice(&self.bytes);
        entry
    }
}

/// Gives the changes their numbers; only the committer does.
pub(in crate::embedded) struct Numbering {
    last: AtomicU64,
    catalog: Keyspace,
}

impl Numbering {
    pub(in crate::embedded) fn open(catalog: &Keyspace) -> std::result::Result<Self, fjall::Error> {
        let last = number(catalog.get(LAST_NUMBER)?);
        Ok(Self { last: AtomicU64::new(last), catalog: catalog.clone() })
    }

    /// The highest number that readers can see. The highest given may be that of a change they cannot see yet, and who
    /// reads from there on would miss it: it is neither in the stream after this nor in a scan of the table.
    fn last_seen(&self, moment: &Snapshot) -> Result<u64> {
        Ok(number(moment.get(&self.catalog, LAST_NUMBER).map_err(read_error)?))
    }
}

fn number(stored: Option<Slice>) -> u64 {
    stored.and_then(|bytes| Some(u64::from_be_bytes((*bytes).try_into().ok()?))).unwrap_or(0)
}

impl StoreChanges {
    pub(super) fn push(&mut self, table: &Table, row: &[u8], change: &RawChange<'_>) {
        let Some(keyspace) = &table.changes else { return };
        self.numbering.get_or_insert_with(|| Arc::clone(&table.numbering));
        let shard = shard_of(row, SHARDS);
        let shard = self.pending.entry((table.number, shard)).or_insert_with(|| ShardChanges {
            keyspace: keyspace.clone(),
            wakes: table.wakes.of(shard).clone(),
            count: 0,
            bytes: self.spare.take(),
        });
        change.write(&mut shard.bytes);
        shard.count += 1;
    }

    /// Turns the group's changes into writes. Only the committer numbers changes, so nothing comes in between.
    pub(in crate::embedded) fn write(group: &mut Group) {
        let Some(numbering) = group.changes.numbering.take() else { return };
        let mut last = numbering.last.load(Ordering::Relaxed);
        for ((_, shard), changes) in std::mem::take(&mut group.changes.pending) {
            group.put(&changes.keyspace, entry_key(shard, last + 1), changes.entry());
            last += changes.count;
            group.changes.spare.give(changes.bytes);
            group.changes.written.push(changes.wakes);
        }
        numbering.last.store(last, Ordering::Relaxed);
        group.put(&numbering.catalog, LAST_NUMBER.to_vec(), last.to_be_bytes().to_vec());
    }

    /// Wakes those who wait for what can be read now.
    pub(in crate::embedded) fn announce(&mut self) {
        for wakes in self.written.drain(..) {
            wakes.send_replace(());
        }
    }
}

/// Who waits for changes of a table, by shard.
#[derive(Default)]
pub(super) struct Wakes([watch::Sender<()>; SHARDS as usize]);

impl Wakes {
    fn of(&self, shard: u8) -> &watch::Sender<()> {
        &self.0[usize::from(shard)]
    }
}

fn entry_key(shard: u8, first: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(shard);
    key.extend_from_slice(&first.to_be_bytes());
    key
}

fn first_number(key: &[u8]) -> Result<u64> {
    let number = key.get(1..).and_then(|bytes| bytes.try_into().ok());
    number.map(u64::from_be_bytes).ok_or_else(|| damaged("a change has no number"))
}

fn shard_id(shard: u8) -> ShardId {
    ShardId(format_smolstr!("shard-{shard}"))
}

#[async_trait]
impl ChangeStream for Engine {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        self.streamed(table)?;
        Ok((0..SHARDS).map(|shard| Shard { id: shard_id(shard), parent: None }).collect())
    }

    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        let (table, changes) = self.streamed(table)?;
        let number = (0..SHARDS).find(|number| shard_id(*number) == *shard);
        let shard = number.ok_or_else(|| StoreError::Trimmed {
            table: table.schema.name.clone(),
            position: format!("shard '{}'", shard.0),
        })?;
        let after = match start {
            ShardStart::Oldest => 0,
            ShardStart::Latest => table.numbering.last_seen(&self.shared.moment())?,
            ShardStart::After(number) => {
                let after = number.0.parse().map_err(|_| {
                    StoreError::Invalid(format!("'{}' is no place in a change stream", number.0))
                })?;
                self.check_kept(&table, shard, after, &number.0)?;
                after
            }
        };
        let woken = table.wakes.of(shard).subscribe();
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(Reader { shared, table, changes, shard, after, is_inside: true, woken }))
    }
}

impl Engine {
    fn streamed(&self, name: &Name) -> Result<(Arc<Table>, Keyspace)> {
        let table = self.table(name)?;
        match table.changes.clone() {
            Some(changes) => Ok((table, changes)),
            None => Err(StoreError::Invalid(format!(
                "table '{name}' has no change stream; create it with streams switched on"
            ))),
        }
    }

    fn check_kept(&self, table: &Table, shard: u8, after: u64, position: &SmolStr) -> Result<()> {
        if after < table.trimmed_to(&self.shared, shard)? {
            return Err(StoreError::Trimmed {
                table: table.schema.name.clone(),
                position: position.to_string(),
            });
        }
        Ok(())
    }
}

impl Table {
    fn trim_key(&self, shard: u8) -> Vec<u8> {
        format!("trimmed/{}/{shard}", self.number).into_bytes()
    }

    /// The highest number of a shard that was removed because of its age.
    fn trimmed_to(&self, shared: &Shared, shard: u8) -> Result<u64> {
        let bytes = shared.moment().get(&shared.catalog_rows, self.trim_key(shard)).map_err(read_error)?;
        Ok(number(bytes))
    }

    /// Removes entries older than this, at most `limit`; returns how many.
    pub(super) fn trim_changes(
        &self,
        group: &mut Group,
        catalog: &Keyspace,
        before: u64,
        limit: usize,
    ) -> Result<usize> {
        let Some(changes) = &self.changes else { return Ok(0) };
        let mut removed = 0;
        for shard in 0..SHARDS {
            let mut trimmed_to = None;
            for guard in changes.prefix([shard]).take(limit - removed) {
                let (key, value) = guard.into_inner().map_err(read_error)?;
                let stored = decode(&value)?;
                if stored.iter().any(|change| change.at >= before) {
                    break;
                }
                trimmed_to = Some(first_number(&key)? + stored.len() as u64 - 1);
                group.remove(changes, key.to_vec());
                removed += 1;
            }
            if let Some(trimmed_to) = trimmed_to {
                group.put(catalog, self.trim_key(shard), trimmed_to.to_be_bytes().to_vec());
            }
        }
        Ok(removed)
    }
}

struct Reader {
    shared: Arc<Shared>,
    table: Arc<Table>,
    changes: Keyspace,
    shard: u8,
    /// The last number handed out.
    after: u64,
    /// Whether the entry of that one may hold later ones.
    is_inside: bool,
    woken: watch::Receiver<()>,
}

impl Reader {
    /// Where the entry is that holds the next change, or would be.
    fn next_entry(&self, moment: &Snapshot) -> Result<Vec<u8>> {
        let wanted = entry_key(self.shard, self.after + 1);
        if !self.is_inside {
            return Ok(wanted);
        }
        let begins = moment.range(&self.changes, entry_key(self.shard, 0)..=wanted.clone()).next_back();
        let begins = begins.map(fjall::Guard::key).transpose().map_err(read_error)?;
        Ok(begins.map_or(wanted, |key| key.to_vec()))
    }
}

#[async_trait]
impl ShardReader for Reader {
    async fn read(&mut self, limit: usize) -> Result<ShardRead> {
        self.table.check_exists()?;
        // marked before looking: what is committed afterwards wakes the next wait
        self.woken.mark_unchanged();
        let moment = self.shared.moment();
        let begins = self.next_entry(&moment)?;
        let mut found = Vec::new();
        for guard in moment.range(&self.changes, begins..=entry_key(self.shard, u64::MAX)) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let first = first_number(&key)?;
            let stored = decode(&value)?;
            let next_entry = first + stored.len() as u64;
            for (number, stored) in (first..).zip(stored) {
                if number > self.after && found.len() < limit {
                    found.push(change(&self.table.schema, number, stored)?);
                    self.after = number;
                }
            }
            self.is_inside = self.after + 1 < next_entry;
            if found.len() >= limit {
                break;
            }
        }
        Ok(ShardRead::Changes(found))
    }

    async fn wait(&mut self) {
        // an error means that the table is gone, which the next read tells
        let _ = self.woken.changed().await;
    }
}

/// The numbers of the changes in one entry.
pub(super) fn entry_numbers(key: &[u8], value: &[u8]) -> Result<std::ops::Range<u64>> {
    let first = first_number(key)?;
    Ok(first..first + decode(value)?.len() as u64)
}

fn decode(bytes: &[u8]) -> Result<Vec<StoredChange>> {
    let mut rest = bytes;
    (0..take_number(&mut rest)?).map(|_| StoredChange::take(&mut rest)).collect()
}

fn change(schema: &TableSchema, number: u64, stored: StoredChange) -> Result<Change> {
    let StoredChange { at, old, new, expired } = stored;
    let item = new.as_ref().or(old.as_ref()).ok_or_else(|| damaged("a change of nothing"))?;
    let value = |name: &Name| {
        let value = item.get(name).cloned().ok_or_else(|| damaged("a changed item has no key"))?;
        Ok::<_, StoreError>((name.clone(), value))
    };
    let key = Key {
        partition: value(&schema.partition.name)?,
        sort: schema.sort.as_ref().map(|sort| value(&sort.name)).transpose()?,
    };
    let sequence = SequenceNumber(number.to_smolstr());
    Ok(Change { sequence, at: from_unix_millis(at), key, old, new, expired })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::codec::encode_item;

    #[test]
    fn changes_are_read_as_they_were_put_together() {
        let item = |text: &str| Item::new().with("id", "a").with("n", 300u64).with("text", text);
        let (old, new) = (item("before"), item(&"after".repeat(100)));
        let changes = [(None, Some(&new)), (Some(&old), Some(&new)), (Some(&new), None)];
        let encoded = |item: &Item| encode_item(item, item.size());
        let mut shard_bytes = Vec::new();
        for (old, new) in changes {
            let (old, new) = (old.map(encoded), new.map(encoded));
            let raw =
                RawChange { at: 1 << 40, old: old.as_deref(), new: new.as_deref(), expired: new.is_none() };
            raw.write(&mut shard_bytes);
        }
        let mut entry = Vec::new();
        push_number(changes.len() as u64, &mut entry);
        entry.extend_from_slice(&shard_bytes);
        let read = decode(&entry).unwrap();
        assert_eq!(read.len(), changes.len());
        for (read, (old, new)) in read.into_iter().zip(changes) {
            assert_eq!((read.at, read.expired), (1 << 40, new.is_none()));
            assert_eq!((read.old.as_ref(), read.new.as_ref()), (old, new));
        }
    }
}
