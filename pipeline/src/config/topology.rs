//! A checked pipeline: what the runtime runs, `courant graph` draws and a reload compares.

use std::sync::Arc;

use super::entry::{BatchLimits, OnError, PipelineEntry, Plane, RetryPolicy};
use crate::batch::Output;
use crate::intake::WayIn;
use crate::services::Services;
use crate::spec::{Access, BuildContext, Built, Problem, StageSpec};

/// A pipeline whose kinds exist, whose wiring fits and whose authority is in order.
#[derive(Clone)]
pub struct Topology {
    pub name: Arc<str>,
    pub plane: Plane,
    /// Index of the stage after which clients are answered; the end of the pipeline if none.
    pub reply_after: Option<usize>,
    /// The source, then every stage after the one it takes its input from.
    pub stages: Vec<StageNode>,
    /// What its source takes from outside.
    pub serves: Vec<WayIn>,
    /// As written, for comparing with another version of the file.
    pub entry: Arc<PipelineEntry>,
}

/// One stage of a topology.
#[derive(Clone)]
pub struct StageNode {
    pub name: Arc<str>,
    pub spec: &'static StageSpec,
    pub params: serde_json::Value,
    /// Whose output it takes; none for the source.
    pub input: Option<Input>,
    /// Names of its outputs if it has several.
    pub outputs: Vec<String>,
    pub access: Vec<Access>,
    /// Its records may leave with another key than they came with.
    pub rekeys: bool,
    pub policy: Policy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    pub stage: usize,
    pub output: Output,
}

/// The keys every stage accepts beside `params`.
#[derive(Debug, Clone)]
pub struct Policy {
    pub lanes: Option<usize>,
    pub batch: BatchLimits,
    pub buffer: Option<usize>,
    pub retry: RetryPolicy,
    pub on_error: OnError,
    pub dead_letter_queue: Arc<str>,
}

impl Topology {
    /// Builds every stage anew. The parameters were checked when the file was loaded, so a problem here means
    /// that a service has gone.
    pub fn build(&self, services: &Services) -> Result<Vec<Built>, Vec<Problem>> {
        self.stages
            .iter()
            .map(|node| {
                let context = BuildContext { pipeline: &self.name, stage: &node.name, services };
                (node.spec.build)(node.params.clone(), &context)
            })
            .collect()
    }

    /// The same stages from another start: `stage` and all that follows it, fed by `source`.
    #[must_use]
    pub fn starting_at(&self, stage: usize, source: StageNode) -> Self {
        let mut moved_to = vec![None; self.stages.len()];
        let mut stages = vec![source];
        for (index, node) in self.stages.iter().enumerate().skip(stage) {
            let input = match node.input {
                _ if index == stage => Input { stage: 0, output: 0 },
                Some(Input { stage, output }) => match moved_to[stage] {
                    Some(stage) => Input { stage, output },
                    None => continue, // another branch
                },
                None => continue,
            };
            moved_to[index] = Some(stages.len());
            stages.push(StageNode { input: Some(input), ..node.clone() });
        }
        let reply_after = self.reply_after.and_then(|index| moved_to[index]);
        Self { reply_after, stages, ..self.clone() }
    }

    pub fn source(&self) -> &StageNode {
        &self.stages[0]
    }

    /// Stages that take a given stage's records, with the output they take.
    pub fn children(&self, stage: usize) -> impl Iterator<Item = (usize, Output)> {
        self.stages.iter().enumerate().filter_map(move |(index, node)| {
            node.input.filter(|input| input.stage == stage).map(|input| (index, input.output))
        })
    }

    pub fn index_of(&self, stage: &str) -> Option<usize> {
        self.stages.iter().position(|node| &*node.name == stage)
    }
}
