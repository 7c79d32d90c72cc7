//! A table as the engine keeps it: rows, one keyspace per index, and what the schema asks for beside them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{Database, Keyspace, Slice};
use serde::{Deserialize, Serialize};

use super::super::group::Group;
use super::super::shared::open_keyspace;
use super::super::space::{IndexSpace, TableSpace};
use super::changes::{Numbering, RawChange, Trimmed, Wakes};
use super::encoding::{check_key, index_key};
use crate::store::codec::{decode_item, encode_item};
use crate::store::{
    IndexSchema, Item, MAX_ITEM_BYTES, MAX_PARTITION_KEY_BYTES, Name, Projection, Result, StoreError, Stream,
    TableSchema,
};

/// A table in the catalog. The number names its keyspaces, so that a table dropped and made anew starts empty.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::embedded) struct TableEntry {
    pub(super) number: u32,
    pub(super) schema: TableSchema,
}

pub(in crate::embedded) struct Table {
    pub(super) number: u32,
    pub(super) schema: TableSchema,
    pub(super) rows: Keyspace,
    pub(super) indexes: Vec<Index>,
    /// By the second at which rows end, for the sweeper.
    pub(super) expiry: Option<Keyspace>,
    pub(super) changes: Option<Keyspace>,
    pub(super) wakes: Wakes,
    pub(super) trimmed: Trimmed,
    pub(super) numbering: Arc<Numbering>,
    /// Set by the committer, which then refuses what was on its way.
    pub(super) dropped: AtomicBool,
}

pub(super) struct Index {
    pub(super) schema: IndexSchema,
    pub(super) rows: Keyspace,
}

/// A row that is there.
pub(super) struct StoredRow {
    pub(super) bytes: Slice,
    pub(super) item: Item,
}

/// A row that will be there.
pub(super) struct NewRow<'a> {
    pub(super) encoded: Vec<u8>,
    /// Absent where nobody looks at it, see [`Table::looks_at_items`].
    pub(super) item: Option<&'a Item>,
}

/// A change to one row, decided and not yet written.
pub(super) struct RowChange<'a> {
    pub(super) row: Vec<u8>,
    pub(super) old: Option<&'a StoredRow>,
    pub(super) new: Option<NewRow<'a>>,
    pub(super) expired: bool,
}

impl Table {
    pub(super) fn open(
        database: &Database,
        entry: &TableEntry,
        numbering: &Arc<Numbering>,
    ) -> std::result::Result<Self, fjall::Error> {
        let TableEntry { number, schema } = entry;
        let keyspace = |what: &str| open_keyspace(database, &format!("table{number}.{what}"));
        let indexes = schema.indexes.iter().enumerate().map(|(position, index)| {
            Ok(Index { schema: index.clone(), rows: keyspace(&format!("index{position}"))? })
        });
        Ok(Self {
            number: *number,
            schema: schema.clone(),
            rows: keyspace("rows")?,
            indexes: indexes.collect::<std::result::Result<_, fjall::Error>>()?,
            expiry: schema.ttl.as_ref().map(|_| keyspace("expiry")).transpose()?,
            changes: (schema.stream == Stream::OldAndNewImages).then(|| keyspace("changes")).transpose()?,
            wakes: Wakes::default(),
            trimmed: numbering.trimmed(*number)?,
            numbering: Arc::clone(numbering),
            dropped: AtomicBool::new(false),
        })
    }

    pub(in crate::embedded) fn name(&self) -> &Name {
        &self.schema.name
    }

    pub(in crate::embedded) fn keyspaces(&self) -> impl Iterator<Item = &Keyspace> {
        let indexes = self.indexes.iter().map(|index| &index.rows);
        std::iter::once(&self.rows).chain(indexes).chain(&self.expiry).chain(&self.changes)
    }

    pub(in crate::embedded) fn space(&self) -> TableSpace {
        let bytes_of = |keyspace: &Option<Keyspace>| keyspace.as_ref().map_or(0, Keyspace::disk_space);
        let indexes = self
            .indexes
            .iter()
            .map(|index| IndexSpace { name: index.schema.name.to_string(), bytes: index.rows.disk_space() });
        TableSpace {
            name: self.schema.name.to_string(),
            rows_at_most: self.rows.approximate_len() as u64,
            rows_bytes: self.rows.disk_space(),
            indexes: indexes.collect(),
            expiry_bytes: bytes_of(&self.expiry),
            changes_bytes: bytes_of(&self.changes),
        }
    }

    pub(super) fn index(&self, name: &Name) -> Result<&Index> {
        let found = self.indexes.iter().find(|index| index.schema.name == *name);
        found.ok_or_else(|| StoreError::NoSuchIndex { table: self.schema.name.clone(), index: name.clone() })
    }

    pub(super) fn check_exists(&self) -> Result<()> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(StoreError::NoSuchTable { table: self.schema.name.clone() });
        }
        Ok(())
    }

    /// That an item may be stored here, and its size. Its row key was checked when it was made.
    pub(super) fn check_item(&self, item: &Item) -> Result<usize> {
        let (table, size) = (&self.schema.name, item.size());
        if size > MAX_ITEM_BYTES {
            return Err(StoreError::Invalid(format!(
                "an item for table '{table}' is {size} bytes, over the limit of {MAX_ITEM_BYTES}"
            )));
        }
        if let Some((name, _)) = item.iter().find(|(_, value)| value.has_empty_set()) {
            return Err(StoreError::Invalid(format!(
                "attribute '{name}' of an item for table '{table}' is an empty set"
            )));
        }
        for index in &self.indexes {
            for attribute in std::iter::once(&index.schema.partition).chain(&index.schema.sort) {
                if let Some(value) = item.get(&attribute.name) {
                    check_key(table, attribute, value, MAX_PARTITION_KEY_BYTES)?;
                }
            }
        }
        Ok(size)
    }

    /// Whether writing a row needs to know what was there.
    pub(super) fn needs_old_rows(&self) -> bool {
        !self.indexes.is_empty() || self.expiry.is_some() || self.changes.is_some()
    }

    /// The row as the group will leave it.
    pub(super) fn stored_row(&self, group: &Group, row: &[u8]) -> Result<Option<StoredRow>> {
        let Some(bytes) = group.get(&self.rows, row).map_err(super::read_error)? else { return Ok(None) };
        let item = decode_item(&bytes)?;
        Ok(Some(StoredRow { bytes, item }))
    }

    /// Whether writing a row needs more of the new item than its bytes.
    pub(super) fn looks_at_items(&self) -> bool {
        !self.indexes.is_empty() || self.expiry.is_some()
    }

    /// Adds to the group everything that a change of this row means.
    pub(super) fn change_row(&self, group: &mut Group, change: RowChange<'_>) {
        let RowChange { row, old, new, expired } = change;
        let (old_bytes, new_bytes) = (old.map(|old| &*old.bytes), new.as_ref().map(|new| &*new.encoded));
        if old_bytes != new_bytes {
            let (before, after) = (old.map(|old| &old.item), new.as_ref().and_then(|new| new.item));
            for index in &self.indexes {
                self.change_index(group, index, &row, before, after);
            }
            self.change_end(group, &row, before, after);
            if self.changes.is_some() {
                let change = RawChange { at: group.now, old: old_bytes, new: new_bytes, expired };
                group.changes.push(self, &row, &change);
            }
        }
        match new {
            Some(new) => group.put(&self.rows, row, new.encoded),
            None => group.remove(&self.rows, row),
        }
    }

    fn change_end(&self, group: &mut Group, row: &[u8], old: Option<&Item>, new: Option<&Item>) {
        let Some(expiry) = &self.expiry else { return };
        let end_of = |item: Option<&Item>| item?.u64(self.schema.ttl.as_ref()?);
        let (before, after) = (end_of(old), end_of(new));
        if before != after {
            if let Some(before) = before {
                group.remove(expiry, expiry_key(before, row));
            }
            if let Some(after) = after {
                group.put(expiry, expiry_key(after, row), []);
            }
        }
    }

    fn change_index(
        &self,
        group: &mut Group,
        index: &Index,
        row: &[u8],
        old: Option<&Item>,
        new: Option<&Item>,
    ) {
        let before = old.and_then(|item| index_key(&index.schema, item, row));
        let after = new.and_then(|item| Some((index_key(&index.schema, item, row)?, item)));
        if let Some(before) = before
            && after.as_ref().is_none_or(|(key, _)| *key != before)
        {
            group.remove(&index.rows, before);
        }
        if let Some((key, item)) = after {
            let projected = self.projected(&index.schema, item);
            group.put(&index.rows, key, encode_item(&projected, projected.size()));
        }
    }

    pub(super) fn projected<'a>(&self, index: &IndexSchema, item: &'a Item) -> Cow<'a, Item> {
        match index.projection {
            Projection::All => Cow::Borrowed(item),
            Projection::KeysOnly => {
                // with the end of the item, so that an ended one is hidden here too
                let names = self.schema.key_names(Some(index)).chain(&self.schema.ttl);
                let attributes = names.filter_map(|name| Some((name.clone(), item.get(name)?.clone())));
                Cow::Owned(attributes.collect())
            }
        }
    }

    /// Rows that have ended by this second, oldest first: their keys and ends.
    pub(super) fn ended_rows(&self, now: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let Some(expiry) = &self.expiry else { return Ok(Vec::new()) };
        let ended = expiry.range(..expiry_key(now + 1, &[])).take(limit);
        ended
            .map(|guard| {
                let key = guard.key().map_err(super::read_error)?;
                let (end, row) = key.split_at(size_of::<u64>());
                Ok((u64::from_be_bytes(end.try_into().expect("eight bytes")), row.to_vec()))
            })
            .collect()
    }

    pub(super) fn forget_end(&self, group: &mut Group, end: u64, row: &[u8]) {
        if let Some(expiry) = &self.expiry {
            group.remove(expiry, expiry_key(end, row));
        }
    }
}

pub(super) fn expiry_key(end: u64, row: &[u8]) -> Vec<u8> {
    [&end.to_be_bytes()[..], row].concat()
}
