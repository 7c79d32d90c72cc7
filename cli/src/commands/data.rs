//! `courant data`: look after the folder of the embedded engine.
//!
//! Each command opens the folder itself, so the process that uses it must be stopped. What they do is methods of the
//! engine that go on beside reads and writes: a running process that has one open can offer them on its admin socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use courant_connectors::connections::{Connections, StoreConnection};
use courant_connectors::embedded::{Engine, Options, Progress, Space, is_engine_folder, restore};

use super::say;
use crate::args::{Data, DataFolder};
use crate::settings;

pub(super) async fn run(file: &Path, command: Data) -> anyhow::Result<()> {
    match command {
        Data::Info { folder, json } => info(&named(file, folder)?, json).await,
        Data::Check { folder } => check(&named(file, folder)?).await,
        Data::Backup { folder, to } => {
            let folder = named(file, folder)?;
            let engine = open(&folder).await?;
            let copied = engine.backup(&to, report).await;
            engine.close().await;
            copied?;
            say(&format!("'{}' is a backup of '{}'", to.display(), folder.display()))
        }
        Data::Restore { from, folder } => {
            let folder = named(file, folder)?;
            restore(&from, &folder, report).await?;
            say(&format!("'{}' was restored from '{}'", folder.display(), from.display()))
        }
        Data::Compact { folder } => compact(&named(file, folder)?).await,
    }
}

/// The folder that is meant: the one named, the configuration's, or the default's if there is no configuration and none
/// was named.
fn named(file: &Path, folder: DataFolder) -> anyhow::Result<PathBuf> {
    if let Some(path) = folder.path {
        return Ok(path);
    }
    let connections = if settings::is_there(file)? {
        settings::load(file)?.section("connections")
    } else {
        Connections::default()
    };
    match connections.store {
        StoreConnection::Embedded(embedded) => Ok(embedded.engine_folder()),
        StoreConnection::DynamoDb(_) => {
            bail!("the store of '{}' is no embedded engine; name a folder with --path", file.display())
        }
    }
}

/// Opening would make a folder that is missing, which is not what somebody means who asks about it.
async fn open(folder: &Path) -> anyhow::Result<Arc<Engine>> {
    if !is_engine_folder(folder) {
        bail!("'{}' holds no data of the embedded engine; name its folder with --path", folder.display());
    }
    Ok(Engine::open(folder, Options::default()).await?)
}

fn report(progress: Progress<'_>) {
    eprintln!("{} of {}: {}", progress.done + 1, progress.of, progress.what);
}

async fn info(folder: &Path, json: bool) -> anyhow::Result<()> {
    let engine = open(folder).await?;
    let space = engine.space().await;
    engine.close().await;
    let space = space?;
    if json {
        return say(&serde_json::to_string_pretty(&space)?);
    }
    say(&table(&space))
}

fn table(space: &Space) -> String {
    let mut text = String::new();
    let mut line = |what: &str, bytes: u64, note: String| {
        text += format!("{what:<48} {:>12}  {note}", human(bytes)).trim_end();
        text += "\n";
    };
    for table in &space.tables {
        let note = format!("at most {} rows, {} of changes", table.rows_at_most, human(table.changes_bytes));
        line(&format!("table {}", table.name), table.total_bytes(), note);
        for index in &table.indexes {
            line(&format!("  index {}", index.name), index.bytes, String::new());
        }
    }
    for topic in &space.topics {
        let note = format!("{} records in {} partitions", topic.records, topic.partitions);
        line(&format!("topic {}", topic.name), topic.bytes, note);
    }
    line("catalog, tokens, offsets", space.catalog_bytes, String::new());
    line("journal", space.journal_bytes, "the newest writes, not yet in files".to_owned());
    line("total", space.total_bytes, String::new());
    text
}

fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

async fn check(folder: &Path) -> anyhow::Result<()> {
    let engine = open(folder).await?;
    let checked = engine.check(report).await;
    engine.close().await;
    let checked = checked?;
    if !checked.findings.is_empty() {
        bail!("'{}' is not in order:\n  {}", folder.display(), checked.findings.join("\n  "));
    }
    say(&format!(
        "in order: {} rows, {} index rows, {} changes, {} records",
        checked.rows, checked.index_rows, checked.changes, checked.records
    ))
}

async fn compact(folder: &Path) -> anyhow::Result<()> {
    let engine = open(folder).await?;
    let before = engine.space().await?;
    let compacted = engine.compact(report).await;
    let after = engine.space().await;
    engine.close().await;
    compacted?;
    say(&format!("{} before, {} after", human(before.total_bytes), human(after?.total_bytes)))
}
