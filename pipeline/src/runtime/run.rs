//! One life of a pipeline: build, open, run, drain, close.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::lane::{Lane, RunContext};
use super::queue::{QueueReceiver, QueueSender, queue};
use super::reader::{ReadEnd, Reader};
use super::supervisor::Shared;
use super::wiring::{self, Next, Parts, Segment};
use super::{Failure, Host};
use crate::ack::Tally;
use crate::config::Topology;
use crate::health::PipelineState;
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
    let shared = Arc::new(Shared::new(topology));
    let ending = run(topology, host, &shared, stop).await;
    RunReport { ending, read: shared.progress.records_read(), dispositions: shared.progress.tally() }
}

pub(crate) async fn run(
    topology: &Topology,
    host: &Host,
    shared: &Arc<Shared>,
    stop: &CancellationToken,
) -> Ending {
    match start(topology, host, shared).await {
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
    let open: Vec<_> = topology
        .stages
        .iter()
        .zip(&stages)
        .filter_map(|(node, stage)| stage.clone().map(|stage| (Arc::clone(&node.name), stage)))
        .collect();
    for (name, stage) in open.iter().rev() {
        open_in_time(name, stage.open()).await?;
    }
    let taps = shared.taps.clone();
    let source_name = Arc::clone(&topology.source().name);
    let mut reader =
        Reader::new(host.clone(), source, Arc::clone(shared), Arc::clone(&source_name), Arc::clone(&taps[0]));
    match timeout(OPEN_TIMEOUT, reader.open()).await {
        Ok(opened) => opened?,
        Err(_) => return Err(Failure::new(&source_name, "did not open in time")),
    }
    let context = Arc::new(RunContext {
        pipeline: Arc::clone(&shared.name),
        host: host.clone(),
        shared: Arc::clone(shared),
    });
    let segments = wiring::segments(topology, &Parts { stages, taps });
    let (reader_lane, lanes) = spawn_lanes(&context, segments);
    let drain_deadline = host.drain_deadline;
    Ok((Run { shared: Arc::clone(shared), drain_deadline, stages: open, reader, lanes }, reader_lane))
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

async fn open_in_time(
    name: &str,
    open: impl Future<Output = Result<(), crate::error::StageError>>,
) -> Result<(), Failure> {
    match timeout(OPEN_TIMEOUT, open).await {
        Ok(opened) => opened.map_err(|error| Failure::new(name, error)),
        Err(_) => Err(Failure::new(name, "did not open in time")),
    }
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
        let closed = self.close().await;
        match (worked, closed) {
            (Err(failure), _) | (Ok(_), Err(failure)) => Ending::Failed(failure),
            (Ok(ReadEnd::Ended), Ok(())) => Ending::Finished,
            (Ok(ReadEnd::Stopped), Ok(())) => Ending::Stopped,
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
            finished = all_finished(&mut self.lanes) => finished?,
            failed = self.reader.commit_along() => match failed {
                Ok(never) => match never {},
                Err(failure) => return Err(failure),
            },
            () = &mut overdue => return Ok(ReadEnd::Stopped),
        }
        Ok(end)
    }

    /// Closes the stages in the order records passed them, then commits and closes the source.
    async fn close(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + CLOSE_TIMEOUT;
        let mut first = Ok(());
        for (name, stage) in &self.stages {
            let closed = match timeout_at(until, stage.close()).await {
                Ok(closed) => closed.map_err(|error| Failure::new(name, error)),
                Err(_) => Err(Failure::new(name, "did not close in time")),
            };
            first = first.and(closed);
        }
        match timeout_at(until.max(Instant::now() + CLOSE_TIMEOUT), self.reader.close()).await {
            Ok(closed) => first.and(closed),
            Err(_) => {
                first.and(Err(Failure::new(&self.shared.name, "the last commit did not finish in time")))
            }
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
