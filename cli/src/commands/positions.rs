//! `courant positions`: how far sources have been read.

use std::path::Path;

use anyhow::bail;
use courant_connectors::connections::{Connections, LogConnection};
use courant_edge::admin::ClientError;
use courant_replay::positions::{self, Moved, Reset, To};
use courant_stages::host::PositionFiles;

use super::inventory::{self, check_is_there};
use super::{admin, say};
use crate::args::Positions;
use crate::settings;

pub(super) async fn run(file: &Path, command: Positions) -> anyhow::Result<()> {
    let files = PositionFiles::unopened(settings::runtime_config(file)?.positions());
    match command {
        Positions::List => list(&files).await,
        Positions::Forget { pipeline } => forget(file, &files, &pipeline).await,
        Positions::Reset { pipeline, to } => reset(file, &pipeline, to).await,
    }
}

async fn list(files: &PositionFiles) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for (pipeline, kept) in files.folder().list().await? {
        let at: Vec<_> = kept.positions.iter().map(|(name, at)| format!("{name}:{at}")).collect();
        lines.push(format!("{pipeline:<24} {:<32} {}", kept.source, at.join(" ")));
    }
    if lines.is_empty() {
        lines.push("no pipeline has kept a position yet".to_owned());
    }
    say(&lines.join("\n"))
}

async fn forget(file: &Path, files: &PositionFiles, pipeline: &str) -> anyhow::Result<()> {
    match admin(file)?.running().await {
        Ok(running) if running.pipelines.iter().any(|running| running.entry.name == pipeline) => {
            bail!("pipeline `{pipeline}` is running and would save its position again; stop it first");
        }
        Ok(_) | Err(ClientError::NotRunning { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    if files.folder().load(pipeline).await?.is_none() {
        bail!(
            "pipeline `{pipeline}` has kept no position; `courant positions list` shows which have. \
             One that reads topics keeps it in the log: `courant positions reset {pipeline} --to oldest`"
        );
    }
    files.folder().forget(pipeline).await?;
    say(&format!("`{pipeline}` starts over when it starts next"))
}

/// By the running process if there is one, since it may have the log open; here otherwise.
async fn reset(file: &Path, pipeline: &str, to: To) -> anyhow::Result<()> {
    let loaded = settings::load(file)?;
    let reset = Reset::of(&loaded.topologies, pipeline, to)?;
    let moved: Vec<Moved> = match admin(file)?.reset(serde_json::to_value(&reset)?).await {
        Err(ClientError::NotRunning { .. }) => reset_here(&loaded.section("connections"), &reset).await?,
        answered => serde_json::from_value(answered?)?,
    };
    let lines: Vec<_> = moved.iter().map(|moved| format!("  {moved}")).collect();
    say(&format!("`{pipeline}` (group '{}') goes on at:\n{}", reset.group, lines.join("\n")))
}

async fn reset_here(connections: &Connections, reset: &Reset) -> anyhow::Result<Vec<Moved>> {
    if let LogConnection::Embedded(embedded) = &connections.log {
        check_is_there(embedded, "topics")?;
    }
    let (log, engine) = connections.open_log().await?;
    let moved = positions::reset(&*log, reset).await;
    inventory::close(engine).await;
    Ok(moved?)
}
