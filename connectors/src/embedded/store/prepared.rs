//! A write made ready by its caller, so that the committer has little left to do: decide it and carry it out.

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::Xxh3;

use super::super::Engine;
use super::super::group::Group;
use super::encoding::{row_key, row_key_of};
use super::table::{NewRow, RowChange, StoredRow, Table};
use crate::store::codec::encode_item;
use crate::store::{
    Condition, Item, Key, MAX_TRANSACTION_BYTES, Name, Result, Returning, StoreError, Update, Write,
};

/// A write whose row is named and whose item is encoded, so that the committer has little left to do.
pub(super) struct Prepared {
    table: Arc<Table>,
    row: Vec<u8>,
    action: Action,
    condition: Option<Condition>,
}

enum Action {
    Put {
        encoded: Vec<u8>,
        /// As its table's limits count.
        size: usize,
        /// Only for tables that look at it: it is freed where it was made otherwise.
        item: Option<Item>,
    },
    Update {
        key: Key,
        update: Update,
    },
    Delete,
    Check,
}

/// What a write would do, decided against the group so far.
#[derive(Default)]
pub(super) struct Decision {
    /// As it is on disk, whether or not its time has come.
    stored: Option<StoredRow>,
    /// Whether callers see it.
    is_visible: bool,
    /// The item after an update.
    updated: Option<Item>,
}

impl Prepared {
    pub(super) fn new(engine: &Engine, write: Write) -> Result<Self> {
        let table = engine.table(write.table())?;
        Ok(match write {
            Write::Put { item, condition, .. } => Self::put(table, item, condition)?,
            Write::Update { key, update, condition, .. } => Self {
                row: checked_row(&table, &key)?,
                table,
                action: Action::Update { key, update },
                condition,
            },
            Write::Delete { key, condition, .. } => {
                Self { row: checked_row(&table, &key)?, table, action: Action::Delete, condition }
            }
            Write::Check { key, condition, .. } => Self {
                row: checked_row(&table, &key)?,
                table,
                action: Action::Check,
                condition: Some(condition),
            },
        })
    }

    pub(super) fn put(table: Arc<Table>, item: Item, condition: Option<Condition>) -> Result<Self> {
        let row = row_key(&table.schema, &item)?;
        let size = table.check_item(&item)?;
        let encoded = encode_item(&item, size);
        let item = table.looks_at_items().then_some(item);
        Ok(Self { table, row, action: Action::Put { encoded, size, item }, condition })
    }

    pub(super) fn bytes(&self) -> usize {
        let body = match &self.action {
            Action::Put { encoded, .. } => 2 * encoded.len(),
            // with what it changes it can be much more, which only deciding it tells
            Action::Update { update, .. } => 2 * update.size(),
            Action::Delete | Action::Check => 0,
        };
        128 + self.row.len() + body
    }

    /// Whether it can be done, and what it meets. Changes nothing.
    pub(super) fn decide(&self, group: &Group, returning: Returning) -> Result<Decision> {
        self.table.check_exists()?;
        let blind = matches!(self.action, Action::Put { .. } | Action::Delete)
            && self.condition.is_none()
            && returning == Returning::Nothing
            && !self.table.needs_old_rows();
        if blind {
            return Ok(Decision::default());
        }
        let stored = self.table.stored_row(group, &self.row)?;
        let now = Duration::from_millis(group.now);
        let visible = stored.as_ref().map(|stored| &stored.item);
        let visible = visible.filter(|item| !self.table.schema.has_ended(item, now));
        if let Some(condition) = &self.condition
            && !condition.holds(visible)
        {
            return Err(StoreError::ConditionFailed { current: visible.cloned().map(Box::new) });
        }
        let updated = match &self.action {
            Action::Update { key, update } => Some(self.updated(key, update, visible)?),
            Action::Put { .. } | Action::Delete | Action::Check => None,
        };
        Ok(Decision { is_visible: visible.is_some(), stored, updated })
    }

    fn updated(&self, key: &Key, update: &Update, before: Option<&Item>) -> Result<Item> {
        let schema = &self.table.schema;
        let keys = [Some(&schema.partition), schema.sort.as_ref()];
        let touches_key = |name| keys.iter().flatten().any(|key| key.name == name);
        if let Some(action) = update.actions().iter().find(|action| touches_key(action.attribute().as_str()))
        {
            return Err(StoreError::Invalid(format!(
                "the key attribute '{}' cannot be updated",
                action.attribute()
            )));
        }
        let before = before.cloned().unwrap_or_else(|| key.clone().into_item());
        let item = update.apply(before).map_err(StoreError::Invalid)?;
        self.table.check_item(&item)?;
        Ok(item)
    }

    /// Makes the change, and tells what the caller asked to know. Nothing is left of the write afterwards.
    pub(super) fn carry_out(
        &mut self,
        group: &mut Group,
        decision: Decision,
        returning: Returning,
    ) -> Option<Item> {
        let Decision { stored, is_visible, updated } = decision;
        let new = match &mut self.action {
            Action::Put { encoded, item, .. } => {
                Some(NewRow { encoded: std::mem::take(encoded), item: item.as_ref() })
            }
            Action::Update { .. } => {
                let item = updated.as_ref();
                item.map(|item| NewRow { encoded: encode_item(item, item.size()), item: Some(item) })
            }
            Action::Delete => None,
            Action::Check => return None,
        };
        if new.is_some() || stored.is_some() || !self.table.needs_old_rows() {
            let row = std::mem::take(&mut self.row);
            self.table.change_row(group, RowChange { row, old: stored.as_ref(), new, expired: false });
        }
        match (returning, &self.action) {
            (Returning::Old, _) => stored.filter(|_| is_visible).map(|stored| stored.item),
            (Returning::New, Action::Update { .. }) => updated,
            (Returning::UpdatedNew, Action::Update { update, .. }) => {
                updated.map(|item| update.touched(&item))
            }
            _ => None,
        }
    }
}

pub(super) fn checked_row(table: &Table, key: &Key) -> Result<Vec<u8>> {
    let named = 1 + usize::from(key.sort.is_some());
    let schema = &table.schema;
    if named != 1 + usize::from(schema.sort.is_some()) {
        return Err(StoreError::Invalid(format!(
            "a key of table '{}' names exactly its key attributes",
            schema.name
        )));
    }
    let value = |name: &Name| {
        let (partition, value) = &key.partition;
        let sort = key.sort.as_ref().filter(|(sort, _)| sort == name).map(|(_, value)| value);
        if partition == name { Some(value) } else { sort }
    };
    row_key_of(schema, value)
}

/// That the writes can stand in one transaction.
pub(super) fn check_transaction(prepared: &[Prepared]) -> Result<()> {
    let mut rows = FxHashSet::default();
    if !prepared.iter().all(|write| rows.insert((write.table.number, &write.row))) {
        return Err(StoreError::Invalid("a transaction cannot touch the same item twice".to_owned()));
    }
    let bytes: usize = prepared
        .iter()
        .map(|write| match &write.action {
            Action::Put { size, .. } => *size,
            Action::Update { .. } | Action::Delete | Action::Check => 0,
        })
        .sum();
    if bytes > MAX_TRANSACTION_BYTES {
        return Err(StoreError::Invalid(format!(
            "a transaction of {bytes} bytes is over the limit of {MAX_TRANSACTION_BYTES}"
        )));
    }
    Ok(())
}

/// What the writes do, from what is encoded of them already.
pub(super) fn digest(prepared: &[Prepared]) -> u128 {
    let mut hash = Xxh3::new();
    let mut add = |bytes: &[u8]| {
        hash.update(&bytes.len().to_le_bytes());
        hash.update(bytes);
    };
    let encoded = |update| postcard::to_allocvec(update).expect("an update can always be written to memory");
    for Prepared { table, row, action, condition } in prepared {
        add(table.name().as_bytes());
        add(row);
        match action {
            Action::Put { encoded, .. } => [b"put", &encoded[..]].into_iter().for_each(&mut add),
            Action::Update { update, .. } => {
                [b"update", &encoded(update)[..]].into_iter().for_each(&mut add);
            }
            Action::Delete => add(b"delete"),
            Action::Check => add(b"check"),
        }
        let condition = postcard::to_allocvec(condition);
        add(&condition.expect("a condition can always be written to memory"));
    }
    hash.digest128()
}
