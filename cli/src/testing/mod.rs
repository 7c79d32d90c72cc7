//! Tests written in TOML beside the pipelines: given records in, expected records, ends and replies out.
//!
//! The pipeline under test runs on the real runtime with its real transforms. Its source is replaced by one that gives
//! the test's records, its sinks by ones that remember what arrives, and everything runs in one lane so that the order
//! of what arrives is always the same.

mod compare;
mod entry;
mod fakes;

use std::sync::Arc;
use std::time::Duration;

use courant_pipeline::Services;
use courant_pipeline::config::Topology;
use courant_pipeline::runtime::{Ending, Host, run_to_end};
use tokio_util::sync::CancellationToken;

pub use entry::TestEntry;
use fakes::Scene;

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// What differs from what was expected.
    Failed(String),
}

/// Runs one test.
pub async fn run(test: &TestEntry, topologies: &[Topology], limit: Duration) -> Outcome {
    let Some(topology) = topologies.iter().find(|topology| *topology.name == *test.pipeline) else {
        let names: Vec<_> = topologies.iter().map(|topology| &*topology.name).collect();
        return Outcome::Failed(format!(
            "there is no pipeline `{}`; there is: {}",
            test.pipeline,
            names.join(", ")
        ));
    };
    let scene = Arc::new(Scene::new(test.given.clone()));
    let host = Host {
        services: Services::default().with(Arc::clone(&scene)),
        dead_letters: Arc::clone(&scene) as _,
        positions: Arc::clone(&scene) as _,
        drain_deadline: Duration::ZERO,
    };
    let staged = fakes::stage(topology);
    let stop = CancellationToken::new();
    let Ok(report) = tokio::time::timeout(limit, run_to_end(&staged, &host, &stop)).await else {
        return Outcome::Failed(format!("took longer than {limit:?}; --timeout gives it more time"));
    };
    let mut wrong = Vec::new();
    if let Ending::Failed(failure) = &report.ending {
        wrong.push(format!("the pipeline failed: {failure}"));
    }
    wrong.extend(compare::compare(&test.expect, &scene.happened().await, &report.dispositions));
    if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong.join("\n\n")) }
}
