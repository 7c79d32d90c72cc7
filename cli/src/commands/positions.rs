//! `courant positions`: how far sources have been read.

use std::path::Path;

use anyhow::bail;
use courant_edge::admin::ClientError;
use courant_stages::host::PositionFiles;

use super::{admin, say};
use crate::args::Positions;
use crate::settings;

pub(super) async fn run(file: &Path, command: Positions) -> anyhow::Result<()> {
    let files = PositionFiles::unopened(settings::runtime_config(file)?.positions());
    match command {
        Positions::List => list(&files).await,
        Positions::Forget { pipeline } => forget(file, &files, &pipeline).await,
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
        bail!("pipeline `{pipeline}` has kept no position; `courant positions list` shows which have");
    }
    files.folder().forget(pipeline).await?;
    say(&format!("`{pipeline}` starts over when it starts next"))
}
