//! What a reload would change, pipeline by pipeline.
//!
//! Compared are the tables as they read, not the files: comments, order of keys and the way a table is
//! written do not restart anything. Lines name keys and never values, so a changed secret can be logged as
//! changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;

use super::topology::{StageNode, Topology};

/// One pipeline in two versions of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    pub pipeline: Arc<str>,
    #[serde(flatten)]
    pub kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "lowercase")]
pub enum ChangeKind {
    Added,
    Removed,
    Changed {
        /// ``stage `map`: params.expr changed``.
        what: Vec<String>,
        /// It reads something else, or in another way, so kept positions may not be its own.
        source_changed: bool,
    },
    Unchanged,
}

/// Every pipeline of either version: the new ones in their order, then those that are gone.
pub fn changes(old: &[Topology], new: &[Topology]) -> Vec<Change> {
    let find = |all: &'_ [Topology], name: &str| all.iter().position(|topology| *topology.name == *name);
    let kept = new.iter().map(|now| {
        let kind = find(old, &now.name).map_or(ChangeKind::Added, |before| compare(&old[before], now));
        Change { pipeline: Arc::clone(&now.name), kind }
    });
    let removed = old
        .iter()
        .filter(|before| find(new, &before.name).is_none())
        .map(|before| Change { pipeline: Arc::clone(&before.name), kind: ChangeKind::Removed });
    kept.chain(removed).collect()
}

/// Whether a pipeline goes on as it is.
pub(crate) fn is_same(old: &Topology, new: &Topology) -> bool {
    compare(old, new) == ChangeKind::Unchanged
}

fn compare(old: &Topology, new: &Topology) -> ChangeKind {
    let mut what = Vec::new();
    if old.plane != new.plane {
        what.push("plane changed".to_owned());
    }
    if old.entry.reply_after != new.entry.reply_after {
        what.push("reply_after changed".to_owned());
    }
    for (index, stage) in new.stages.iter().enumerate() {
        match old.index_of(&stage.name) {
            None => what.push(format!("stage `{}` added", stage.name)),
            Some(before) => {
                let lines = compare_stages(old, before, new, index);
                what.extend(lines.into_iter().map(|line| format!("stage `{}`: {line}", stage.name)));
            }
        }
    }
    let gone = old.stages.iter().filter(|stage| new.index_of(&stage.name).is_none());
    what.extend(gone.map(|stage| format!("stage `{}` removed", stage.name)));
    if what.is_empty() {
        return ChangeKind::Unchanged;
    }
    let source_changed = !same_source(old.source(), new.source());
    ChangeKind::Changed { what, source_changed }
}

fn same_source(old: &StageNode, new: &StageNode) -> bool {
    old.spec.kind == new.spec.kind && old.name == new.name && old.params == new.params
}

fn compare_stages(old: &Topology, before: usize, new: &Topology, now: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let table = |topology: &Topology, stage: usize| {
        let mut table = serde_json::to_value(&topology.entry.stage[stage]).unwrap_or_default();
        if let Some(table) = table.as_object_mut() {
            // Compared as it is connected, since leaving it out means the stage before.
            table.remove("input");
            table.remove("name");
        }
        table
    };
    differences(&table(old, before), &table(new, now), "", &mut lines);
    if input_of(old, before) != input_of(new, now) {
        lines.push("input changed".to_owned());
    }
    lines
}

/// The stage and output a stage takes, by name.
fn input_of(topology: &Topology, stage: usize) -> Option<(&str, Option<&str>)> {
    let input = topology.stages[stage].input?;
    let giver = &topology.stages[input.stage];
    Some((&giver.name, giver.outputs.get(usize::from(input.output)).map(String::as_str)))
}

fn differences(old: &Json, new: &Json, path: &str, lines: &mut Vec<String>) {
    let (Json::Object(before), Json::Object(now)) = (old, new) else {
        if old != new {
            lines.push(format!("{path} changed"));
        }
        return;
    };
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    for key in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (before.get(key), now.get(key)) {
            (Some(before), Some(now)) => differences(before, now, &path, lines),
            (None, _) => lines.push(format!("{path} added")),
            (_, None) => lines.push(format!("{path} removed")),
        }
    }
}
