//! Items and the values of their attributes: DynamoDB's data model, which the embedded engine shares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use super::number::Number;

/// An attribute, table or index name. Short ones, and those known at compile time, take no allocation.
pub type Name = SmolStr;

/// A text that is written once. Copies share it, from a record through its item to the disk and back.
pub type Text = SmolStr;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    Text(Text),
    Number(Number),
    Bytes(Bytes),
    Bool(bool),
    Null,
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
    TextSet(BTreeSet<String>),
    NumberSet(BTreeSet<Number>),
    BytesSet(BTreeSet<Bytes>),
}

impl Value {
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<Number> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(bool) => Some(*bool),
            _ => None,
        }
    }

    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Number(_) => "number",
            Self::Bytes(_) => "bytes",
            Self::Bool(_) => "bool",
            Self::Null => "null",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::TextSet(_) => "text set",
            Self::NumberSet(_) => "number set",
            Self::BytesSet(_) => "bytes set",
        }
    }

    /// Whether it is or holds a set without members, which cannot be stored.
    pub fn has_empty_set(&self) -> bool {
        match self {
            Self::TextSet(set) => set.is_empty(),
            Self::NumberSet(set) => set.is_empty(),
            Self::BytesSet(set) => set.is_empty(),
            Self::List(values) => values.iter().any(Self::has_empty_set),
            Self::Map(values) => values.values().any(Self::has_empty_set),
            Self::Text(_) | Self::Number(_) | Self::Bytes(_) | Self::Bool(_) | Self::Null => false,
        }
    }

    /// The size DynamoDB would charge for it, closely enough for its limits.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(number) => number.text_len() / 2 + 2,
            Self::Bytes(bytes) => bytes.len(),
            Self::Bool(_) | Self::Null => 1,
            Self::List(values) => 3 + values.iter().map(|value| value.size() + 1).sum::<usize>(),
            Self::Map(values) => {
                3 + values.iter().map(|(name, value)| name.len() + value.size() + 1).sum::<usize>()
            }
            Self::TextSet(set) => set.iter().map(String::len).sum(),
            Self::NumberSet(set) => set.iter().map(|number| number.text_len() / 2 + 2).sum(),
            Self::BytesSet(set) => set.iter().map(Bytes::len).sum(),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<&Text> for Value {
    fn from(text: &Text) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<bool> for Value {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        Self::Number(number)
    }
}

macro_rules! value_from_integer {
    ($($integer:ty),*) => { $(
        impl From<$integer> for Value {
            fn from(integer: $integer) -> Self {
                Self::Number(Number::from(integer))
            }
        }
    )* };
}
value_from_integer!(i32, u32, i64, u64);

/// One row of a table: attributes by name.
///
/// A handful of them in the order of their names, in one piece of memory: made, read and freed for every row, so a tree
/// would cost more than it saves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item(Vec<(Name, Value)>);

/// Room for the attributes of most rows.
const USUAL_ATTRIBUTES: usize = 8;

impl Item {
    pub fn new() -> Self {
        Self::default()
    }

    /// The item with one more attribute, for building one in an expression.
    #[must_use]
    pub fn with(mut self, name: impl Into<Name>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Like [`with`](Self::with), where the attribute may be absent.
    #[must_use]
    pub fn with_some(self, name: impl Into<Name>, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Where an attribute is, or where it would be.
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(name))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }

    pub fn u64(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    pub fn set(&mut self, name: impl Into<Name>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        if self.0.is_empty() {
            self.0.reserve(USUAL_ATTRIBUTES);
        }
        match self.find(&name) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (name, value)),
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.find(name).ok().map(|at| self.0.remove(at).1)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Value)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// What counts towards DynamoDB's limit of 400 KB.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.size()).sum()
    }
}

/// Of two attributes of one name the later counts.
impl FromIterator<(Name, Value)> for Item {
    fn from_iter<T: IntoIterator<Item = (Name, Value)>>(attributes: T) -> Self {
        let mut attributes: Vec<_> = attributes.into_iter().collect();
        if !attributes.is_sorted_by(|(a, _), (b, _)| a < b) {
            attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
            attributes.dedup_by(|later, earlier| {
                let same = later.0 == earlier.0;
                if same {
                    std::mem::swap(later, earlier);
                }
                same
            });
        }
        Self(attributes)
    }
}

impl IntoIterator for Item {
    type Item = (Name, Value);
    type IntoIter = std::vec::IntoIter<(Name, Value)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Attributes;

        impl<'de> Visitor<'de> for Attributes {
            type Value = Item;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("attributes by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
                // what is damaged may announce anything
                const MOST_EXPECTED: usize = 64;
                let mut attributes = Vec::with_capacity(map.size_hint().unwrap_or(0).min(MOST_EXPECTED));
                while let Some(attribute) = map.next_entry()? {
                    attributes.push(attribute);
                }
                Ok(attributes.into_iter().collect())
            }
        }

        deserializer.deserialize_map(Attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attributes() -> impl Strategy<Value = Vec<(String, u64)>> {
        proptest::collection::vec(("[a-d]{0,2}", 0u64..5), 0..12)
    }

    proptest! {
        #[test]
        fn an_item_is_a_map(attributes in attributes(), removed in "[a-d]{0,2}") {
            let mut map: BTreeMap<Name, Value> = BTreeMap::new();
            let mut set = Item::new();
            for (name, value) in &attributes {
                map.insert(name.into(), (*value).into());
                set.set(name.as_str(), *value);
            }
            let collected: Item = attributes.iter().map(|(name, value)| (name.into(), (*value).into())).collect();
            prop_assert_eq!(&collected, &set);
            prop_assert_eq!(set.remove(&removed), map.remove(removed.as_str()));
            prop_assert!(set.iter().eq(map.iter()));
            prop_assert!(map.iter().all(|(name, value)| set.get(name) == Some(value)));
            // what is on disk stays readable, both ways
            let bytes = postcard::to_allocvec(&set).unwrap();
            prop_assert_eq!(&bytes, &postcard::to_allocvec(&map).unwrap());
            prop_assert_eq!(postcard::from_bytes::<Item>(&bytes).unwrap(), set);
        }
    }
}
