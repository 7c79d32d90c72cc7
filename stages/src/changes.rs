//! Changes of a table, as records: typed for the stages that know tables, plain JSON for all others.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use courant_connectors::model::Timestamp;
use courant_connectors::store::{Item, Key, Name, Number, Value};
use courant_pipeline::spec::RecordKind;
use courant_pipeline::{DecodeError, Native};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// A change of an item, with the item before and after it.
pub const CHANGE: RecordKind = "change";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableChange {
    pub table: Name,
    pub kind: ChangeKind,
    pub at: SystemTime,
    pub key: Item,
    pub old: Option<Item>,
    pub new: Option<Item>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Inserted,
    Modified,
    Removed,
    /// Removed because its time had come.
    Expired,
    /// As a scan found it, in place of changes that are not kept any more.
    Scanned,
}

impl TableChange {
    pub fn partition_key(key: &Key) -> String {
        match &key.partition.1 {
            Value::Text(text) => text.to_string(),
            other => to_json(other).to_string(),
        }
    }
}

/// `{"table":"messages","kind":"inserted","at":"…","key":{…},"old":null,"new":{…}}`.
#[derive(Serialize, Deserialize)]
struct Written {
    table: Name,
    kind: ChangeKind,
    at: Timestamp,
    key: BTreeMap<String, Json>,
    old: Option<BTreeMap<String, Json>>,
    new: Option<BTreeMap<String, Json>>,
}

impl Native for TableChange {
    fn to_json(&self) -> Bytes {
        let item =
            |item: &Item| item.iter().map(|(name, value)| (name.to_string(), to_json(value))).collect();
        let written = Written {
            table: self.table.clone(),
            kind: self.kind,
            at: self.at.into(),
            key: item(&self.key),
            old: self.old.as_ref().map(item),
            new: self.new.as_ref().map(item),
        };
        serde_json::to_vec(&written).map(Bytes::from).unwrap_or_default()
    }

    /// Sets and bytes come back as lists and text: JSON has neither.
    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        let read: Written =
            serde_json::from_slice(text).map_err(|error| DecodeError(format!("not a change: {error}")))?;
        let item = |item: BTreeMap<String, Json>| {
            item.into_iter().map(|(name, value)| (Name::from(name), from_json(value))).collect::<Item>()
        };
        Ok(Self {
            table: read.table,
            kind: read.kind,
            at: read.at.into(),
            key: item(read.key),
            old: read.old.map(item),
            new: read.new.map(item),
        })
    }
}

fn to_json(value: &Value) -> Json {
    let base64 = |bytes: &Bytes| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    match value {
        Value::Text(text) => text.as_str().into(),
        Value::Number(number) => number_to_json(*number),
        Value::Bytes(bytes) => base64(bytes).into(),
        Value::Bool(bool) => (*bool).into(),
        Value::Null => Json::Null,
        Value::List(values) => values.iter().map(to_json).collect(),
        Value::Map(values) => values.iter().map(|(name, value)| (name.clone(), to_json(value))).collect(),
        Value::TextSet(set) => set.iter().map(|text| Json::from(text.as_str())).collect(),
        Value::NumberSet(set) => set.iter().map(|number| number_to_json(*number)).collect(),
        Value::BytesSet(set) => set.iter().map(|bytes| Json::from(base64(bytes))).collect(),
    }
}

/// A number that JSON's readers would round is text.
fn number_to_json(number: Number) -> Json {
    let exact = number.as_u64().map(Json::from).or_else(|| number.as_i64().map(Json::from));
    let text = number.to_string();
    let is_exact = |float: &f64| float.to_string().parse() == Ok(number);
    let float = || text.parse().ok().filter(is_exact).map(Json::from);
    exact.or_else(float).unwrap_or_else(|| Json::from(text.as_str()))
}

fn from_json(value: Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(bool) => Value::Bool(bool),
        Json::Number(number) => {
            let text = number.to_string();
            text.parse::<Number>().map_or_else(|_| Value::from(&*text), Value::Number)
        }
        Json::String(text) => Value::from(text),
        Json::Array(values) => Value::List(values.into_iter().map(from_json).collect()),
        Json::Object(values) => {
            Value::Map(values.into_iter().map(|(name, value)| (name, from_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reads_back_from_its_json() {
        let headers = Value::Map([("origin".to_owned(), Value::Text("conn_1".into()))].into());
        let item =
            Item::new().with("chat_id", "chat_1").with("sequence", u64::MAX).with("event_headers", headers);
        let change = TableChange {
            table: "messages".into(),
            kind: ChangeKind::Modified,
            at: Timestamp::from_unix_millis(1_769_783_400_000).into(),
            key: Item::new().with("chat_id", "chat_1").with("sequence", u64::MAX),
            old: Some(Item::new().with("price", "0.1".parse::<Number>().unwrap()).with("open", true)),
            new: Some(item),
        };
        let text = change.to_json();
        let json: Json = serde_json::from_slice(&text).unwrap();
        assert_eq!((&json["kind"], &json["new"]["sequence"]), (&"modified".into(), &u64::MAX.into()));
        assert_eq!(json["old"]["price"], 0.1);
        assert_eq!(TableChange::from_json(&text).unwrap(), change);
    }
}
