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
use smol_str::format_smolstr;
use tokio::sync::watch;

use super::super::Engine;
use super::super::group::Group;
use super::super::spare::SpareBuffers;
use super::encoding::shard_of;
use super::shard::Reader;
use super::table::Table;
use super::{damaged, read_error};
use crate::store::codec::{push_number, take_item, take_number};
use crate::store::{ChangeStream, Item, Name, Result, Shard, ShardId, ShardReader, ShardStart, StoreError};

/// Enough for as many workers on one table; more would make the entries of a group smaller.
const SHARDS: u8 = 4;
/// The highest number given, in the catalog's keyspace.
const LAST_NUMBER: &[u8] = b"last-change";

/// A change as it is read. It is written from items that are encoded already, see [`RawChange`].
#[derive(Debug, Clone)]
pub(super) struct StoredChange {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) old: Option<Item>,
    pub(super) new: Option<Item>,
    pub(super) expired: bool,
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
    pub(super) fn take(rest: &mut &[u8]) -> Result<Self> {
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
    /// Of all that are pending.
    bytes: usize,
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

    /// What was removed of a table's stream so far.
    pub(super) fn trimmed(&self, table: u32) -> std::result::Result<Trimmed, fjall::Error> {
        let mut trimmed = Trimmed::default();
        for (shard, to) in (0..SHARDS).zip(&mut trimmed.0) {
            *to = number(self.catalog.get(trim_key(table, shard))?).into();
        }
        Ok(trimmed)
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
        let before = shard.bytes.len();
        change.write(&mut shard.bytes);
        shard.count += 1;
        self.bytes += shard.bytes.len() - before;
    }

    pub(in crate::embedded) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Turns the group's changes into writes. Only the committer numbers changes, so nothing comes in between.
    pub(in crate::embedded) fn write(group: &mut Group) {
        let Some(numbering) = group.changes.numbering.take() else { return };
        group.changes.bytes = 0;
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
    pub(super) fn of(&self, shard: u8) -> &watch::Sender<()> {
        &self.0[usize::from(shard)]
    }
}

/// The highest number of each shard that was removed because of its age. In memory what the catalog has on disk, since
/// every read of a stream looks at it.
#[derive(Default)]
pub(super) struct Trimmed([AtomicU64; SHARDS as usize]);

impl Trimmed {
    fn to(&self, shard: u8) -> &AtomicU64 {
        &self.0[usize::from(shard)]
    }
}

fn trim_key(table: u32, shard: u8) -> Vec<u8> {
    format!("trimmed/{table}/{shard}").into_bytes()
}

pub(super) fn entry_key(shard: u8, first: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(9);
    key.push(shard);
    key.extend_from_slice(&first.to_be_bytes());
    key
}

pub(super) fn first_number(key: &[u8]) -> Result<u64> {
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
            ShardStart::Oldest => table.trimmed_to(shard),
            ShardStart::Latest => table.numbering.last_seen(&self.shared.moment())?,
            ShardStart::After(number) => {
                let after = number.0.parse().map_err(|_| {
                    StoreError::Invalid(format!("'{}' is no place in a change stream", number.0))
                })?;
                table.check_kept(shard, after)?;
                after
            }
        };
        Ok(Box::new(Reader::new(Arc::clone(&self.shared), table, changes, shard, after)))
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
}

impl Table {
    fn trimmed_to(&self, shard: u8) -> u64 {
        self.trimmed.to(shard).load(Ordering::Acquire)
    }

    /// That nothing behind this number was removed. A removal is noted before anybody sees it, so who has a moment
    /// already, and asks then, misses nothing in it.
    pub(super) fn check_kept(&self, shard: u8, after: u64) -> Result<()> {
        if after < self.trimmed_to(shard) {
            return Err(StoreError::Trimmed { table: self.name().clone(), position: after.to_string() });
        }
        Ok(())
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
                group.put(catalog, trim_key(self.number, shard), trimmed_to.to_be_bytes().to_vec());
                // before it is gone, so that a reader that misses it finds out why
                self.trimmed.to(shard).store(trimmed_to, Ordering::Release);
            }
        }
        Ok(removed)
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
