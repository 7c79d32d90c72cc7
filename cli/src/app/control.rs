//! The process as its endpoints see it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use courant_edge::{Control, Redrive, RedriveReport, RunningPipeline};
use courant_pipeline::config::{Loaded, Style, Topology};
use courant_pipeline::health::PipelineHealth;
use courant_pipeline::metrics::RELOADS;
use courant_pipeline::runtime::{ReloadReport, Runtime};
use courant_pipeline::tap::TapRecord;
use metrics::counter;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::settings;

pub(super) struct App {
    file: PathBuf,
    only: Vec<String>,
    runtime: Runtime,
    metrics: PrometheusHandle,
    stop: CancellationToken,
    /// Held from reading the file until it is applied, so that the last one read is the last one applied.
    reloading: tokio::sync::Mutex<()>,
    /// The files of the configuration in force, and its tables that only a restart can change.
    loaded: Mutex<InForce>,
}

#[derive(Default)]
struct InForce {
    files: Vec<PathBuf>,
    sections: BTreeMap<&'static str, serde_json::Value>,
}

/// Read once, when the process starts.
const FIXED_SECTIONS: [&str; 3] = ["edge", "runtime", "logging"];

impl App {
    pub(super) fn new(
        file: PathBuf,
        only: Vec<String>,
        runtime: Runtime,
        metrics: PrometheusHandle,
        loaded: &Loaded,
    ) -> Self {
        let stop = CancellationToken::new();
        let in_force = InForce { files: loaded.files.clone(), sections: fixed_sections(loaded) };
        let reloading = tokio::sync::Mutex::default();
        Self { file, only, runtime, metrics, stop, reloading, loaded: Mutex::new(in_force) }
    }

    pub(super) async fn start(&self, loaded: Loaded) {
        self.runtime.apply(self.wanted(loaded.topologies)).await;
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).files.clone()
    }

    pub(super) async fn stop_asked(&self) {
        self.stop.cancelled().await;
    }

    fn wanted(&self, mut topologies: Vec<Topology>) -> Vec<Topology> {
        if !self.only.is_empty() {
            topologies.retain(|topology| self.only.iter().any(|name| **name == *topology.name));
        }
        topologies
    }

    /// Reads the file again and applies it; if it is not in order, nothing changes and the answer says why.
    pub(super) async fn reload_file(&self) -> Result<ReloadReport, String> {
        let _one_at_a_time = self.reloading.lock().await;
        let loaded = match settings::loader().load(&self.file, std::env::vars()) {
            Ok(loaded) => loaded,
            Err(wrong) => {
                counter!(RELOADS, "outcome" => "refused").increment(1);
                let wrong = wrong.render(Style::Plain);
                tracing::error!(file = %self.file.display(), "the configuration is wrong, nothing was changed\n{wrong}");
                return Err(format!("the configuration is wrong, nothing was changed\n{wrong}"));
            }
        };
        if !loaded.warnings.is_empty() {
            tracing::warn!("configuration\n{}", loaded.warnings.render(Style::Plain));
        }
        self.keep(&loaded);
        let report = self.runtime.apply(self.wanted(loaded.topologies)).await;
        counter!(RELOADS, "outcome" => "applied").increment(1);
        tracing::info!(
            started = ?report.started, restarted = ?report.restarted, stopped = ?report.stopped,
            unchanged = ?report.unchanged, "reloaded"
        );
        Ok(report)
    }

    fn keep(&self, loaded: &Loaded) {
        let sections = fixed_sections(loaded);
        let mut in_force = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, table) in &sections {
            if in_force.sections.get(name) != Some(table) {
                tracing::warn!(table = name, "changed, but takes effect only after a restart");
            }
        }
        in_force.files.clone_from(&loaded.files);
    }
}

fn fixed_sections(loaded: &Loaded) -> BTreeMap<&'static str, serde_json::Value> {
    FIXED_SECTIONS.into_iter().filter_map(|name| Some((name, loaded.section_json(name)?.clone()))).collect()
}

#[async_trait]
impl Control for App {
    fn health(&self) -> Vec<PipelineHealth> {
        self.runtime.health()
    }

    fn metrics(&self) -> String {
        self.metrics.render()
    }

    async fn running(&self) -> Vec<RunningPipeline> {
        let mut running = Vec::new();
        for topology in self.runtime.topologies() {
            let positions = self.runtime.host().positions.load(&topology.name).await.ok().flatten();
            running.push(RunningPipeline { entry: (*topology.entry).clone(), positions });
        }
        running
    }

    async fn reload(&self) -> Result<ReloadReport, String> {
        self.reload_file().await
    }

    fn tap(&self, pipeline: &str, stage: &str) -> Result<mpsc::Receiver<TapRecord>, String> {
        self.runtime.tap(pipeline, stage)
    }

    async fn redrive(&self, request: Redrive) -> Result<RedriveReport, String> {
        let (topologies, host) = (self.runtime.topologies(), self.runtime.host());
        crate::commands::dead_letters::redrive(&topologies, host, &request, &self.stop).await
    }

    fn stop(&self) {
        self.stop.cancel();
    }
}
