//! How many follow what changes in a table: as many as a shard of a change stream serves, and no more.
//!
//! Pipelines that share the work have one source between them, as its identity says, and each shard one reader of
//! theirs. So what counts is how many different sources a file has for one table, wherever they run.

use std::collections::BTreeMap;

use super::draft::{Draft, DraftStage};
use super::report::Report;
use super::suggest::{list, quote};
use crate::spec::{Level, Mode, Part};

/// The stores that have change streams slow down whoever reads a shard as a third.
const MOST: usize = 2;

/// Of the pipelines looked at so far, by table: the identity of each source that follows it, and its first pipeline.
#[derive(Default)]
pub(super) struct Followers<'n>(BTreeMap<String, Vec<(String, &'n str)>>);

impl<'n> Followers<'n> {
    /// Counts this pipeline's source, and refuses it where there are enough.
    pub(super) fn check(&mut self, draft: &Draft<'n>, report: &mut Report) {
        let Some(source) = draft.stages.first() else { return };
        let Some(Part::Source(part)) = source.built.as_ref().map(|built| &built.part) else { return };
        let identity = part.identity();
        for table in followed(source) {
            let known = self.0.entry(table.to_owned()).or_default();
            if known.iter().any(|(other, _)| *other == identity) {
                continue;
            }
            if known.len() >= MOST {
                let pipelines: Vec<&str> = known.iter().map(|(_, pipeline)| *pipeline).collect();
                report.error(
                    source.spot(),
                    &source.at.path,
                    refusal(table, &pipelines),
                    Some(HELP.to_owned()),
                );
            }
            known.push((identity.clone(), draft.name.unwrap_or("?")));
        }
    }
}

const HELP: &str = "a shard of a change stream serves two readers at a time: consume the log instead, where one of them \
                    publishes what changed (rule A6: two followers of a table)";

fn refusal(table: &str, pipelines: &[&str]) -> String {
    let (table, followers) = (quote(table), list(pipelines, "and"));
    format!("the changes of the table {table} are followed by the pipelines {followers} already")
}

fn followed<'s>(source: &'s DraftStage<'_>) -> impl Iterator<Item = &'s str> {
    let access = source.built.iter().flat_map(|built| &built.access);
    access
        .filter(|access| (access.level, access.mode) == (Level::Store, Mode::Stream))
        .map(|access| access.name.as_str())
}
