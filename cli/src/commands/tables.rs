//! `courant tables`: the model's tables on the configured store.

use std::path::Path;

use anyhow::bail;
use courant_connectors::connections::StoreConnection;
use courant_connectors::model::drift;
use courant_connectors::model::tables::TABLES;
use courant_connectors::store::{
    Capacity, Created, IndexSchema, KeyAttribute, Name, Projection, Store, Stream, TableDescription,
    TableSchema,
};
use serde_json::{Value, json};

use super::inventory::{self, Findings, Outcome, check_is_there, check_names, counted, report_creation};
use super::say;
use crate::args::{Tables, WantedTables};

pub(super) async fn run(file: &Path, command: Tables) -> anyhow::Result<()> {
    let connections = inventory::connections(file)?;
    let wanted = match &command {
        Tables::Create(wanted) | Tables::Drift { wanted, .. } => schemas(wanted)?,
        Tables::Describe { .. } => Vec::new(),
    };
    if let (Tables::Describe { .. } | Tables::Drift { .. }, StoreConnection::Embedded(embedded)) =
        (&command, &connections.store)
    {
        check_is_there(embedded, "tables")?;
    }
    let (store, engine) = connections.open_store().await?;
    let done = match command {
        Tables::Create(_) => create(&*store, &wanted).await,
        Tables::Describe { table, json } => describe(&*store, table, json).await,
        Tables::Drift { json, .. } => drift(&*store, &wanted, json).await,
    };
    inventory::close(engine).await;
    done
}

/// The model's tables as this installation wants them.
fn schemas(wanted: &WantedTables) -> anyhow::Result<Vec<TableSchema>> {
    let known = TABLES.map(|table| table.name.to_string());
    check_names("table", wanted.only.iter().chain(&wanted.stream), &known)?;
    let is_named = |names: &[String], table: &TableSchema| names.iter().any(|name| table.name == *name);
    let mut tables: Vec<TableSchema> = TABLES.into_iter().cloned().collect();
    tables.retain(|table| wanted.only.is_empty() || is_named(&wanted.only, table));
    for table in tables.iter_mut().filter(|table| is_named(&wanted.stream, table)) {
        table.stream = Stream::OldAndNewImages;
    }
    Ok(tables)
}

async fn create(store: &dyn Store, wanted: &[TableSchema]) -> anyhow::Result<()> {
    for schema in wanted {
        let outcome = match store.create_table(schema).await? {
            Created::New { warnings } => Outcome::Created { warnings },
            Created::Existing => Outcome::Exists,
            Created::Completed { turned_on, warnings } => Outcome::Completed { turned_on, warnings },
        };
        report_creation(&schema.name, &outcome)?;
    }
    Ok(())
}

async fn drift(store: &dyn Store, wanted: &[TableSchema], json: bool) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    for schema in wanted {
        let described = store.describe_table(&schema.name).await?;
        let unknown = described.as_ref().map(|described| &*described.unknown);
        let differences = drift::of_table(schema, described.as_ref());
        findings.add(format!("table '{}'", schema.name), differences, unknown);
    }
    findings.report(&counted(wanted.len(), "table"), json)
}

async fn describe(store: &dyn Store, table: Option<String>, json: bool) -> anyhow::Result<()> {
    let named = table.is_some();
    let names = table.map_or_else(|| TABLES.map(|table| table.name.clone()).to_vec(), |one| vec![one.into()]);
    let mut found = Vec::new();
    for name in names {
        match store.describe_table(&name).await? {
            Some(description) => found.push(description),
            None if named => {
                let there: Vec<_> = store.tables().await?.iter().map(Name::to_string).collect();
                bail!("there is no table `{name}`; there are: {}", there.join(", "));
            }
            None => {}
        }
    }
    if json {
        let tables: Vec<Value> = found.iter().map(as_json).collect();
        return say(&serde_json::to_string_pretty(&tables)?);
    }
    if found.is_empty() {
        return say("none of the model's tables is there; `courant tables create` makes them");
    }
    say(&found.iter().map(as_text).collect::<Vec<_>>().join("\n"))
}

fn as_json(table: &TableDescription) -> Value {
    let TableDescription { schema, unknown, items, bytes } = table;
    let known =
        |attribute: &str, value: Value| if unknown.contains(&attribute) { Value::Null } else { value };
    let capacity = match schema.capacity {
        Capacity::OnDemand => json!({"mode": "on-demand"}),
        Capacity::Provisioned { read_units, write_units } => {
            json!({"mode": "provisioned", "read_units": read_units, "write_units": write_units})
        }
    };
    let stream = match schema.stream {
        Stream::Off => Value::Null,
        Stream::OldAndNewImages => "old-and-new-images".into(),
    };
    json!({
        "name": schema.name,
        "partition": key_as_json(&schema.partition),
        "sort": schema.sort.as_ref().map(key_as_json),
        "indexes": schema.indexes.iter().map(index_as_json).collect::<Vec<_>>(),
        "ttl": known("ttl", json!(schema.ttl)),
        "stream": stream,
        "capacity": capacity,
        "point_in_time_recovery": known("point_in_time_recovery", schema.point_in_time_recovery.into()),
        "unknown": unknown,
        "items": items,
        "bytes": bytes,
    })
}

fn key_as_json(key: &KeyAttribute) -> Value {
    json!({"name": key.name, "kind": key.kind.name()})
}

fn index_as_json(index: &IndexSchema) -> Value {
    let projection = match index.projection {
        Projection::All => "all",
        Projection::KeysOnly => "keys-only",
    };
    json!({
        "name": index.name,
        "partition": key_as_json(&index.partition),
        "sort": index.sort.as_ref().map(key_as_json),
        "projection": projection,
    })
}

fn as_text(table: &TableDescription) -> String {
    let TableDescription { schema, unknown, items, bytes } = table;
    let known = |attribute: &str, text: String| {
        if unknown.contains(&attribute) { "the server does not tell".to_owned() } else { text }
    };
    let on_or_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    let count = |count: &Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
    let ttl = schema.ttl.as_ref().map_or_else(|| "off".to_owned(), |ttl| format!("on '{ttl}'"));
    let capacity = match schema.capacity {
        Capacity::OnDemand => "on demand".to_owned(),
        Capacity::Provisioned { read_units, write_units } => {
            format!("{read_units} read and {write_units} write units")
        }
    };
    let mut lines = vec![("keys", keys_as_text(&schema.partition, schema.sort.as_ref()))];
    lines.extend(schema.indexes.iter().map(|index| ("index", index_as_text(index))));
    lines.extend([
        ("TTL", known("ttl", ttl)),
        ("stream", on_or_off(schema.stream == Stream::OldAndNewImages)),
        ("capacity", capacity),
        ("recovery", known("point_in_time_recovery", on_or_off(schema.point_in_time_recovery))),
        ("size", format!("about {} items, {} bytes", count(items), count(bytes))),
    ]);
    let lines: Vec<_> = lines.into_iter().map(|(label, value)| format!("  {label:<10} {value}\n")).collect();
    format!("{}\n{}", schema.name, lines.concat())
}

fn keys_as_text(partition: &KeyAttribute, sort: Option<&KeyAttribute>) -> String {
    let keys = std::iter::once(partition).chain(sort);
    keys.map(|key| format!("{} ({})", key.name, key.kind.name())).collect::<Vec<_>>().join(", ")
}

fn index_as_text(index: &IndexSchema) -> String {
    let projection = match index.projection {
        Projection::All => "all attributes",
        Projection::KeysOnly => "keys only",
    };
    format!("{}: {}; {projection}", index.name, keys_as_text(&index.partition, index.sort.as_ref()))
}
