//! Random graphs, failures, pauses, reloads and shutdowns: the invariants hold for all of them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::world::{Arrival, World, numbers, quick};
use crate::config::{OnError, Topology};
use crate::health::PipelineState;
use crate::runtime::Runtime;
use crate::units::Span;

const COUNT: u64 = 400;

#[derive(Debug, Clone)]
struct Shape {
    stages: Vec<RandomStage>,
    /// Where further sinks hang on, as a fraction of the stages.
    branches: Vec<prop::sample::Index>,
    keys: u64,
    chunk: usize,
}

#[derive(Debug, Clone)]
struct RandomStage {
    act: &'static str,
    every: u64,
    at: u64,
    times: u32,
    pause_ms: u64,
    lanes: usize,
    buffer: Option<usize>,
    batch: u32,
    wait_ms: u64,
    deadline: bool,
    on_error: OnError,
}

/// What disturbs a run.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    Reload,
    /// As a deploy does: stop and start.
    Shutdown,
}

fn stage(crashes: bool) -> impl Strategy<Value = RandomStage> {
    let mut acts = vec![
        "none",
        "flaky",
        "careless",
        "reject",
        "drop",
        "down",
        "split",
        "split-fail",
        "rekey",
        "careless-rekey",
    ];
    if crashes {
        acts.extend(["panic", "fatal"]);
    }
    let on_error =
        prop_oneof![3 => Just(OnError::DeadLetter), 1 => Just(OnError::Drop), 1 => Just(OnError::Retry)];
    let what = (prop::sample::select(acts), 2u64..40, any::<prop::sample::Index>(), 0u32..4, 0u64..8);
    let how = (1usize..5, prop::option::of(1usize..200), 1u32..100, 0u64..10, any::<bool>(), on_error);
    (what, how).prop_map(|((act, every, at, times, pause_ms), how)| {
        let (lanes, buffer, batch, wait_ms, deadline, on_error) = how;
        // All or none: a key that only some of its records get says nothing about their order.
        let every = if act == "rekey" { 1 } else { every };
        let at = at.index(usize::try_from(every).unwrap()) as u64;
        // A reject that is retried for ever never ends, and a run must end to be looked at.
        let rejects = act == "reject" || act == "split-fail";
        let on_error = if rejects && on_error == OnError::Retry { OnError::Drop } else { on_error };
        RandomStage { act, every, at, times, pause_ms, lanes, buffer, batch, wait_ms, deadline, on_error }
    })
}

fn shape(crashes: bool) -> impl Strategy<Value = Shape> {
    let stages = prop::collection::vec(stage(crashes), 1..5);
    let branches = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    (stages, branches, 1u64..12, 1usize..90).prop_map(|(stages, branches, keys, chunk)| Shape {
        stages,
        branches,
        keys,
        chunk,
    })
}

fn disturbances() -> impl Strategy<Value = Vec<(u64, Disturbance)>> {
    let kind = prop_oneof![Just(Disturbance::Reload), Just(Disturbance::Shutdown)];
    prop::collection::vec((0u64..60, kind), 0..5)
}

/// The topology of a shape. `version` changes nothing but makes a reload see a change.
fn topology(world: &Arc<World>, shape: &Shape, version: usize) -> Topology {
    world.sinks.lock().unwrap().clear();
    let mut build = numbers(world, COUNT, shape.keys, shape.chunk);
    for (index, s) in shape.stages.iter().enumerate() {
        let params = json!({
            "act": s.act, "every": s.every, "at": s.at, "times": s.times, "pause_ms": s.pause_ms,
            "drops_failed": s.on_error == OnError::Drop, "version": version
        });
        build = build.mischief(&format!("s{index}"), params).with(|policy| {
            policy.lanes = Some(s.lanes);
            policy.buffer = s.buffer;
            policy.batch.records = NonZeroU32::new(s.batch).unwrap();
            policy.batch.wait = Span::millis(s.wait_ms);
            policy.retry = quick();
            policy.retry.deadline = s.deadline.then(|| Span::millis(60));
            policy.on_error = s.on_error;
        });
    }
    build = build.collect("sink");
    for (index, at) in shape.branches.iter().enumerate() {
        build = build.collect_from(&format!("branch{index}"), at.index(shape.stages.len() + 1));
    }
    build.done()
}

/// What is left to look at once everything has ended.
struct Outcome {
    world: Arc<World>,
    read: u64,
    settled: u64,
}

async fn play(shape: &Shape, disturb: &[(u64, Disturbance)]) -> Outcome {
    let world = Arc::new(World::default());
    let mut runtime = Runtime::new(world.host());
    let (mut read, mut settled) = (0, 0);
    runtime.apply(vec![topology(&world, shape, 0)]).await;
    for (version, (after, what)) in (1..).zip(disturb) {
        tokio::time::sleep(Duration::from_millis(*after)).await;
        if let Disturbance::Shutdown = what {
            // An empty set drains like a shutdown, but the counts can still be looked at before.
            let shared = runtime.counts("test");
            runtime.drain().await;
            read += shared.records_read();
            settled += shared.tally().sum();
            runtime = Runtime::new(world.host());
        }
        runtime.apply(vec![topology(&world, shape, version)]).await;
    }
    runtime.finished().await;
    let health = runtime.health().remove(0);
    assert_eq!(health.state, PipelineState::Finished);
    Outcome { world, read: read + health.read, settled: settled + health.dispositions.sum() }
}

fn check(outcome: &Outcome, exactly_once: bool, splits: bool) -> Result<(), TestCaseError> {
    let world = &outcome.world;
    prop_assert_eq!(outcome.read, outcome.settled, "read = sum of dispositions");
    prop_assert!(world.violations.lock().unwrap().is_empty(), "{:?}", world.violations.lock().unwrap());
    for (sink, arrived) in world.arrived.lock().unwrap().iter() {
        let mut last: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for Arrival { run, key, n } in arrived {
            let run = if exactly_once { 0 } else { *run };
            if let Some(before) = last.insert((run, *key), *n) {
                let in_order = if splits { before <= *n } else { before < *n };
                prop_assert!(in_order, "at {sink}, key {key}: {n} came after {before}");
            }
        }
    }
    let saved = world.saved.lock().unwrap();
    let position = saved["test"].positions.values().next().copied();
    prop_assert_eq!(position, Some(COUNT), "everything is committed in the end");
    Ok(())
}

/// More when a soak is asked for.
fn cases() -> u32 {
    std::env::var("COURANT_SOAK_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150)
}

fn on_paused_clock<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 400, ..ProptestConfig::default() })]

    /// Reloads and shutdowns alone: nothing is lost, doubled or reordered, however stages fail.
    #[test]
    fn clean_changes_deliver_exactly_once(shape in shape(false), disturb in disturbances()) {
        let splits = shape.stages.iter().any(|stage| stage.act == "split");
        let outcome = on_paused_clock(play(&shape, &disturb));
        check(&outcome, true, splits)?;
    }

    /// With panics and fatal errors: at least once, and order within each run.
    #[test]
    fn crashes_lose_nothing(shape in shape(true), disturb in disturbances()) {
        let splits = shape.stages.iter().any(|stage| stage.act == "split");
        let outcome = on_paused_clock(play(&shape, &disturb));
        check(&outcome, false, splits)?;
    }
}
