//! The process as its endpoints see it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use courant_connectors::connections::Connected;
use courant_edge::{
    Component, Control, LookUp, Redrive, RedriveReport, Running, RunningPipeline, TableRow, WorkLine,
};
use courant_pipeline::config::{Diagnostic, Diagnostics, Loaded, Severity, Style, Topology};
use courant_pipeline::health::PipelineHealth;
use courant_pipeline::metrics::RELOADS;
use courant_pipeline::runtime::{ReloadReport, Runtime};
use courant_pipeline::tap::TapRecord;
use courant_replay::positions::{self, Reset};
use courant_stages::derived::OpenTables;
use metrics::counter;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::components::Components;
use super::jobs::Jobs;
use super::redrive::Redrives;
use super::replay::Replays;
use super::table::look_up;
use crate::settings;

pub(super) struct App {
    file: PathBuf,
    only: Vec<String>,
    runtime: Arc<Runtime>,
    metrics: PrometheusHandle,
    stop: CancellationToken,
    redrives: Redrives,
    replays: Replays,
    jobs: Jobs,
    components: Components,
    /// Held from reading the file until it is applied, so that the last one read is the last one applied.
    reloading: Mutex<()>,
    /// The fingerprint of the files when they were last read, in order or not.
    files_read: AtomicU64,
    /// The tables that only a restart can change.
    sections: BTreeMap<&'static str, serde_json::Value>,
}

/// Read once, when the process starts.
const FIXED_SECTIONS: [&str; 5] = ["auth", "connections", "edge", "runtime", "logging"];

impl App {
    pub(super) fn new(
        file: PathBuf,
        only: Vec<String>,
        runtime: Runtime,
        metrics: PrometheusHandle,
        components: Components,
        loaded: &Loaded,
    ) -> Self {
        let stop = CancellationToken::new();
        let reloading = Mutex::default();
        let (files_read, sections) = (AtomicU64::new(loaded.fingerprint), fixed_sections(loaded));
        let (redrives, jobs) = (Redrives::default(), Jobs::default());
        Self {
            file,
            only,
            runtime: Arc::new(runtime),
            metrics,
            stop,
            redrives,
            replays: Replays::default(),
            jobs,
            components,
            reloading,
            files_read,
            sections,
        }
    }

    pub(super) async fn start(&self, loaded: Loaded) {
        self.runtime.apply(self.wanted(loaded.topologies)).await;
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Lets everything under way come to an end: pipelines, a redrive, rebuilds.
    pub(super) async fn drain(&self) {
        self.stop.cancel();
        tokio::join!(self.runtime.drain(), self.redrives.ended(), self.replays.ended());
    }

    /// How the files were when they were last read.
    pub(super) fn files_read(&self) -> u64 {
        self.files_read.load(Ordering::Relaxed)
    }

    /// How the files are.
    pub(super) async fn look_at_files(&self) -> u64 {
        let file = self.file.clone();
        let looked = tokio::task::spawn_blocking(move || settings::loader().fingerprint(&file)).await;
        // It does not panic, and if it did the next look would tell.
        looked.unwrap_or_else(|_| self.files_read())
    }

    pub(super) async fn stop_asked(&self) {
        self.stop.cancelled().await;
    }

    /// Whether other processes' commands can be carried out here. A process that was told to run pipelines of which none
    /// takes any leaves them to the others that have its file.
    pub(super) fn takes_commands(&self, loaded: &Loaded) -> bool {
        let mut runs =
            loaded.topologies.iter().filter(|topology| self.only.iter().any(|name| **name == *topology.name));
        self.only.is_empty() || runs.any(|topology| !topology.serves.is_empty())
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
        // Before they are read: a change in between is one that the next look finds.
        self.files_read.store(self.look_at_files().await, Ordering::Relaxed);
        let loaded = match settings::loader().load(&self.file, settings::environment()) {
            Ok(loaded) => loaded,
            Err(wrong) => {
                counter!(RELOADS, "outcome" => "refused").increment(1);
                log(&wrong);
                tracing::error!(
                    file = %self.file.display(), errors = wrong.errors(), "reload refused, nothing was changed"
                );
                let wrong = wrong.render(Style::Plain);
                return Err(format!("the configuration is wrong, nothing was changed\n{wrong}"));
            }
        };
        log(&loaded.warnings);
        self.tell_of_changes_that_wait(&loaded);
        let report = self.runtime.apply(self.wanted(loaded.topologies)).await;
        counter!(RELOADS, "outcome" => "applied").increment(1);
        tracing::info!(
            started = ?report.started, restarted = ?report.restarted, stopped = ?report.stopped,
            unchanged = ?report.unchanged, "reloaded"
        );
        Ok(report)
    }

    fn tell_of_changes_that_wait(&self, loaded: &Loaded) {
        for (name, table) in &fixed_sections(loaded) {
            if self.sections.get(name) != Some(table) {
                tracing::warn!(table = name, "changed, but takes effect only after a restart");
            }
        }
    }
}

/// One line each, for machines that read logs.
fn log(found: &Diagnostics) {
    for Diagnostic { severity, origin, path, message, help } in found {
        let help = help.as_deref();
        match severity {
            Severity::Error => {
                tracing::error!(place = %origin, key = path, problem = message, help, "configuration error");
            }
            Severity::Warning => {
                tracing::warn!(place = %origin, key = path, problem = message, help, "configuration warning");
            }
        }
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

    fn components(&self) -> Vec<Component> {
        self.components.now()
    }

    fn metrics(&self) -> String {
        self.metrics.render()
    }

    async fn running(&self) -> Running {
        let mut pipelines = Vec::new();
        for topology in self.runtime.topologies() {
            let positions = self.runtime.host().positions.load(&topology.name).await.ok().flatten();
            pipelines.push(RunningPipeline { entry: (*topology.entry).clone(), positions });
        }
        Running { only: self.only.clone(), pipelines }
    }

    async fn reload(&self) -> Result<ReloadReport, String> {
        self.reload_file().await
    }

    fn tap(&self, pipeline: &str, stage: &str) -> Result<mpsc::Receiver<TapRecord>, String> {
        self.runtime.tap(pipeline, stage)
    }

    async fn redrive(&self, request: Redrive) -> Result<RedriveReport, String> {
        let (topologies, host) = (self.runtime.topologies(), self.runtime.host());
        self.redrives.run(&topologies, host, &request, &self.stop).await
    }

    fn job(&self, job: serde_json::Value) -> Result<mpsc::Receiver<WorkLine>, String> {
        let connected = self.runtime.host().services.get::<Connected>();
        let connected = connected.ok_or("the running process uses neither store nor log; stop it first")?;
        self.jobs.start(&connected, job, &self.stop)
    }

    async fn reset(&self, reset: serde_json::Value) -> Result<serde_json::Value, String> {
        let reset: Reset = serde_json::from_value(reset)
            .map_err(|error| format!("{error}; is the command as old as the process?"))?;
        let of_pipeline = self.health().into_iter().find(|health| health.name == reset.pipeline);
        if let Some(PipelineHealth { state, .. }) = of_pipeline.filter(|health| !health.state.is_at_rest()) {
            return Err(format!(
                "pipeline `{}` is {} and would commit over it; end the process with `courant stop` first",
                reset.pipeline,
                state.name()
            ));
        }
        let connected = self.runtime.host().services.get::<Connected>();
        let connected = connected.ok_or("the running process has no log open; stop it first")?;
        let moved = positions::reset(&*connected.log, &reset).await.map_err(|error| error.to_string())?;
        tracing::info!(pipeline = reset.pipeline, group = reset.group, to = ?reset.to, "set where a group goes on");
        serde_json::to_value(moved).map_err(|error| error.to_string())
    }

    fn replay(&self, ask: serde_json::Value) -> Result<mpsc::Receiver<WorkLine>, String> {
        self.replays.start(&self.runtime, ask, &self.stop)
    }

    async fn look_up(&self, wanted: LookUp) -> Result<Vec<TableRow>, String> {
        let open = self.runtime.host().services.get::<OpenTables>();
        let open = open.ok_or("this process has no tables open")?;
        let (_, table) = open.find(&wanted.pipeline, wanted.stage.as_deref())?;
        look_up(&table, &wanted).await.map_err(|error| error.to_string())
    }

    fn stop(&self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
