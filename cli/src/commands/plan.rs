//! `courant plan`: what a reload would do, before it does it.

use std::path::Path;

use anyhow::Context as _;
use courant_edge::admin::{AdminClient, ClientError};
use courant_edge::{Running, RunningPipeline};
use courant_pipeline::config::{Change, ChangeKind, Loaded, Topology, changes};
use courant_pipeline::positions::{PositionStore as _, SavedPositions};
use courant_pipeline::spec::{BuildContext, Part};
use courant_pipeline::stage::PositionKeeping;
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
    let positions = PositionFiles::unopened(config.positions());
    let is_running = running.is_some();
    let running = running.unwrap_or_default();
    let lines = plan(&loaded, &running, &positions).await?;
    if options.json {
        let plan = json!({"running": is_running, "only": running.only, "pipelines": lines});
        return say(&serde_json::to_string_pretty(&plan)?);
    }
    let mut text = String::new();
    if !is_running {
        text += "no process is running; starting one would do this:\n";
    }
    if !running.only.is_empty() {
        text += &format!("the process was started with --only {}\n", running.only.join(","));
    }
    for line in &lines {
        text += &describe(line);
    }
    say(&text)
}

async fn plan(loaded: &Loaded, running: &Running, positions: &PositionFiles) -> anyhow::Result<Vec<Line>> {
    let old = as_topologies(&running.pipelines)?;
    let new: Vec<_> = loaded.topologies.iter().filter(|new| running.wants(&new.name)).cloned().collect();
    let mut lines = Vec::new();
    for change in changes(&old, &new) {
        let kept = positions.load(&change.pipeline).await?;
        let goes_on = |kept: &SavedPositions| {
            let now = || new.iter().find(|new| new.name == change.pipeline).and_then(source_of);
            change.kind == ChangeKind::Unchanged || now().is_some_and(|source| source == kept.source)
        };
        lines.push(Line { positions_kept: kept.as_ref().is_some_and(goes_on), positions: kept, change });
    }
    Ok(lines)
}

/// What a pipeline would read, if its positions are kept by the process: the runtime goes on at a kept position if it
/// is of the same source.
fn source_of(topology: &Topology) -> Option<String> {
    let services = settings::loader().services;
    let source = topology.source();
    let context = BuildContext { pipeline: &topology.name, stage: &source.name, services: &services };
    match (source.spec.build)(source.params.clone(), &context).ok()?.part {
        Part::Source(source) if source.keeps_positions() == PositionKeeping::Runtime => {
            Some(source.identity())
        }
        _ => None,
    }
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
            (_, false) => "starts over; what is kept is of another source,",
        };
        text += &format!("    {verb} {} {}\n", kept.source, at.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use courant_pipeline::stage::Partition;

    use super::*;

    fn load(folder: &Path) -> Loaded {
        let path = folder.join("in.jsonl");
        let text = format!(
            "[[pipeline]]\nname = 'copy'\nstage = [{{ kind = 'file', params = {{ path = '{}' }} }}, {{ kind = 'blackhole' }}]\n\
             [[pipeline]]\nname = 'other'\nstage = [{{ kind = 'generate' }}, {{ kind = 'blackhole' }}]\n",
            path.display()
        );
        settings::loader().load_str("pipelines.toml", &text, []).unwrap()
    }

    async fn planned(folder: &Path, running: &Running) -> String {
        let positions = PositionFiles::unopened(folder.join("positions"));
        plan(&load(folder), running, &positions).await.unwrap().iter().map(describe).collect()
    }

    #[tokio::test]
    async fn a_position_is_gone_on_from_if_it_is_of_the_same_source() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("in.jsonl");
        std::fs::write(&file, "1\n2\n").unwrap();
        let files = PositionFiles::open(folder.path().join("positions")).await.unwrap();
        let source = source_of(&load(folder.path()).topologies[0]).unwrap();
        let saved = SavedPositions { source, positions: [(Partition::only(), 2)].into() };
        files.save("copy", &saved).await.unwrap();

        std::fs::File::options().append(true).open(&file).unwrap().write_all(b"3\n").unwrap();
        let said = planned(folder.path(), &Running::default()).await;
        assert!(said.contains("+ copy: starts\n    goes on at file:"), "{said}");
        std::fs::rename(&file, folder.path().join("in.jsonl.1")).unwrap();
        std::fs::write(&file, "4\n5\n").unwrap();
        let said = planned(folder.path(), &Running::default()).await;
        assert!(said.contains("+ copy: starts\n    starts over;"), "{said}");
    }

    #[tokio::test]
    async fn pipelines_that_the_process_was_not_to_run_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let entry = (*load(folder.path()).topologies[1].entry).clone();
        let pipelines = vec![RunningPipeline { entry, positions: None }];
        let running = Running { only: vec!["other".into()], pipelines };
        assert_eq!(planned(folder.path(), &running).await, "  other: keeps running\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "planning creates nothing");
    }
}
