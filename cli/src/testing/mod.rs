//! Tests written in TOML beside the pipelines: given records in, expected records, ends and replies out.
//!
//! The pipeline under test runs on the real runtime with its real transforms. Its source is replaced by one that gives
//! the test's records, its sinks by ones that remember what arrives, and everything runs in one lane so that the order
//! of what arrives is always the same. Transforms that use store, log or live state get new ones for each test.

mod compare;
mod entry;
mod fakes;

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_pipeline::Services;
use courant_pipeline::config::Topology;
use courant_pipeline::runtime::{Ending, Host, run_to_end};
use courant_stages::derived::DerivedHome;
use tempfile::TempDir;
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
    let staged = fakes::stage(topology);
    let unknown: Vec<_> = test.expect.records.keys().filter(|name| !staged.ends.contains(name)).collect();
    if let [name, ..] = unknown[..] {
        let ends = staged.ends.join(", ");
        return Outcome::Failed(format!(
            "expects records at `{name}`, where none can arrive; `{}` ends at: {ends}",
            test.pipeline
        ));
    }
    play(test, &staged.topology, limit).await
}

/// Runs what is on stage, and compares.
async fn play(test: &TestEntry, staged: &Topology, limit: Duration) -> Outcome {
    let scene = Arc::new(Scene::new(test.given.clone()));
    let engine = match Engine::for_stages_of(staged).await {
        Ok(engine) => engine,
        Err(error) => return Outcome::Failed(format!("cannot make an engine for the test: {error:#}")),
    };
    // What stages keep from record to record is new for each test, and gone after it.
    let kept = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => return Outcome::Failed(format!("cannot make a folder for the test: {error}")),
    };
    let derived = Arc::new(DerivedHome::new(kept.path()));
    let mut services = Services::default().with(Arc::clone(&scene)).with(derived);
    if let Some(engine) = &engine {
        services = services.with(Arc::clone(&engine.connected));
    }
    let host = Host {
        services,
        dead_letters: Arc::clone(&scene) as _,
        positions: Arc::clone(&scene) as _,
        drain_deadline: Duration::ZERO,
    };
    let stop = CancellationToken::new();
    let Ok(report) = tokio::time::timeout(limit, run_to_end(staged, &host, &stop)).await else {
        return Outcome::Failed(format!("took longer than {limit:?}; --timeout gives it more time"));
    };
    drop(host);
    if let Some(engine) = engine {
        engine.connected.close().await;
    }
    let mut wrong = Vec::new();
    if let Ending::Failed(failure) = &report.ending {
        wrong.push(format!("the pipeline failed: {failure}"));
    }
    wrong.extend(compare::compare(&test.expect, &scene.happened().await, &report.dispositions));
    if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong.join("\n\n")) }
}

/// Store, log and live state for one test: new, embedded, and gone after it.
struct Engine {
    connected: Arc<Connected>,
    _folder: TempDir,
}

impl Engine {
    /// None if no stage would use it.
    async fn for_stages_of(staged: &Topology) -> anyhow::Result<Option<Self>> {
        if staged.stages.iter().all(|stage| stage.access.is_empty()) {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let embedded = EmbeddedConnection { path: folder.path().to_owned() };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        let connected = Arc::new(connections.open().await?);
        Ok(Some(Self { connected, _folder: folder }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
[[pipeline.stage]]
kind = "generate"
[[pipeline.stage]]
kind = "route"
params = { routes = { small = ". < 10", big = ". >= 10" } }
[[pipeline.stage]]
kind = "map"
input = "route.small"
params = { expr = ". + 1" }
"#;

    async fn outcome(expect: serde_json::Value) -> Outcome {
        let loaded = settings::loader().load_str("pipelines.toml", PIPELINE, []).unwrap();
        let test = serde_json::json!({
            "name": "t", "pipeline": "p", "given": [{"payload": 1}, {"payload": 20}], "expect": expect
        });
        let test = serde_json::from_value(test).unwrap();
        run(&test, &loaded.topologies, Duration::from_secs(10)).await
    }

    fn records(end: &str, payload: &str) -> serde_json::Value {
        let payload: serde_json::Value = payload.parse().unwrap();
        serde_json::json!({"records": {end: [{"payload": payload}]}})
    }

    #[tokio::test]
    async fn records_arrive_at_every_end() {
        assert_eq!(outcome(records("map", "2")).await, Outcome::Passed);
        assert_eq!(outcome(records("route.big", "20")).await, Outcome::Passed, "though no stage takes it");
        assert!(matches!(outcome(records("route.big", "21")).await, Outcome::Failed(_)));
    }

    #[tokio::test]
    async fn expecting_nothing_where_nothing_can_arrive_is_a_mistake() {
        for end in ["mpa", "route", "generate"] {
            let Outcome::Failed(why) = outcome(serde_json::json!({"records": {end: []}})).await else {
                panic!("`{end}` is no end");
            };
            assert!(
                why.contains(&format!("`{end}`")) && why.contains("route.big, route.otherwise, map"),
                "{why}"
            );
        }
    }
}
