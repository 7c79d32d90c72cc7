//! Runs checked pipelines.
//!
//! [`Runtime`] holds the set of them: it starts, reloads and drains. `supervisor` keeps one pipeline alive,
//! `run` is one life of it: a `reader` task for the source with a `committer`, and for each segment of the tree (`wiring`) as many
//! `lane` tasks as it has lanes, with a `queue` in front of each. In a lane, `settle` decides what a stage's
//! verdicts mean, `park` holds what has to wait, `circuit` and `backoff` say how long, `bury` keeps dead letters.

mod backoff;
mod bury;
mod circuit;
mod committer;
mod fleet;
mod lane;
mod park;
mod queue;
mod reader;
mod run;
mod settle;
mod supervisor;
#[cfg(test)]
mod tests;
mod wiring;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use fleet::{ReloadReport, Runtime};
pub use run::{Ending, Job, RunReport, run_to_end};

use crate::dead_letter::DeadLetters;
use crate::positions::PositionStore;
use crate::services::Services;

/// What the process gives its pipelines.
#[derive(Clone)]
pub struct Host {
    pub services: Services,
    pub dead_letters: Arc<dyn DeadLetters>,
    pub positions: Arc<dyn PositionStore>,
    /// How long a pipeline may take to finish what is under way when it is stopped.
    pub drain_deadline: Duration,
}

/// Why a pipeline could not go on.
#[derive(Debug, Clone)]
pub struct Failure {
    pub stage: Arc<str>,
    pub error: String,
}

impl Failure {
    pub(crate) fn new(stage: &str, error: impl fmt::Display) -> Self {
        Self { stage: Arc::from(stage), error: error.to_string() }
    }

    pub(crate) fn panicked(stage: &str, panic: &(dyn Any + Send)) -> Self {
        let said = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self::new(stage, format_args!("panicked: {said}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stage `{}`: {}", self.stage, self.error)
    }
}
