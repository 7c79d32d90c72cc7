//! Keeps one pipeline alive, and tells how it is.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Retries;
use super::run::{Ending, run};
use super::{Failure, Host};
use crate::clock;
use crate::config::Topology;
use crate::health::{PipelineHealth, PipelineState};
use crate::ledger::Progress;
use crate::metrics::{PipelineMetrics, SourceMetrics};
use crate::tap::Tap;
use crate::units::Span;

const RESTART_INITIAL: Span = Span::secs(1);
const RESTART_MAX: Span = Span::secs(60);
/// A pipeline that ran this long before it failed starts over with a short back-off.
const STEADY_AFTER: Duration = Duration::from_secs(60);

/// What the outside sees of a pipeline, over all its restarts.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) progress: Arc<Progress>,
    /// By topology index.
    pub(crate) taps: Vec<Arc<Tap>>,
    metrics: PipelineMetrics,
    life: Mutex<Life>,
    /// Cancelled when it has come to its last state.
    ended: CancellationToken,
    uncommitted: AtomicU64,
    /// [`UNKNOWN_LAG`] if the source does not tell.
    lag: AtomicU64,
}

const UNKNOWN_LAG: u64 = u64::MAX;

struct Life {
    state: PipelineState,
    since: std::time::SystemTime,
    restarts: u64,
    last_error: Option<String>,
}

impl Shared {
    pub(crate) fn new(topology: &Topology) -> Self {
        let progress = Arc::new(Progress::new(SourceMetrics::of(&topology.name)));
        Self::continuing(topology, progress)
    }

    /// For a run beside the pipeline of the same name, whose gauges it must not disturb.
    pub(crate) fn of_job(topology: &Topology) -> Self {
        Self { metrics: PipelineMetrics::noop(), ..Self::continuing(topology, Arc::default()) }
    }

    /// For a new version of a pipeline: its counts go on.
    pub(crate) fn continuing(topology: &Topology, progress: Arc<Progress>) -> Self {
        Self {
            name: Arc::clone(&topology.name),
            progress,
            taps: topology.stages.iter().map(|_| Arc::default()).collect(),
            metrics: PipelineMetrics::of(&topology.name),
            life: Mutex::new(Life {
                state: PipelineState::Starting,
                since: clock::now(),
                restarts: 0,
                last_error: None,
            }),
            ended: CancellationToken::new(),
            uncommitted: AtomicU64::new(0),
            lag: AtomicU64::new(UNKNOWN_LAG),
        }
    }

    pub(crate) fn enter(&self, state: PipelineState) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if life.state == state {
            return;
        }
        (life.state, life.since) = (state, clock::now());
        self.metrics.running.set(f64::from(u8::from(state == PipelineState::Running)));
        tracing::info!(pipeline = %self.name, state = state.name(), "pipeline changed state");
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    fn end(&self, state: PipelineState) {
        self.enter(state);
        self.ended.cancel();
    }

    pub(crate) fn note_error(&self, error: &impl fmt::Display) {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).last_error = Some(error.to_string());
    }

    pub(crate) fn observe(&self, uncommitted: usize, lag: Option<u64>) {
        self.uncommitted.store(uncommitted as u64, Ordering::Relaxed);
        self.lag.store(lag.unwrap_or(UNKNOWN_LAG), Ordering::Relaxed);
        self.progress.behind(uncommitted, lag);
    }

    fn restarting(&self, failure: &Failure) {
        self.note_error(failure);
        self.life.lock().unwrap_or_else(PoisonError::into_inner).restarts += 1;
        self.metrics.restarts.increment(1);
        self.enter(PipelineState::BackingOff);
    }

    /// Waits until it has finished or was stopped.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn health(&self) -> PipelineHealth {
        let life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        // Dispositions first: records that end in between must not make the sum exceed what was read.
        let dispositions = self.progress.tally();
        let lag = self.lag.load(Ordering::Relaxed);
        PipelineHealth {
            name: self.name.to_string(),
            state: life.state,
            since: clock::iso8601(life.since),
            restarts: life.restarts,
            last_error: life.last_error.clone(),
            read: self.progress.records_read(),
            dispositions,
            commit_lag: self.uncommitted.load(Ordering::Relaxed),
            lag: (lag != UNKNOWN_LAG).then_some(lag),
        }
    }
}

/// Runs a pipeline until it finishes or is stopped; starts it again, with back-off, when it fails.
pub(crate) async fn supervise(topology: Topology, host: Host, shared: Arc<Shared>, stop: CancellationToken) {
    let mut retries = Retries::new(RESTART_INITIAL, RESTART_MAX);
    loop {
        shared.enter(PipelineState::Starting);
        let started = Instant::now();
        let failure = match run_contained(&topology, &host, &shared, &stop).await {
            Ending::Finished => return shared.end(PipelineState::Finished),
            Ending::Stopped => return shared.end(PipelineState::Stopped),
            Ending::Failed(failure) => failure,
        };
        if started.elapsed() > STEADY_AFTER {
            retries.reset();
        }
        if stop.is_cancelled() {
            tracing::error!(pipeline = %shared.name, %failure, "pipeline failed while it was stopped");
            shared.note_error(&failure);
            return shared.end(PipelineState::Stopped);
        }
        let wait = retries.next();
        tracing::error!(pipeline = %shared.name, %failure, ?wait, "pipeline failed, will restart");
        shared.restarting(&failure);
        tokio::select! {
            () = stop.cancelled() => return shared.end(PipelineState::Stopped),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// A run in a task of its own, so that a panic in a source ends that run and nothing else.
async fn run_contained(
    topology: &Topology,
    host: &Host,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) -> Ending {
    let (topology, host, shared, stop) = (topology.clone(), host.clone(), Arc::clone(shared), stop.clone());
    let source = Arc::clone(&topology.source().name);
    let running = tokio::spawn(async move { run(&topology, &host, &shared, &stop).await });
    match running.await {
        Ok(ending) => ending,
        Err(error) if error.is_panic() => Ending::Failed(Failure::panicked(&source, &*error.into_panic())),
        Err(error) => Ending::Failed(Failure::new(&source, error)),
    }
}
