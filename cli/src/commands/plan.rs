//! `courant plan`: what a reload would do, before it does it.

use std::path::Path;

use anyhow::Context as _;
use courant_edge::RunningPipeline;
use courant_edge::admin::{AdminClient, ClientError};
use courant_pipeline::config::{Change, ChangeKind, Loaded, Topology, changes};
use courant_pipeline::positions::{PositionStore as _, SavedPositions};
use courant_stages::host::PositionFiles;
use serde::Serialize;
use serde_json::json;

use super::say;
use crate::args;
use crate::settings::{self, RuntimeConfig};

/// One pipeline in the plan.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    change: Change,
    /// Where it goes on, or none if it starts at its source's beginning or keeps its position elsewhere.
    positions: Option<SavedPositions>,
    positions_kept: bool,
}

pub(super) async fn run(file: &Path, options: &args::Plan) -> anyhow::Result<()> {
    let loaded = settings::load(file)?;
    let config: RuntimeConfig = loaded.section("runtime");
    let running = match AdminClient::new(config.admin_socket()).running().await {
        Ok(running) => Some(running),
        Err(ClientError::NotRunning { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let positions = PositionFiles::open(config.positions()).await?;
    let lines = plan(&loaded, running.as_deref().unwrap_or_default(), &positions).await?;
    if options.json {
        return say(&serde_json::to_string_pretty(
            &json!({"running": running.is_some(), "pipelines": lines}),
        )?);
    }
    let mut text = String::new();
    if running.is_none() {
        text += "no process is running; starting one would do this:\n";
    }
    for line in &lines {
        text += &describe(line);
    }
    say(&text)
}

async fn plan(
    loaded: &Loaded,
    running: &[RunningPipeline],
    positions: &PositionFiles,
) -> anyhow::Result<Vec<Line>> {
    let old = as_topologies(running)?;
    let mut lines = Vec::new();
    for change in changes(&old, &loaded.topologies) {
        let kept = positions.load(&change.pipeline).await?;
        let source_changed = matches!(change.kind, ChangeKind::Changed { source_changed: true, .. });
        lines.push(Line { positions_kept: kept.is_some() && !source_changed, positions: kept, change });
    }
    Ok(lines)
}

/// The running entries as topologies: they were checked when they were loaded, and are checked the same way again.
fn as_topologies(running: &[RunningPipeline]) -> anyhow::Result<Vec<Topology>> {
    let entries: Vec<_> = running.iter().map(|running| &running.entry).collect();
    let text = toml_edit::ser::to_string(&json!({"pipeline": entries}))
        .context("cannot write down what is running")?;
    let loaded = settings::loader().load_str("the running process", &text, std::iter::empty());
    Ok(loaded
        .context("the running process has a configuration that this version of courant does not accept")?
        .topologies)
}

fn describe(line: &Line) -> String {
    let name = &line.change.pipeline;
    let mut text = match &line.change.kind {
        ChangeKind::Added => format!("+ {name}: starts\n"),
        ChangeKind::Removed => format!("- {name}: is drained and stops\n"),
        ChangeKind::Unchanged => return format!("  {name}: keeps running\n"),
        ChangeKind::Changed { what, .. } => {
            let lines: String = what.iter().map(|what| format!("    {what}\n")).collect();
            format!("~ {name}: is drained and restarts\n{lines}")
        }
    };
    if let Some(kept) = &line.positions {
        let at: Vec<_> = kept.positions.iter().map(|(name, at)| format!("{name}:{at}")).collect();
        let verb = match (&line.change.kind, line.positions_kept) {
            (ChangeKind::Removed, _) => "its position stays, for when it comes back",
            (_, true) => "goes on at",
            (_, false) => "its source changed; it starts over unless it still reads",
        };
        text += &format!("    {verb} {} {}\n", kept.source, at.join(" "));
    }
    text
}
