//! The pipelines of a process: started, reloaded and drained together.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Host;
use super::supervisor::{Shared, supervise};
use crate::config::Topology;
use crate::health::PipelineHealth;
use crate::ledger::Progress;
use crate::tap::TapRecord;

/// The pipelines of a process.
pub struct Runtime {
    host: Host,
    /// Held while pipelines change: one reload at a time.
    changing: Mutex<()>,
    pipelines: RwLock<BTreeMap<Arc<str>, Pipeline>>,
}

struct Pipeline {
    topology: Topology,
    shared: Arc<Shared>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What a reload did, by pipeline name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    pub started: Vec<String>,
    pub restarted: Vec<String>,
    pub stopped: Vec<String>,
    pub unchanged: Vec<String>,
}

impl Runtime {
    pub fn new(host: Host) -> Self {
        Self { host, changing: Mutex::new(()), pipelines: RwLock::default() }
    }

    /// Makes `wanted` the set of running pipelines. Those that are not changed keep running undisturbed; the
    /// others are drained first, and a changed one starts where its predecessor left off.
    pub async fn apply(&self, wanted: Vec<Topology>) -> ReloadReport {
        let _one_at_a_time = self.changing.lock().await;
        let mut report = ReloadReport::default();
        let mut leaving = Vec::new();
        let mut starting = Vec::new();
        {
            let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
            let mut before = std::mem::take(&mut *running);
            for topology in wanted {
                let name = topology.name.to_string();
                match before.remove(&topology.name) {
                    Some(same) if same.topology.entry == topology.entry => {
                        report.unchanged.push(name);
                        running.insert(Arc::clone(&topology.name), same);
                    }
                    Some(old) => {
                        report.restarted.push(name);
                        starting.push((topology, Some(Arc::clone(&old.shared.progress))));
                        leaving.push(old);
                    }
                    None => {
                        report.started.push(name);
                        starting.push((topology, None));
                    }
                }
            }
            report.stopped.extend(before.keys().map(ToString::to_string));
            leaving.extend(before.into_values());
        }
        join_all(leaving.into_iter().map(Pipeline::drain)).await;
        let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
        for (topology, progress) in starting {
            running.insert(Arc::clone(&topology.name), self.start(topology, progress));
        }
        report
    }

    fn start(&self, topology: Topology, progress: Option<Arc<Progress>>) -> Pipeline {
        let shared = Arc::new(match progress {
            Some(progress) => Shared::continuing(&topology, progress),
            None => Shared::new(&topology),
        });
        let stop = CancellationToken::new();
        let task =
            tokio::spawn(supervise(topology.clone(), self.host.clone(), Arc::clone(&shared), stop.clone()));
        Pipeline { topology, shared, stop, task }
    }

    /// Stops every pipeline: sources first, then what is under way, within the drain deadline.
    pub async fn drain(&self) {
        let _one_at_a_time = self.changing.lock().await;
        let leaving = std::mem::take(&mut *self.pipelines.write().unwrap_or_else(PoisonError::into_inner));
        join_all(leaving.into_values().map(Pipeline::drain)).await;
    }

    /// Waits until every pipeline has finished, as those with a finite source do.
    pub async fn finished(&self) {
        loop {
            let running = self.read(|pipelines| {
                pipelines
                    .values()
                    .find(|pipeline| !pipeline.shared.has_ended())
                    .map(|p| Arc::clone(&p.shared))
            });
            match running {
                Some(shared) => shared.ended().await,
                None => return,
            }
        }
    }

    pub fn health(&self) -> Vec<PipelineHealth> {
        self.read(|pipelines| pipelines.values().map(|pipeline| pipeline.shared.health()).collect())
    }

    /// What runs now.
    pub fn topologies(&self) -> Vec<Topology> {
        self.read(|pipelines| pipelines.values().map(|pipeline| pipeline.topology.clone()).collect())
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Watches the records that leave a stage, until the receiver is dropped.
    pub fn tap(&self, pipeline: &str, stage: &str) -> Result<mpsc::Receiver<TapRecord>, String> {
        self.read(|pipelines| {
            let Some(found) = pipelines.get(pipeline) else {
                let names: Vec<_> = pipelines.keys().map(|name| &**name).collect();
                return Err(format!("no pipeline `{pipeline}` is running; running: {}", names.join(", ")));
            };
            let Some(index) = found.topology.index_of(stage) else {
                let names: Vec<_> = found.topology.stages.iter().map(|stage| &*stage.name).collect();
                return Err(format!(
                    "pipeline `{pipeline}` has no stage `{stage}`; its stages: {}",
                    names.join(", ")
                ));
            };
            Ok(found.shared.taps[index].watch())
        })
    }

    #[cfg(test)]
    pub(crate) fn counts(&self, pipeline: &str) -> Arc<Progress> {
        self.read(|pipelines| Arc::clone(&pipelines[pipeline].shared.progress))
    }

    fn read<T>(&self, look: impl FnOnce(&BTreeMap<Arc<str>, Pipeline>) -> T) -> T {
        look(&self.pipelines.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pipeline {
    async fn drain(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(pipeline = %self.shared.name, %error, "supervisor ended badly");
        }
    }
}
