//! A `Control` for tests: fixed answers, and notes of what was asked.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use courant_pipeline::Tally;
use courant_pipeline::health::{PipelineHealth, PipelineState};
use courant_pipeline::tap::TapRecord;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::control::{Component, Control, Redrive, RedriveReport, Running, RunningPipeline, WorkLine};
use courant_pipeline::runtime::ReloadReport;

#[derive(Default)]
pub(crate) struct FakeControl {
    pub(crate) pipelines: Vec<PipelineHealth>,
    pub(crate) components: Vec<Component>,
    pub(crate) metrics: String,
    pub(crate) redriven: Mutex<Vec<Redrive>>,
    /// Sends what a tap shows.
    pub(crate) taps: Mutex<Vec<mpsc::Sender<TapRecord>>>,
    /// Sends what a job says.
    pub(crate) jobs: Mutex<Vec<mpsc::Sender<WorkLine>>>,
    pub(crate) tapped: tokio::sync::Notify,
    pub(crate) stopped: CancellationToken,
}

pub(crate) fn pipeline(name: &str, state: PipelineState) -> PipelineHealth {
    PipelineHealth {
        name: name.to_owned(),
        state,
        since: "2025-01-01T00:00:00.000Z".to_owned(),
        restarts: 2,
        last_error: Some("publish to log: connection refused".to_owned()),
        read: 10,
        dispositions: Tally { delivered: 7, ..Tally::default() },
        commit_lag: 3,
        lag: None,
    }
}

pub(crate) fn tap_record(payload: serde_json::Value) -> TapRecord {
    TapRecord { pipeline: "ingest".into(), stage: "persist".into(), key: None, headers: Vec::new(), payload }
}

impl FakeControl {
    pub(crate) fn with(pipelines: Vec<PipelineHealth>) -> Arc<Self> {
        Arc::new(Self { pipelines, metrics: "courant_up 1\n".to_owned(), ..Self::default() })
    }

    /// The sending side of the only tap, once somebody has asked for it.
    pub(crate) async fn tap_sender(&self) -> mpsc::Sender<TapRecord> {
        self.tapped.notified().await;
        self.taps.lock().unwrap().pop().expect("a tap was just asked for")
    }
}

impl FakeControl {
    /// The sending side of the only job, once somebody has asked for it.
    pub(crate) async fn job_sender(&self) -> mpsc::Sender<WorkLine> {
        self.tapped.notified().await;
        self.jobs.lock().unwrap().pop().expect("a job was just asked for")
    }
}

#[async_trait]
impl Control for FakeControl {
    fn health(&self) -> Vec<PipelineHealth> {
        self.pipelines.clone()
    }

    fn components(&self) -> Vec<Component> {
        self.components.clone()
    }

    fn metrics(&self) -> String {
        self.metrics.clone()
    }

    async fn running(&self) -> Running {
        let entry =
            serde_json::from_value(serde_json::json!({"name": "ingest", "stage": [{"kind": "generate"}]}));
        let pipelines = vec![RunningPipeline { entry: entry.expect("a valid entry"), positions: None }];
        Running { only: vec!["ingest".into()], pipelines }
    }

    async fn reload(&self) -> Result<ReloadReport, String> {
        Err("pipelines.toml:3:1: unknown kind `kafka-consum`".to_owned())
    }

    fn tap(&self, pipeline: &str, _stage: &str) -> Result<mpsc::Receiver<TapRecord>, String> {
        if !self.pipelines.iter().any(|known| known.name == pipeline) {
            return Err(format!("no pipeline `{pipeline}` is running"));
        }
        let (to, from) = mpsc::channel(8); // full: the test waits
        self.taps.lock().unwrap().push(to);
        self.tapped.notify_one();
        Ok(from)
    }

    async fn redrive(&self, request: Redrive) -> Result<RedriveReport, String> {
        self.redriven.lock().unwrap().push(request);
        Ok(RedriveReport { redriven: 1, dispositions: Tally { delivered: 1, ..Tally::default() } })
    }

    fn job(&self, job: serde_json::Value) -> Result<mpsc::Receiver<WorkLine>, String> {
        if job["verify"]["only"] == "nonsense" {
            return Err("there is no check 'nonsense'".to_owned());
        }
        let (to, from) = mpsc::channel(8); // full: the test waits
        self.jobs.lock().unwrap().push(to);
        self.tapped.notify_one();
        Ok(from)
    }

    fn stop(&self) {
        self.stopped.cancel();
    }
}
