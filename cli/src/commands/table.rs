//! `courant table`: rows of a table that a pipeline keeps.

use std::path::Path;

use anyhow::bail;
use courant_edge::admin::ClientError;
use courant_edge::{LookUp, TableRow};

use super::{admin, say};
use crate::app::table_here;
use crate::args::Table;
use crate::settings;

pub(super) async fn run(file: &Path, arguments: Table) -> anyhow::Result<()> {
    let Table { pipeline, key, stage, prefix, after, limit } = arguments;
    let wanted = LookUp { pipeline, stage, key, prefix, after, limit };
    // In the running process if there is one, which has the tables open; here otherwise.
    let rows = match admin(file)?.look_up(wanted.clone()).await {
        Err(ClientError::NotRunning { .. }) => table_here(&settings::load(file)?, &wanted).await?,
        rows => rows?,
    };
    match (&wanted.key, rows.is_empty()) {
        (Some(key), true) => bail!("there is no row `{key}`"),
        (None, true) => Ok(()),
        _ => say(&rows.iter().map(line).collect::<anyhow::Result<Vec<_>>>()?.join("\n")),
    }
}

/// One JSON object a line, for `jq`.
fn line(row: &TableRow) -> anyhow::Result<String> {
    Ok(serde_json::to_string(row)?)
}
