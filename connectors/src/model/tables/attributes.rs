//! Reading a record's attributes from an item, with an error that finds the item again if one of them is not what
//! it should be: table, keys, attribute.

use super::Listing;
use crate::model::Timestamp;
use crate::store::{Item, Page, Result, StoreError, TableSchema, Text, Value};

/// An item of a table that the model describes.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    schema: &'static TableSchema,
    item: &'a Item,
}

impl<'a> Attributes<'a> {
    pub(super) fn of(schema: &'static TableSchema, item: &'a Item) -> Self {
        Self { schema, item }
    }

    pub(super) fn text(self, name: &str) -> Result<&'a str> {
        let value = self.value(name)?;
        value.as_text().ok_or_else(|| self.other_kind(name, value, "text"))
    }

    /// An id, or anything else that any text is.
    pub(super) fn id<T: From<Text>>(self, name: &str) -> Result<T> {
        match self.value(name)? {
            Value::Text(text) => Ok(text.clone().into()),
            other => Err(self.other_kind(name, other, "text")),
        }
    }

    /// One of a few words.
    pub(super) fn word<T>(self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
        let text = self.text(name)?;
        parse(text).ok_or_else(|| self.damaged(&format!("'{name}' is '{text}', which has no meaning")))
    }

    /// A list of nothing but text.
    pub(super) fn texts(self, name: &str) -> Result<Vec<String>> {
        let value = self.value(name)?;
        let Value::List(values) = value else { return Err(self.other_kind(name, value, "a list")) };
        let text = |value: &Value| match value {
            Value::Text(text) => Ok(text.to_string()),
            other => Err(self.other_kind(name, other, "a list of text")),
        };
        values.iter().map(text).collect()
    }

    pub(super) fn u64(self, name: &str) -> Result<u64> {
        let value = self.value(name)?;
        value.as_u64().ok_or_else(|| self.other_kind(name, value, "a whole number from zero up"))
    }

    pub(super) fn bool(self, name: &str) -> Result<bool> {
        let value = self.value(name)?;
        value.as_bool().ok_or_else(|| self.other_kind(name, value, "true or false"))
    }

    pub(super) fn time(self, name: &str) -> Result<Timestamp> {
        self.text(name)?.parse().map_err(|error| self.damaged(&format!("'{name}': {error}")))
    }

    /// Reads an attribute that may be absent; others may write that as null.
    pub(super) fn optional<T>(self, name: &str, read: impl Fn(Self, &str) -> Result<T>) -> Result<Option<T>> {
        match self.item.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => read(self, name).map(Some),
        }
    }

    fn value(self, name: &str) -> Result<&'a Value> {
        self.item.get(name).ok_or_else(|| self.damaged(&format!("'{name}' is missing")))
    }

    fn other_kind(self, name: &str, value: &Value, expected: &str) -> StoreError {
        self.damaged(&format!("'{name}' is {} and not {expected}", value.kind()))
    }

    pub(super) fn damaged(self, what: &str) -> StoreError {
        let keys = self.schema.key_names(None).map(|name| match self.item.get(name) {
            Some(Value::Text(text)) => format!("{name} '{text}'"),
            Some(Value::Number(number)) => format!("{name} {number}"),
            _ => format!("no {name}"),
        });
        let keys = keys.collect::<Vec<_>>().join(", ");
        let table = &self.schema.name;
        StoreError::DamagedItem(format!("item of table '{table}' with {keys}: {what}; correct or remove it"))
    }
}

/// A page of records; the cursor is the one attribute of the page's end that the caller does not know already.
pub(super) fn listing<T, C>(
    schema: &'static TableSchema,
    page: Page,
    record: impl Fn(&Item) -> Result<T>,
    cursor: impl FnOnce(Attributes<'_>) -> Result<C>,
) -> Result<Listing<T, C>> {
    let items = page.items.iter().map(record).collect::<Result<_>>()?;
    let next = page.next.map(|token| cursor(Attributes::of(schema, &token.0))).transpose()?;
    Ok(Listing { items, next })
}
