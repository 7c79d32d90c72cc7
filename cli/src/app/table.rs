//! Looking something up in the tables that pipelines keep.

use anyhow::{Context as _, bail};
use courant_connectors::files::FileError;
use courant_connectors::files::keyed::{KeyedTable, Row};
use courant_edge::{LookUp, TableRow};
use courant_pipeline::config::{Loaded, did_you_mean};
use courant_stages::derived::DerivedHome;
use courant_stages::sinks::table;

use super::data_folder::DataFolder;
use crate::settings::RuntimeConfig;

/// The rows that are wanted, in the order of their keys.
pub async fn look_up(table: &KeyedTable, wanted: &LookUp) -> Result<Vec<TableRow>, FileError> {
    let rows = match &wanted.key {
        Some(key) => table.get(key).await?.into_iter().collect(),
        None => table.list(&wanted.prefix, wanted.after.as_deref(), wanted.limit).await?,
    };
    Ok(rows.into_iter().map(shown).collect())
}

fn shown(row: Row) -> TableRow {
    let text = || serde_json::Value::String(String::from_utf8_lossy(&row.value).into_owned());
    let value = serde_json::from_slice(&row.value).unwrap_or_else(|_| text());
    TableRow { key: row.key, version: row.version, value }
}

/// Looks without a running process.
pub async fn table_here(loaded: &Loaded, wanted: &LookUp) -> anyhow::Result<Vec<TableRow>> {
    let config: RuntimeConfig = loaded.section("runtime");
    let _folder = DataFolder::take(&config.data_dir)?;
    let names: Vec<&str> = loaded.topologies.iter().map(|topology| &*topology.name).collect();
    let Some(topology) = loaded.topologies.iter().find(|topology| *topology.name == *wanted.pipeline) else {
        let help = did_you_mean(&wanted.pipeline, &names).unwrap_or_default();
        bail!("there is no pipeline `{}`; {help}", wanted.pipeline);
    };
    let stages = topology.stages.iter().filter(|node| node.spec.kind == table::SPEC.kind);
    let mut stages = stages.filter(|node| wanted.stage.as_deref().is_none_or(|stage| *node.name == *stage));
    let stage = match (stages.next(), stages.next()) {
        (Some(only), None) => only,
        (Some(_), Some(_)) => bail!("pipeline `{}` has several tables; name one with --stage", topology.name),
        (None, _) => bail!("pipeline `{}` has no such table", topology.name),
    };
    let generations = DerivedHome::new(config.derived()).generations(&topology.name)?;
    let current = generations.current().await?;
    let current = current.with_context(|| format!("pipeline `{}` has never run", topology.name))?;
    let table = KeyedTable::open(current.stage_folder(&stage.name).await?).await?;
    Ok(look_up(&table, wanted).await?)
}
