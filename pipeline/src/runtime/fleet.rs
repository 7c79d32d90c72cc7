//! The pipelines of a process: started, reloaded and drained together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::{OptionFuture, join_all};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Host;
use super::supervisor::{Shared, supervise};
use crate::config::{Topology, is_same};
use crate::health::PipelineHealth;
use crate::intake::{Intake, WayIn};
use crate::ledger::Progress;
use crate::tap::TapRecord;

/// The pipelines of a process.
pub struct Runtime {
    host: Host,
    /// Held while pipelines change: one reload at a time.
    changing: Mutex<()>,
    /// Cancelled by the drain at the end: nothing starts after it.
    closed: CancellationToken,
    pipelines: RwLock<BTreeMap<Arc<str>, Pipeline>>,
}

struct Pipeline {
    topology: Topology,
    shared: Arc<Shared>,
    stop: CancellationToken,
    /// Taken by whoever drains it; until it has ended it stays in the set, so that its drain can be watched.
    task: Option<JoinHandle<()>>,
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
        Self {
            host,
            changing: Mutex::new(()),
            closed: CancellationToken::new(),
            pipelines: RwLock::default(),
        }
    }

    /// Makes `wanted` the set of running pipelines. Those that are not changed keep running undisturbed; the
    /// others are drained first, and a changed one starts where its predecessor left off.
    pub async fn apply(&self, wanted: Vec<Topology>) -> ReloadReport {
        let _one_at_a_time = self.changing.lock().await;
        let served: Vec<WayIn> = wanted.iter().flat_map(|topology| topology.serves.clone()).collect();
        let mut report = ReloadReport::default();
        let mut leaving = Vec::new();
        let mut starting = Vec::new();
        {
            let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
            let mut gone: BTreeSet<Arc<str>> = running.keys().cloned().collect();
            for topology in wanted {
                let name = topology.name.to_string();
                gone.remove(&topology.name);
                match running.get_mut(&topology.name) {
                    Some(same) if is_same(&same.topology, &topology) => report.unchanged.push(name),
                    Some(old) => {
                        report.restarted.push(name);
                        starting.push((topology, Some(Arc::clone(&old.shared.progress))));
                        leaving.push(old.drain());
                    }
                    None => {
                        report.started.push(name);
                        starting.push((topology, None));
                    }
                }
            }
            leaving.extend(gone.iter().filter_map(|name| running.get_mut(name).map(Pipeline::drain)));
            report.stopped.extend(gone.iter().map(ToString::to_string));
        }
        join_all(leaving).await;
        if let Some(intake) = self.host.services.get::<Intake>() {
            intake.keep_only(&served);
        }
        let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
        running.retain(|name, _| !report.stopped.iter().any(|stopped| **stopped == **name));
        if self.closed.is_cancelled() {
            return report; // the process is coming down; what was drained stays so
        }
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
        Pipeline { topology, shared, stop, task: Some(task) }
    }

    /// Does something while a pipeline stands still: drains it first, and starts it again afterwards, whatever came of the
    /// work. Nothing is reloaded meanwhile. A pipeline that does not run is not started.
    pub async fn while_stopped<T>(&self, pipeline: &str, work: impl Future<Output = T>) -> T {
        let _one_at_a_time = self.changing.lock().await;
        let (drained, before) = {
            let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
            let found = running.get_mut(pipeline);
            let before = found.as_ref().map(|found| (found.topology.clone(), Arc::clone(&found.shared)));
            (found.map(Pipeline::drain), before)
        };
        OptionFuture::from(drained).await;
        let done = work.await;
        if let Some((topology, shared)) = before
            && !self.closed.is_cancelled()
        {
            let name = Arc::clone(&topology.name);
            let again = self.start(topology, Some(Arc::clone(&shared.progress)));
            self.pipelines.write().unwrap_or_else(PoisonError::into_inner).insert(name, again);
        }
        done
    }

    /// Stops every pipeline for good: sources first, then what is under way, within the drain deadline.
    pub async fn drain(&self) {
        self.closed.cancel();
        self.read(|pipelines| pipelines.values().for_each(|pipeline| pipeline.stop.cancel()));
        let _one_at_a_time = self.changing.lock().await;
        let leaving: Vec<_> = {
            let mut running = self.pipelines.write().unwrap_or_else(PoisonError::into_inner);
            running.values_mut().map(Pipeline::drain).collect()
        };
        join_all(leaving).await;
        self.pipelines.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Waits until every pipeline has finished, as those with a finite source do.
    pub async fn finished(&self) {
        loop {
            if let Some(running) = self.one_running() {
                running.ended().await;
                continue;
            }
            // A pipeline that a reload has stopped is about to run again.
            let _nothing_changes = self.changing.lock().await;
            if self.one_running().is_none() {
                return;
            }
        }
    }

    fn one_running(&self) -> Option<Arc<Shared>> {
        let running = |pipeline: &&Pipeline| !pipeline.shared.has_ended();
        self.read(|pipelines| pipelines.values().find(running).map(|pipeline| Arc::clone(&pipeline.shared)))
    }

    pub fn health(&self) -> Vec<PipelineHealth> {
        self.read(|pipelines| pipelines.values().map(|pipeline| pipeline.shared.health()).collect())
    }

    /// How long records take at the moment, from reading to their end, in the slowest of these pipelines.
    pub fn latency(&self, of: impl Fn(&Topology) -> bool) -> Duration {
        self.read(|pipelines| {
            let wanted = pipelines.values().filter(|pipeline| of(&pipeline.topology));
            wanted.map(|pipeline| pipeline.shared.progress.latency()).max().unwrap_or_default()
        })
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
    /// Tells it to stop; the result waits until it has.
    fn drain(&mut self) -> impl Future<Output = ()> + use<> {
        self.stop.cancel();
        let (name, task) = (Arc::clone(&self.shared.name), self.task.take());
        async move {
            if let Some(Err(error)) = OptionFuture::from(task).await {
                tracing::error!(pipeline = %name, %error, "supervisor ended badly");
            }
        }
    }
}
