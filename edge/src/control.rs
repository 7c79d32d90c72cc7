//! What the edge asks of the process it stands in front of.

use async_trait::async_trait;
use courant_pipeline::Tally;
use courant_pipeline::config::PipelineEntry;
use courant_pipeline::health::PipelineHealth;
use courant_pipeline::positions::SavedPositions;
use courant_pipeline::runtime::ReloadReport;
use courant_pipeline::tap::TapRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// The process's side of every endpoint. Errors are messages for an operator: they name the thing and say what
/// to do.
#[async_trait]
pub trait Control: Send + Sync {
    fn health(&self) -> Vec<PipelineHealth>;

    /// What the pipelines depend on, such as the store; nothing if left out.
    fn components(&self) -> Vec<Component> {
        Vec::new()
    }

    /// The metrics in Prometheus' text format.
    fn metrics(&self) -> String;

    /// What runs now, which may differ from what the file says by now.
    async fn running(&self) -> Running;

    /// Reads the file again and applies it. On an error everything goes on as before. The caller may hang up;
    /// the reload is finished all the same.
    async fn reload(&self) -> Result<ReloadReport, String>;

    /// Records as they leave a stage, until the receiver is dropped or the pipeline ends.
    fn tap(&self, pipeline: &str, stage: &str) -> Result<mpsc::Receiver<TapRecord>, String>;

    /// Runs dead letters again from the stage that gave up on them.
    async fn redrive(&self, request: Redrive) -> Result<RedriveReport, String>;

    /// Work on store and log, such as verifying them. What it is, the lines of progress and the report at the end are
    /// between the command and the process. Ends early, in good order, when the receiver is dropped.
    fn job(&self, _job: serde_json::Value) -> Result<mpsc::Receiver<WorkLine>, String> {
        Err("this process has neither store nor log open".to_owned())
    }

    /// Sets where a pipeline goes on in the log. What is asked and what came of it are between the command and the
    /// process.
    async fn reset(&self, _reset: serde_json::Value) -> Result<serde_json::Value, String> {
        Err("this process has no log open".to_owned())
    }

    /// Rebuilds what a pipeline makes from history, or looks at what was rebuilt. What is asked and what is told are
    /// between the command and the process. A rebuild stops in good order when the receiver is dropped.
    fn replay(&self, _ask: serde_json::Value) -> Result<mpsc::Receiver<WorkLine>, String> {
        Err("this process has no derived stores".to_owned())
    }

    /// Looks something up in a table that a pipeline keeps.
    async fn look_up(&self, _wanted: LookUp) -> Result<Vec<TableRow>, String> {
        Err("this process has no tables open".to_owned())
    }

    /// Asks the process to drain and end; returns at once.
    fn stop(&self);
}

/// How far long work is, what came of it, or why nothing did.
pub type WorkLine = Result<serde_json::Value, String>;

/// Something the pipelines depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Component {
    /// As in `[connections]`: `store`, `log`, `live`; `relay` for those who carry out commands of a gateway.
    pub name: String,
    pub status: ComponentStatus,
    /// Why it is down, or what it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ComponentStatus {
    Up,
    Down,
}

/// What a process runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Running {
    /// The pipelines it was told to run and no others; all of its file if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    pub pipelines: Vec<RunningPipeline>,
}

impl Running {
    /// Whether the process would run a pipeline of this name if its file had one.
    pub fn wants(&self, pipeline: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == pipeline)
    }
}

/// A running pipeline as it was written, and how far it has come.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunningPipeline {
    pub entry: PipelineEntry,
    /// None if its source has no past, or keeps its positions itself.
    pub positions: Option<SavedPositions>,
}

/// Rows of a table that a pipeline keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookUp {
    pub pipeline: String,
    /// The stage, where the pipeline has several tables.
    #[serde(default)]
    pub stage: Option<String>,
    /// One row.
    #[serde(default)]
    pub key: Option<String>,
    /// Rows whose key begins like this.
    #[serde(default)]
    pub prefix: String,
    /// Rows behind this key.
    #[serde(default)]
    pub after: Option<String>,
    pub limit: usize,
}

/// A row of such a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableRow {
    pub key: String,
    pub version: u64,
    pub value: serde_json::Value,
}

/// Which dead letters to run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redrive {
    pub queue: String,
    /// Letters to run again; all of the queue if empty.
    #[serde(default)]
    pub ids: Vec<String>,
}

/// What became of redriven letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedriveReport {
    pub redriven: u64,
    pub dispositions: Tally,
}
