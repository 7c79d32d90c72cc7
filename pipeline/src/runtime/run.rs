//! One life of a pipeline: build, open, run, drain, close.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::lane::{Lane, RunContext};
use super::queue::{QueueReceiver, QueueSender, queue};
use super::reader::{LastCommit, ReadEnd, Reader};
use super::supervisor::Shared;
use super::wiring::{self, Next, Parts, Segment};
use super::{Failure, Host};
use crate::ack::Tally;
use crate::config::Topology;
use crate::error::StageError;
use crate::health::{PipelineHealth, PipelineState};
use crate::spec::Part;
use crate::stage::{Source, Stage};

/// Connecting takes seconds at worst; a stage that needs longer is not coming up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// What a stage may take to make its last writes, beyond the drain's deadline.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Ending {
    /// The source came to its end and everything is settled.
    Finished,
    /// Stopped on request.
    Stopped,
    Failed(Failure),
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct RunReport {
    pub ending: Ending,
    pub read: u64,
    pub dispositions: Tally,
}

/// Runs a pipeline once, without supervision: for jobs such as a redrive or a test.
pub async fn run_to_end(topology: &Topology, host: &Host, stop: &CancellationToken) -> RunReport {
    Job::of(topology).run(host, stop).await
}

/// One run of a pipeline without supervision, which can be watched.
pub struct Job<'a> {
    topology: &'a Topology,
    shared: Arc<Shared>,
}

impl<'a> Job<'a> {
    pub fn of(topology: &'a Topology) -> Self {
        Self { topology, shared: Arc::new(Shared::of_job(topology)) }
    }

    /// How far it is, and what went wrong last.
    pub fn health(&self) -> PipelineHealth {
        self.shared.health()
    }

    /// To be called once.
    pub async fn run(&self, host: &Host, stop: &CancellationToken) -> RunReport {
        let ending = run(self.topology, host, &self.shared, stop).await;
        let progress = &self.shared.progress;
        RunReport { ending, read: progress.records_read(), dispositions: progress.tally() }
    }
}

pub(crate) async fn run(
    topology: &Topology,
    host: &Host,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) -> Ending {
    // Opening may take long, and whoever wants to stop should not have to wait for it.
    let started = tokio::select! {
        started = start(topology, host, shared) => started,
        () = stop.cancelled() => return Ending::Stopped,
    };
    match started {
        Ok((run, lane)) => run.live(lane, stop).await,
        Err(failure) => Ending::Failed(failure),
    }
}

struct Run {
    shared: Arc<Shared>,
    drain_deadline: Duration,
    stages: Vec<(Arc<str>, Arc<dyn Stage>)>,
    reader: Reader,
    lanes: JoinSet<Result<(), Failure>>,
}

/// Builds and opens everything, sinks first, so that the first record finds its way open.
async fn start(topology: &Topology, host: &Host, shared: &Arc<Shared>) -> Result<(Run, Lane), Failure> {
    let (source, stages) = build(topology, host)?;
    let named = topology.stages.iter().zip(&stages);
    let named: Vec<_> = named
        .filter_map(|(node, stage)| stage.clone().map(|stage| (Arc::clone(&node.name), stage)))
        .collect();
    let taps = shared.taps.clone();
    let source_name = Arc::clone(&topology.source().name);
    let mut reader = Reader::new(host, source, Arc::clone(shared), source_name, Arc::clone(&taps[0]));
    open(&named, &mut reader, &topology.source().name).await?;
    let context =
        RunContext { pipeline: Arc::clone(&shared.name), host: host.clone(), shared: Arc::clone(shared) };
    let segments = wiring::segments(topology, &Parts { stages, taps });
    let (reader_lane, lanes) = spawn_lanes(&Arc::new(context), segments);
    let drain_deadline = host.drain_deadline;
    Ok((Run { shared: Arc::clone(shared), drain_deadline, stages: named, reader, lanes }, reader_lane))
}

/// Opens the stages and then the source; if one cannot be opened, closes those that were.
async fn open(
    stages: &[(Arc<str>, Arc<dyn Stage>)],
    reader: &mut Reader,
    source: &str,
) -> Result<(), Failure> {
    for (index, (name, stage)) in stages.iter().enumerate().rev() {
        let in_time = timeout(OPEN_TIMEOUT, stage.open()).await;
        let opened = in_time.unwrap_or_else(|_| Err(StageError::fatal("open", "took too long")));
        if let Err(error) = opened {
            close(&stages[index + 1..]).await.ok();
            return Err(Failure::new(name, error));
        }
    }
    let in_time = timeout(OPEN_TIMEOUT, reader.open()).await;
    let opened = in_time.unwrap_or_else(|_| Err(Failure::new(source, "took too long to open")));
    if opened.is_err() {
        close(stages).await.ok();
    }
    opened
}

/// Closes stages in the order records passed them; the first that could not, if any.
async fn close(stages: &[(Arc<str>, Arc<dyn Stage>)]) -> Result<(), Failure> {
    let until = Instant::now() + CLOSE_TIMEOUT;
    let mut first = Ok(());
    for (name, stage) in stages {
        let closing = AssertUnwindSafe(timeout_at(until, stage.close())).catch_unwind().await;
        let closed = match closing {
            Ok(Ok(closed)) => closed.map_err(|error| Failure::new(name, error)),
            Ok(Err(_)) => Err(Failure::new(name, "did not close in time")),
            Err(panic) => Err(Failure::panicked(name, &*panic)),
        };
        first = first.and(closed);
    }
    first
}

type Stages = Vec<Option<Arc<dyn Stage>>>;

fn build(topology: &Topology, host: &Host) -> Result<(Box<dyn Source>, Stages), Failure> {
    let built = topology.build(&host.services).map_err(|problems| {
        let said: Vec<_> = problems.iter().map(|problem| problem.message.as_str()).collect();
        Failure::new(&topology.name, said.join("; "))
    })?;
    let mut source = None;
    let mut stages = Vec::with_capacity(built.len());
    for built in built {
        stages.push(match built.part {
            Part::Stage(stage) => Some(stage),
            Part::Source(part) => {
                source = Some(part);
                None
            }
        });
    }
    let source = source.ok_or_else(|| Failure::new(&topology.name, "has no source"))?;
    Ok((source, stages))
}

/// Spawns every lane of every segment but the first, whose only lane the reader drives itself.
fn spawn_lanes(context: &Arc<RunContext>, segments: Vec<Segment>) -> (Lane, JoinSet<Result<(), Failure>>) {
    let segments: Vec<_> = segments.into_iter().map(Arc::new).collect();
    let (senders, receivers): (Vec<Vec<QueueSender>>, Vec<Vec<QueueReceiver>>) =
        segments.iter().map(queues).unzip();
    let mut lanes = JoinSet::new();
    let lane_of = |segment: &Arc<Segment>| {
        let exits = exits(segment, &senders);
        Lane::new(Arc::clone(context), Arc::clone(segment), exits)
    };
    for (segment, inputs) in segments.iter().zip(receivers) {
        for input in inputs {
            lanes.spawn(lane_of(segment).run(input));
        }
    }
    (lane_of(&segments[0]), lanes)
}

/// A queue for each lane; none for the first segment, which the reader feeds directly.
fn queues(segment: &Arc<Segment>) -> (Vec<QueueSender>, Vec<QueueReceiver>) {
    if segment.buffer == 0 {
        return (Vec::new(), Vec::new());
    }
    let head = &segment.nodes[0];
    (0..segment.lanes)
        .map(|_| queue(segment.buffer, head.policy.batch, head.metrics.queue_depth.clone()))
        .unzip()
}

/// The queues a segment sends to. Others are left out, so that a queue closes when its senders have ended.
fn exits(segment: &Segment, senders: &[Vec<QueueSender>]) -> Vec<Vec<QueueSender>> {
    let next = segment.nodes.iter().flat_map(|node| node.next.iter().flatten()).chain(&segment.entry);
    let leads_to: Vec<usize> =
        next.filter_map(|next| if let Next::Segment(index) = next { Some(*index) } else { None }).collect();
    let queues_of = |index| if leads_to.contains(&index) { senders[index].clone() } else { Vec::new() };
    (0..senders.len()).map(queues_of).collect()
}

impl Run {
    async fn live(mut self, lane: Lane, stop: &CancellationToken) -> Ending {
        self.shared.enter(PipelineState::Running);
        let worked = self.work(lane, stop).await;
        // Whatever is left is failed by dropping it; then every record has its disposition.
        self.lanes.shutdown().await;
        let closed = close(&self.stages).await;
        let commit = if closed.is_ok() { LastCommit::Make } else { LastCommit::LeaveOut };
        let committed = match timeout(CLOSE_TIMEOUT, self.reader.close(commit)).await {
            Ok(committed) => committed,
            Err(_) => Err(Failure::new(&self.shared.name, "the last commit did not finish in time")),
        };
        match worked.and_then(|end| closed.and(committed).map(|()| end)) {
            Ok(ReadEnd::Ended) => Ending::Finished,
            Ok(ReadEnd::Stopped) => Ending::Stopped,
            Err(failure) => Ending::Failed(failure),
        }
    }

    /// Reads to the end, then lets the lanes finish; a stop bounds how long that may take.
    async fn work(&mut self, lane: Lane, stop: &CancellationToken) -> Result<ReadEnd, Failure> {
        let mut overdue = std::pin::pin!(overdue(&self.shared, stop, self.drain_deadline));
        let end = tokio::select! {
            end = self.reader.run(lane, stop) => end?,
            failure = first_failure(&mut self.lanes) => return Err(failure),
            () = &mut overdue => return Ok(ReadEnd::Stopped),
        };
        tokio::select! {
            finished = self.reader.commit_along(all_finished(&mut self.lanes)) => finished?.map(|()| end),
            () = &mut overdue => Ok(ReadEnd::Stopped),
        }
    }
}

/// Resolves when a stop was asked for and its deadline has passed.
async fn overdue(shared: &Arc<Shared>, stop: &CancellationToken, deadline: Duration) {
    let shared = Arc::clone(shared);
    stop.cancelled().await;
    shared.enter(PipelineState::Draining);
    tokio::time::sleep(deadline).await;
    tracing::warn!(pipeline = %shared.name, "drain ran out of time, records under way go back to the source");
}

/// Waits for a lane to fail; lanes that end well before the reader have nothing to say.
async fn first_failure(lanes: &mut JoinSet<Result<(), Failure>>) -> Failure {
    loop {
        match lanes.join_next().await {
            Some(ended) => {
                if let Err(failure) = flatten(ended) {
                    return failure;
                }
            }
            None => std::future::pending().await,
        }
    }
}

async fn all_finished(lanes: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = lanes.join_next().await {
        flatten(ended)?;
    }
    Ok(())
}

fn flatten(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    match ended {
        Ok(ended) => ended,
        Err(error) if error.is_panic() => Err(Failure::panicked("lane", &*error.into_panic())),
        Err(_) => Err(Failure::new("lane", "was cancelled")),
    }
}
