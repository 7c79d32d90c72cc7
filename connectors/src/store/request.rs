//! What can be asked of a store. Plain data: the same request goes to DynamoDB and to the embedded engine.

use std::ops::Bound;

use serde::Serialize;

use super::condition::Condition;
use super::update::Update;
use super::value::{Item, Name, Value};

/// The attributes that name one item, by the names the table's schema gives them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Key {
    pub partition: (Name, Value),
    pub sort: Option<(Name, Value)>,
}

impl Key {
    pub fn new(name: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self { partition: (name.into(), value.into()), sort: None }
    }

    #[must_use]
    pub fn and(mut self, name: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.sort = Some((name.into(), value.into()));
        self
    }

    pub fn into_item(self) -> Item {
        std::iter::once(self.partition).chain(self.sort).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// May miss the latest writes; half the price on AWS. The embedded engine has none that are stale.
    #[default]
    Eventual,
    Strong,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Get {
    pub table: Name,
    pub key: Key,
    pub consistency: Consistency,
}

/// Items of one partition key, in the order of the sort key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub table: Name,
    pub index: Option<Name>,
    pub partition: (Name, Value),
    pub range: Option<SortRange>,
    pub direction: Direction,
    /// Of the items looked at, so that a page may hold fewer although there are more.
    pub limit: Option<u32>,
    pub start_after: Option<PageToken>,
    /// Indexes are always eventual.
    pub consistency: Consistency,
}

impl Query {
    pub fn new(table: impl Into<Name>, partition: impl Into<Name>, value: impl Into<Value>) -> Self {
        Self {
            table: table.into(),
            index: None,
            partition: (partition.into(), value.into()),
            range: None,
            direction: Direction::Forward,
            limit: None,
            start_after: None,
            consistency: Consistency::Eventual,
        }
    }
}

/// A part of the sort keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortRange {
    pub attribute: Name,
    pub within: Within,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// At least one side is bounded.
    Bounds(Bound<Value>, Bound<Value>),
    /// Text and bytes only.
    Prefix(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    #[default]
    Forward,
    Backward,
}

/// Where a page ended: the keys of the last item looked at, which need not exist any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken(pub Item);

/// Some items and where to go on. A page may be empty and still not be the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<I = Item> {
    pub items: Vec<I>,
    pub next: Option<PageToken>,
}

impl<I> Default for Page<I> {
    fn default() -> Self {
        Self { items: Vec::new(), next: None }
    }
}

/// Everything in a table, in no useful order, split so that several readers can share the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    pub table: Name,
    pub segment: Segment,
    pub limit: Option<u32>,
    pub start_after: Option<PageToken>,
    pub consistency: Consistency,
}

/// One of `of` parts of a table; `index` counts from zero. Every item is in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub index: u32,
    pub of: u32,
}

impl Segment {
    pub const WHOLE: Self = Self { index: 0, of: 1 };
}

/// One change to one item, alone or as part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Write {
    /// Replaces the whole item.
    Put { table: Name, item: Item, condition: Option<Condition> },
    /// Changes attributes; makes the item if there is none.
    Update { table: Name, key: Key, update: Update, condition: Option<Condition> },
    /// Removing what is not there succeeds.
    Delete { table: Name, key: Key, condition: Option<Condition> },
    /// Changes nothing; in transactions only.
    Check { table: Name, key: Key, condition: Condition },
}

impl Write {
    pub fn put(table: impl Into<Name>, item: Item) -> Self {
        Self::Put { table: table.into(), item, condition: None }
    }

    pub fn update(table: impl Into<Name>, key: Key, update: Update) -> Self {
        Self::Update { table: table.into(), key, update, condition: None }
    }

    pub fn delete(table: impl Into<Name>, key: Key) -> Self {
        Self::Delete { table: table.into(), key, condition: None }
    }

    /// The same write, if this holds.
    #[must_use]
    pub fn only_if(mut self, holds: Condition) -> Self {
        match &mut self {
            Self::Put { condition, .. } | Self::Update { condition, .. } | Self::Delete { condition, .. } => {
                *condition = Some(holds);
            }
            Self::Check { condition, .. } => *condition = holds,
        }
        self
    }

    pub fn table(&self) -> &Name {
        match self {
            Self::Put { table, .. }
            | Self::Update { table, .. }
            | Self::Delete { table, .. }
            | Self::Check { table, .. } => table,
        }
    }

    pub fn condition(&self) -> Option<&Condition> {
        match self {
            Self::Put { condition, .. } | Self::Update { condition, .. } | Self::Delete { condition, .. } => {
                condition.as_ref()
            }
            Self::Check { condition, .. } => Some(condition),
        }
    }
}

/// What a single write answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Returning {
    #[default]
    Nothing,
    /// The item before the write.
    Old,
    /// The item after an update.
    New,
    /// Only what an update named, after it.
    UpdatedNew,
}

/// When a write counts as done. Only the embedded engine can do less than `Synced`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    #[default]
    Synced,
    /// Applied at once, and on disk no later than the next synced write. For what no client is told of before a
    /// synced write follows, such as an allocated sequence.
    Ordered,
}

/// A put or delete without a condition, many of which go in one call and each of which stands for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchWrite {
    Put { table: Name, item: Item },
    Delete { table: Name, key: Key },
}

impl BatchWrite {
    pub fn table(&self) -> &Name {
        match self {
            Self::Put { table, .. } | Self::Delete { table, .. } => table,
        }
    }
}

/// Up to [`MAX_TRANSACTION`](super::MAX_TRANSACTION) writes to different items, all of them or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    pub writes: Vec<Write>,
    /// The same token within ten minutes means the same transaction: it is not done twice. At most 36 characters.
    pub token: Option<String>,
}
