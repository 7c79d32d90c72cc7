//! From a topology to segments: which stages share a task, and where the queues are.
//!
//! A stage joins the segment of the stage it takes its input from, and then runs in the same task without a
//! channel between them, unless it has a reason of its own not to: a buffer, a wait for batches to fill, another
//! number of lanes, or a stage before it that changed the records' keys. The source is alone in segment 0 with whatever is fused to it, and that segment has
//! one lane: the reader.

use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::circuit::Circuit;
use crate::config::{Policy, Topology};
use crate::metrics::StageMetrics;
use crate::stage::Stage;
use crate::tap::Tap;

/// Records that may wait in front of a stage that needs a queue and names no `buffer`: two default batches, so
/// that one fills while the other is worked on.
const DEFAULT_BUFFER: usize = 1024;

/// Where a stage's records go next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// To a stage of the same segment, by index.
    Fused(usize),
    /// To another segment, by index, through its queues.
    Segment(usize),
}

/// A stage at work.
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) stage: Arc<dyn Stage>,
    pub(crate) policy: Policy,
    pub(crate) metrics: StageMetrics,
    pub(crate) circuit: Circuit,
    pub(crate) tap: Arc<Tap>,
    /// Its records may leave with another key than they came with.
    pub(crate) rekeys: bool,
    pub(crate) complaints: Complaints,
    /// Clients are answered when a record leaves here.
    pub(crate) answers: bool,
    /// By output.
    pub(crate) next: Vec<Vec<Next>>,
}

/// Keeps a stage that fails from filling the log: one line now and then says the same as a thousand.
#[derive(Default)]
pub(crate) struct Complaints(Mutex<Option<Instant>>);

const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

impl Complaints {
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// Stages that share a task per lane.
pub(crate) struct Segment {
    pub(crate) nodes: Vec<Node>,
    pub(crate) lanes: usize,
    pub(crate) buffer: usize,
    /// Where records enter: the first stage, or for segment 0 what the source feeds.
    pub(crate) entry: Vec<Next>,
}

/// What stands at each stage of the topology while it runs, by topology index.
pub(crate) struct Parts {
    pub(crate) stages: Vec<Option<Arc<dyn Stage>>>,
    pub(crate) taps: Vec<Arc<Tap>>,
}

pub(crate) fn segments(topology: &Topology, parts: &Parts) -> Vec<Segment> {
    let layout = Layout::of(topology);
    let mut segments: Vec<Segment> = layout
        .heads
        .iter()
        .map(|head| Segment {
            nodes: Vec::new(),
            lanes: head.lanes,
            buffer: head.buffer,
            entry: if head.is_source { Vec::new() } else { vec![Next::Fused(0)] },
        })
        .collect();
    for (index, place) in layout.places.iter().enumerate() {
        let next = next_by_output(topology, &layout, index);
        let segment = &mut segments[place.segment];
        match &parts.stages[index] {
            None => segment.entry = next.into_iter().flatten().collect(),
            Some(stage) => segment.nodes.push(node(topology, index, stage, &parts.taps[index], next)),
        }
    }
    segments
}

fn node(
    topology: &Topology,
    index: usize,
    stage: &Arc<dyn Stage>,
    tap: &Arc<Tap>,
    next: Vec<Vec<Next>>,
) -> Node {
    let described = &topology.stages[index];
    let metrics = StageMetrics::of(&topology.name, &described.name);
    Node {
        name: Arc::clone(&described.name),
        stage: Arc::clone(stage),
        policy: described.policy.clone(),
        circuit: Circuit::new(described.policy.retry, metrics.circuit_open.clone()),
        metrics,
        tap: Arc::clone(tap),
        rekeys: described.rekeys,
        complaints: Complaints::default(),
        answers: topology.reply_after == Some(index),
        next,
    }
}

fn next_by_output(topology: &Topology, layout: &Layout, index: usize) -> Vec<Vec<Next>> {
    let outputs = topology.stages[index].outputs.len().max(1);
    let mut next = vec![Vec::new(); outputs];
    for (child, output) in topology.children(index) {
        let place = layout.places[child];
        let to = if place.segment == layout.places[index].segment {
            Next::Fused(place.node)
        } else {
            Next::Segment(place.segment)
        };
        next[usize::from(output)].push(to);
    }
    next
}

/// Which segment each stage is in, and where there.
struct Layout {
    places: Vec<Place>,
    /// By stage: whether its records leave it in a lane that may not be that of their key.
    rekeyed: Vec<bool>,
    heads: Vec<Head>,
}

#[derive(Clone, Copy)]
struct Place {
    segment: usize,
    node: usize,
}

struct Head {
    lanes: usize,
    buffer: usize,
    is_source: bool,
    nodes: usize,
}

impl Layout {
    fn of(topology: &Topology) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut layout = Self {
            places: vec![Place { segment: 0, node: 0 }],
            rekeyed: vec![false],
            heads: vec![Head { lanes: 1, buffer: 0, is_source: true, nodes: 0 }],
        };
        for stage in &topology.stages[1..] {
            let input = stage.input.expect("every stage after the source has an input");
            let policy = &stage.policy;
            let upstream = layout.places[input.stage].segment;
            let inherited = if input.stage == 0 { cores } else { layout.heads[upstream].lanes };
            let lanes = policy.lanes.unwrap_or(inherited);
            // After a change of keys a record may belong in another lane.
            let in_its_lane = lanes == 1 || !layout.rekeyed[input.stage];
            let fused = policy.buffer.is_none()
                && policy.batch.wait.0.is_zero()
                && lanes == layout.heads[upstream].lanes
                && in_its_lane;
            layout.rekeyed.push(stage.rekeys || (fused && layout.rekeyed[input.stage]));
            let segment = if fused {
                upstream
            } else {
                let buffer = policy.buffer.unwrap_or(DEFAULT_BUFFER);
                layout.heads.push(Head { lanes, buffer, is_source: false, nodes: 0 });
                layout.heads.len() - 1
            };
            let head = &mut layout.heads[segment];
            layout.places.push(Place { segment, node: head.nodes });
            head.nodes += 1;
        }
        layout
    }
}
