//! How each pipeline is doing, as `/health`, `courant top` and the logs show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ack::Tally;

/// Where a pipeline is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineState {
    /// Opening its stages.
    Starting,
    Running,
    /// Its source has stopped; what is under way is being finished.
    Draining,
    /// Failed; waits before it starts again.
    BackingOff,
    /// Its source came to an end and everything is settled.
    Finished,
    /// Stopped on request.
    Stopped,
}

impl PipelineState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::BackingOff => "backing-off",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
        }
    }

    /// Whether its source is closed.
    pub const fn is_at_rest(self) -> bool {
        matches!(self, Self::BackingOff | Self::Finished | Self::Stopped)
    }

    /// Whether an orchestrator should consider it fit: failed and starting pipelines are not.
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Running | Self::Finished)
    }
}

/// One pipeline's state and its counts since the process started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PipelineHealth {
    pub name: String,
    pub state: PipelineState,
    /// When it came into this state, ISO 8601.
    pub since: String,
    pub restarts: u64,
    /// The last failure, also after it has recovered.
    pub last_error: Option<String>,
    /// Records read, over all restarts.
    pub read: u64,
    /// How they ended.
    pub dispositions: Tally,
    /// Records read and not yet committed.
    pub commit_lag: u64,
    /// Records that wait in the source, if it knows.
    pub lag: Option<u64>,
}

impl PipelineHealth {
    /// Records under way: read, without a disposition.
    pub fn in_flight(&self) -> u64 {
        self.read.saturating_sub(self.dispositions.sum())
    }
}
