//! `table`: the latest of each key, kept in the pipeline's derived store.
//!
//! For what somebody wants to look up without asking the store of record: the last message of each chat, what each
//! device said last, counts by day. `courant table` shows it. The row of the higher version stays, however often and in
//! whatever order records come, so it can be rebuilt from history beside the live one (`courant replay`) and compared.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::files::keyed::{KeyedTable, Row};
use courant_connectors::model::Timestamp;
use courant_pipeline::derived::{Derived, Entry};
use courant_pipeline::spec::{BuildContext, Built, Effect, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Record, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::derived::{OpenTables, StageFolder};
use crate::host::file_error;
use crate::jq::{Expr, Json, key_from};

pub static SPEC: StageSpec = StageSpec::sink::<Config>("table", Takes::Any)
    .effect(Effect::IdempotentWrite)
    .summary("keeps the latest record of each key in a table that can be looked up and rebuilt")
    .example(
        "[[pipeline.stage]]\nkind = \"table\"\nname = \"last-message\"\nparams = { key = '.payload.chat_id', version = '.payload.sequence', at = '.payload.created_at' }\n",
    );

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The row's key, in jq on the payload: text, a number or a truth value. A record without one is left out.
    pub key: String,
    /// Which of two rows of a key stays, in jq: the one with the higher whole number, such as a sequence. The later one
    /// if left out, and then a rebuild depends on the order of its records.
    #[serde(default)]
    pub version: Option<String>,
    /// When what the record tells happened, in jq: a time such as `"2026-01-30T14:30:00Z"`, or milliseconds since 1970.
    /// A comparison leaves out what is too new to be there; without it, it has to look twice.
    #[serde(default)]
    pub at: Option<String>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut expr = |name: &str, code: &Option<String>| {
            let built = code.as_ref().map(|code| Expr::on_record(name, code)).transpose();
            built.map_err(|wrong| problems.extend(wrong)).ok().flatten()
        };
        let (key, version, at) =
            (expr("key", &Some(self.key)), expr("version", &self.version), expr("at", &self.at));
        let Some(key) = key.filter(|_| problems.is_empty()) else { return Err(problems) };
        let rows = Arc::new(Rows { key, version, at });
        let place = (context.pipeline.to_owned(), context.stage.to_owned());
        let stage = Table {
            rows: Arc::clone(&rows),
            folder: StageFolder::of(context),
            shown: context.services.get::<OpenTables>().filter(|_| StageFolder::of(context).is_live()),
            place,
            open: Mutex::new(None),
        };
        Ok(Built::stage(stage).derives(rows))
    }
}

/// What a record becomes.
struct Rows {
    key: Expr,
    version: Option<Expr>,
    at: Option<Expr>,
}

impl Rows {
    fn row(&self, record: &mut Record) -> Result<Option<Row>, StageError> {
        let Some(key) = key_from(self.key.first(record)?.as_ref())? else { return Ok(None) };
        let number = |name: &'static str, expr: &Option<Expr>, record: &mut Record| match expr {
            None => Ok(0),
            Some(expr) => whole_number(name, expr.first(record)?.as_ref()),
        };
        let (version, at) = (number("version", &self.version, record)?, number("at", &self.at, record)?);
        Ok(Some(Row { key: key.as_str().to_owned(), version, at, value: record.payload.to_json() }))
    }
}

fn whole_number(name: &'static str, found: Option<&Json>) -> Result<u64, StageError> {
    let text = found.map(Json::text).unwrap_or_default();
    let number = match serde_json::from_slice(&text) {
        Ok(Value::Number(number)) => number.as_u64(),
        Ok(Value::String(time)) => time.parse::<Timestamp>().ok().map(Timestamp::unix_millis),
        _ => None,
    };
    number.ok_or_else(|| {
        let text = String::from_utf8_lossy(&text);
        let reason = format!("`{name}` gave {text}, which is neither a whole number nor a time");
        StageError::reject("find the row of a record", reason)
    })
}

fn entry(row: &Row) -> Entry {
    Entry { key: row.key.as_str().into(), digest: digest(&row.value), version: row.version, at: row.at }
}

/// Of the document and not of its text: the order of fields says nothing.
fn digest(document: &Bytes) -> u64 {
    let mut hash = Xxh3::new();
    match serde_json::from_slice(document) {
        Ok(value) => add(&mut hash, &value),
        Err(_) => hash.update(document),
    }
    hash.digest()
}

fn add(hash: &mut Xxh3, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            hash.update(b"{");
            for (name, value) in fields {
                hash.update(&(name.len() as u64).to_le_bytes());
                hash.update(name.as_bytes());
                add(hash, value);
            }
        }
        Value::Array(values) => {
            hash.update(b"[");
            hash.update(&(values.len() as u64).to_le_bytes());
            for value in values {
                add(hash, value);
            }
        }
        plain => {
            let text = plain.to_string();
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
    }
}

impl Derived for Rows {
    fn expected(&self, record: &Record) -> Result<Option<Entry>, StageError> {
        Ok(self.row(&mut record.clone())?.as_ref().map(entry))
    }

    fn walk(&self, folder: &Path, each: &mut dyn FnMut(Entry)) -> Result<(), StageError> {
        let failed = |error| file_error("walk the table", error);
        let table = KeyedTable::open_now(folder).map_err(failed)?;
        table.each(|row| each(entry(&row))).map_err(failed)
    }
}

struct Table {
    rows: Arc<Rows>,
    folder: StageFolder,
    /// Where the live one can be looked up.
    shown: Option<Arc<OpenTables>>,
    place: (String, String),
    open: Mutex<Option<KeyedTable>>,
}

#[async_trait]
impl Stage for Table {
    async fn open(&self) -> Result<(), StageError> {
        let folder = self.folder.open().await?;
        let table = KeyedTable::open(folder).await.map_err(|error| file_error("open the table", error))?;
        if let Some(shown) = &self.shown {
            shown.show(self.place.clone(), table.clone());
        }
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(table);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let table = self.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let table = table.ok_or_else(|| StageError::fatal("write to the table", "it is not open"))?;
        let mut rows = Vec::with_capacity(batch.len());
        batch.each(|slot| {
            match self.rows.row(slot.record_mut())? {
                Some(row) => rows.push(row),
                None => slot.drop_as("no_key"),
            }
            Ok(())
        });
        table.put(rows).await.map_err(|error| file_error("write to the table", error))
    }

    async fn close(&self) -> Result<(), StageError> {
        if let Some(shown) = &self.shown {
            shown.hide(&self.place);
        }
        drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::derived::DerivedHome;
    use crate::testing::{build, problem, process};
    use courant_pipeline::spec::Part;
    use courant_pipeline::{Payload, Services};

    fn services(folder: &Path) -> Services {
        Services::default().with(Arc::new(DerivedHome::new(folder))).with(Arc::new(OpenTables::default()))
    }

    fn built(services: &Services) -> (Arc<dyn Stage>, Arc<dyn Derived>) {
        let params = json!({"key": ".chat", "version": ".n", "at": ".at"});
        let built = build(&SPEC, params, services).unwrap();
        let Part::Stage(stage) = built.part else { panic!("a sink is a stage") };
        (stage, built.derives.unwrap())
    }

    fn batch(values: &[Value]) -> Batch {
        values.iter().map(|value| Record::new(Payload::value(value.clone()))).collect()
    }

    #[tokio::test]
    async fn rows_are_what_is_expected_of_their_records_and_can_be_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let services = services(folder.path());
        let (stage, derived) = built(&services);
        stage.open().await.unwrap();
        let records = [
            json!({"chat": "a", "n": 2, "at": "1970-01-01T00:00:00.007Z"}),
            json!({"chat": "a", "n": 1, "at": 5}),
            json!({"n": 1, "at": 5}),
            json!({"chat": "b", "n": "x", "at": 5}),
        ];
        let fates = process(&*stage, batch(&records)).await;
        assert_eq!(fates[2], "dropped: no_key");
        assert!(fates[3].contains("`version` gave \"x\""), "{}", fates[3]);
        let open = services.get::<OpenTables>().unwrap();
        let (_, table) = open.find("test", None).unwrap();
        assert_eq!(table.get("a").await.unwrap().unwrap().version, 2);
        drop(table);
        stage.close().await.unwrap();
        assert!(open.find("test", None).is_err(), "closed");

        let mut walked = Vec::new();
        let live = folder.path().join("test/current/table");
        derived.walk(&live, &mut |entry| walked.push(entry)).unwrap();
        let moved =
            Record::new(Payload::from_static(r#"{"at": "1970-01-01T00:00:00.007Z", "n": 2, "chat": "a"}"#));
        assert_eq!(walked, [derived.expected(&moved).unwrap().unwrap()], "whatever the order of fields");
        assert_eq!((walked[0].version, walked[0].at), (2, 7));
    }

    #[test]
    fn other_documents_have_other_digests() {
        let of = |text: &'static str| digest(&Bytes::from_static(text.as_bytes()));
        let all = [r#"{"a":"b"}"#, r#"["a","b"]"#, r#"{"a":["b"]}"#, r#"["ab"]"#, "1", r#""1""#, "{}", "[]"];
        let digests: std::collections::BTreeSet<_> = all.into_iter().map(of).collect();
        assert_eq!(digests.len(), all.len());
        assert_eq!(of(r#"{"a":1,"b":2}"#), of(r#"{ "b": 2, "a": 1 }"#));
    }

    #[test]
    fn wrong_expressions_are_named() {
        assert_eq!(problem(&SPEC, json!({"key": ".a", "version": ".b |"})).key, "version");
        assert_eq!(problem(&SPEC, json!({"key": "]"})).key, "key");
    }
}
