//! What a table is: its keys, its indexes and how it is kept. Made by the data model, given to `create_table`.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value::{Item, Name, Value};
use super::{PackedItem, Result};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSchema {
    pub name: Name,
    pub partition: KeyAttribute,
    pub sort: Option<KeyAttribute>,
    pub indexes: Cow<'static, [IndexSchema]>,
    /// The attribute with the second since 1970 at which an item ends. Ended items are never returned, whether or
    /// not they have been removed yet.
    pub ttl: Option<Name>,
    /// Whether changes can be read as a stream.
    pub stream: Stream,
    pub capacity: Capacity,
    pub point_in_time_recovery: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyAttribute {
    pub name: Name,
    pub kind: KeyKind,
}

impl KeyAttribute {
    pub const fn text(name: &'static str) -> Self {
        Self { name: Name::new_static(name), kind: KeyKind::Text }
    }

    pub const fn number(name: &'static str) -> Self {
        Self { name: Name::new_static(name), kind: KeyKind::Number }
    }

    pub const fn bytes(name: &'static str) -> Self {
        Self { name: Name::new_static(name), kind: KeyKind::Bytes }
    }
}

/// The kinds of value a key can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyKind {
    Text,
    Number,
    Bytes,
}

impl KeyKind {
    pub fn fits(self, value: &Value) -> bool {
        matches!(
            (self, value),
            (Self::Text, Value::Text(_)) | (Self::Number, Value::Number(_)) | (Self::Bytes, Value::Bytes(_))
        )
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "number",
            Self::Bytes => "bytes",
        }
    }
}

/// A global secondary index: the same items by other keys. Items without those attributes are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexSchema {
    pub name: Name,
    pub partition: KeyAttribute,
    pub sort: Option<KeyAttribute>,
    pub projection: Projection,
}

/// What an index holds of its items beside the keys of table and index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Projection {
    All,
    KeysOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    Off,
    /// With the item before and after each change.
    OldAndNewImages,
}

/// Meaningful on AWS only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Capacity {
    OnDemand,
    Provisioned { read_units: u32, write_units: u32 },
}

impl TableSchema {
    pub fn index(&self, name: &str) -> Option<&IndexSchema> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// Whether an item has ended at this time since 1970.
    pub fn has_ended(&self, item: &Item, now: Duration) -> bool {
        let end = self.ttl.as_ref().and_then(|ttl| item.u64(ttl));
        end.is_some_and(|end| end <= now.as_secs())
    }

    /// The same of one that is packed.
    pub(crate) fn has_packed_ended(&self, item: &PackedItem, now: Duration) -> Result<bool> {
        let Some(ttl) = &self.ttl else { return Ok(false) };
        let end = item.get(ttl)?.and_then(|end| end.as_u64());
        Ok(end.is_some_and(|end| end <= now.as_secs()))
    }

    /// The attributes that name an item, for the table and for one of its indexes.
    pub fn key_names<'a>(&'a self, index: Option<&'a IndexSchema>) -> impl Iterator<Item = &'a Name> {
        let of_index =
            index.into_iter().flat_map(|index| std::iter::once(&index.partition).chain(&index.sort));
        std::iter::once(&self.partition).chain(&self.sort).chain(of_index).map(|attribute| &attribute.name)
    }
}
