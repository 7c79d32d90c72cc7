//! Reading one shard of a change stream.
//!
//! An entry can hold more than one read may bring, so what is left of it is kept from one read to the next: an entry is
//! looked for and decoded once, however small the reads are.

use std::sync::Arc;

use async_trait::async_trait;
use fjall::{Keyspace, Readable as _, Slice, Snapshot};
use smol_str::ToSmolStr;
use tokio::sync::watch;

use super::super::clock::from_unix_millis;
use super::super::shared::Shared;
use super::changes::{StoredChange, entry_key, first_number};
use super::table::Table;
use super::{damaged, read_error};
use crate::store::codec::take_number;
use crate::store::{
    Change, Key, Name, Result, SequenceNumber, ShardRead, ShardReader, StoreError, TableSchema,
};

/// A read ends at about this much of items, whatever its limit in changes.
const READ_BYTES: usize = 1024 * 1024;

pub(super) struct Reader {
    shared: Arc<Shared>,
    table: Arc<Table>,
    changes: Keyspace,
    shard: u8,
    /// The last number handed out.
    after: u64,
    place: Place,
    /// The last read ended for its size.
    has_more: bool,
    woken: watch::Receiver<()>,
}

/// Where the next change is.
enum Place {
    /// In an entry that begins before it or with it: nobody has looked yet.
    Unknown,
    /// In this entry, unless it is over.
    Inside(Entry),
    /// Where the next entry begins.
    Between,
}

/// What is left of an entry.
struct Entry {
    bytes: Slice,
    /// Where the next change begins, and its number.
    position: usize,
    next: u64,
    end: u64,
}

impl Entry {
    fn open(key: &[u8], bytes: Slice) -> Result<Self> {
        let mut rest = &bytes[..];
        let count = take_number(&mut rest)?;
        let (position, first) = (bytes.len() - rest.len(), first_number(key)?);
        Ok(Self { bytes, position, next: first, end: first.saturating_add(count) })
    }

    fn is_over(&self) -> bool {
        self.next == self.end
    }

    /// Passes over what comes before this number.
    fn skip_to(&mut self, number: u64) -> Result<()> {
        while self.next < number.min(self.end) {
            self.next_stored(|_, _| Ok(()))?;
        }
        Ok(())
    }

    /// The next change, and how many bytes its items are.
    fn next(&mut self, schema: &TableSchema) -> Result<(Change, usize)> {
        let before = self.position;
        let change = self.next_stored(|number, stored| change(schema, number, stored))?;
        Ok((change, self.position - before))
    }

    /// Goes on only if nothing is wrong, so that what is wrong is never passed over.
    fn next_stored<T>(&mut self, made: impl FnOnce(u64, StoredChange) -> Result<T>) -> Result<T> {
        let mut rest = &self.bytes[self.position..];
        let made = made(self.next, StoredChange::take(&mut rest)?)?;
        self.position = self.bytes.len() - rest.len();
        self.next += 1;
        Ok(made)
    }
}

/// What one read brings.
struct Found {
    changes: Vec<Change>,
    bytes: usize,
    limit: usize,
}

impl Found {
    fn is_full(&self) -> bool {
        self.changes.len() >= self.limit || self.bytes >= READ_BYTES
    }
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        table: Arc<Table>,
        changes: Keyspace,
        shard: u8,
        after: u64,
    ) -> Self {
        let woken = table.wakes.of(shard).subscribe();
        Self { shared, table, changes, shard, after, place: Place::Unknown, has_more: false, woken }
    }

    fn read_on(&mut self, moment: &Snapshot, found: &mut Found) -> Result<()> {
        self.finish_entry(found)?;
        if found.is_full() {
            return Ok(());
        }
        let begins = self.next_entry(moment)?;
        for guard in moment.range(&self.changes, begins..=entry_key(self.shard, u64::MAX)) {
            let (key, value) = guard.into_inner().map_err(read_error)?;
            let mut entry = Entry::open(&key, value)?;
            entry.skip_to(self.after + 1)?;
            self.place = Place::Inside(entry);
            self.finish_entry(found)?;
            if found.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Takes what is left of the entry being read, or as much as there is room for.
    fn finish_entry(&mut self, found: &mut Found) -> Result<()> {
        let Place::Inside(entry) = &mut self.place else { return Ok(()) };
        while !entry.is_over() {
            if found.is_full() {
                return Ok(());
            }
            let (change, bytes) = entry.next(&self.table.schema)?;
            self.after = entry.next - 1;
            found.changes.push(change);
            found.bytes += bytes;
        }
        self.place = Place::Between;
        Ok(())
    }

    /// Where the entry is that holds the next change, or would be.
    fn next_entry(&self, moment: &Snapshot) -> Result<Vec<u8>> {
        let wanted = entry_key(self.shard, self.after + 1);
        if !matches!(self.place, Place::Unknown) {
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
        self.table.check_kept(self.shard, self.after)?;
        let mut found = Found { changes: Vec::new(), bytes: 0, limit };
        let outcome = self.read_on(&moment, &mut found);
        self.has_more = outcome.is_err() || found.is_full();
        if found.changes.is_empty() {
            outcome?;
        }
        // what came before an error is handed out, and the next read meets it again
        Ok(ShardRead::Changes(found.changes))
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    async fn wait(&mut self) {
        if !self.has_more {
            // an error means that the table is gone, which the next read tells
            let _ = self.woken.changed().await;
        }
    }
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
    use futures::FutureExt as _;
    use futures::future::try_join_all;

    use super::super::super::{Engine, Options};
    use super::*;
    use crate::model::Timestamp;
    use crate::model::tables::messages::{self, Message};
    use crate::store::{
        AdminStore as _, ChangeStream as _, Durability, Returning, ShardStart, WriteStore as _,
    };

    fn message(sequence: u64, length: usize) -> Message {
        Message {
            chat_id: "chat_1".into(),
            sequence,
            message_id: format!("msg_{sequence}").into(),
            sender_id: "user_1".into(),
            client_message_id: format!("c-{sequence}").into(),
            content: "x".repeat(length).into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
        }
    }

    async fn write(engine: &Engine, message: &Message) -> Result<()> {
        engine.write(messages::put_write(message), Returning::Nothing, Durability::Synced).await.map(drop)
    }

    /// A reader of the shard that has changes, at its beginning.
    async fn open(engine: &Engine) -> Box<dyn ShardReader> {
        let table = &messages::SCHEMA.name;
        for shard in engine.shards(table).await.unwrap() {
            let open = || engine.open_shard(table, &shard.id, ShardStart::Oldest);
            if !read(&mut open().await.unwrap(), 1).await.unwrap().is_empty() {
                return open().await.unwrap();
            }
        }
        panic!("something was written");
    }

    /// What a read brings, as sequences of messages.
    async fn read(reader: &mut Box<dyn ShardReader>, limit: usize) -> Result<Vec<u64>> {
        let ShardRead::Changes(changes) = reader.read(limit).await? else { panic!("shards do not end here") };
        Ok(changes.iter().map(|change| change.new.as_ref().unwrap().u64("sequence").unwrap()).collect())
    }

    /// Within one entry as well as over several, and without waiting for anything in between.
    #[tokio::test]
    async fn large_changes_are_read_in_several_parts() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        engine.create_table(&messages::SCHEMA).await.unwrap();
        let large: Vec<Message> = (1..=21).map(|sequence| message(sequence, 300_000)).collect();
        try_join_all(large.iter().map(|message| write(&engine, message))).await.unwrap();
        let mut reader = open(&engine).await;
        let mut all = Vec::new();
        while all.len() < large.len() {
            let part = read(&mut reader, 1000).await.unwrap();
            assert!((1..=4).contains(&part.len()), "{part:?}");
            all.extend(part);
            let is_behind = all.len() < large.len();
            assert_eq!((reader.has_more(), reader.wait().now_or_never().is_some()), (is_behind, is_behind));
        }
        assert_eq!(all, (1..=21).collect::<Vec<u64>>());
    }

    #[tokio::test]
    async fn what_is_in_front_of_damage_is_read_and_the_damage_told() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        engine.create_table(&messages::SCHEMA).await.unwrap();
        for sequence in 1..=3 {
            write(&engine, &message(sequence, 10)).await.unwrap();
        }
        let changes = engine.shared.tables()[&messages::SCHEMA.name].changes.clone().unwrap();
        let second = changes.iter().nth(1).unwrap().into_inner().unwrap();
        changes.insert(second.0, &second.1[..second.1.len() - 5]).unwrap();
        engine.shared.advance();
        let mut reader = open(&engine).await;
        assert_eq!(read(&mut reader, 10).await.unwrap(), [1]);
        for _ in 0..2 {
            let damaged = read(&mut reader, 10).await;
            assert!(matches!(damaged, Err(StoreError::Damaged(_))), "{damaged:?}");
        }
    }
}
