//! Random pipelines on real threads and the real clock, with stages that fail now and then, reloaded and restarted
//! while they work. The runtime's own property tests play the same on a paused clock in one thread; here lanes run
//! at the same time. `COURANT_SOAK_CASES` says how many.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::config::{Loader, Topology};
use courant_pipeline::health::PipelineState;
use courant_pipeline::runtime::{Host, Runtime};
use courant_pipeline::spec::{BuildContext, Built, Gives, Problem, Registry, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Record, Services, Stage, StageError};
use courant_stages::host::{DeadLetterStore, PositionFiles};
use courant_stages::{sources, transforms};
use courant_tests::LIMIT;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

const COUNT: u64 = 1_500;
/// Every such number is refused by a stage that refuses.
const REFUSED: u64 = 31;

static FLAKY: StageSpec = StageSpec::transform::<Flaky>("flaky", Takes::Any, Gives::Same);
static COLLECT: StageSpec = StageSpec::sink::<Collect>("collect", Takes::Any);
static KINDS: &[&StageSpec] =
    &[&sources::generate::SPEC, &transforms::map::SPEC, &transforms::filter::SPEC, &FLAKY, &COLLECT];

/// What arrived, by sink, in order: key and number.
#[derive(Default)]
struct World(Mutex<BTreeMap<String, Vec<(String, u64)>>>);

fn number(record: &Record) -> u64 {
    let payload: serde_json::Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
    payload["n"].as_u64().unwrap()
}

/// One in `one_in`, by chance.
fn unlucky(one_in: u32) -> Result<(), StageError> {
    match rand::random_range(0..one_in) {
        0 => Err(StageError::retry("try one's luck", "no luck")),
        _ => Ok(()),
    }
}

#[derive(Clone, Deserialize, JsonSchema)]
struct Flaky {
    /// Refuse some numbers for good.
    refuses: bool,
    /// Changes nothing, so that a reload has something to change.
    #[allow(dead_code, reason = "only compared")]
    version: usize,
}

impl StageConfig for Flaky {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(self))
    }
}

#[async_trait]
impl Stage for Flaky {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        unlucky(20)?;
        if unlucky(4).is_err() {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        batch.each(|slot| match number(slot.record()) % REFUSED {
            7 if self.refuses => Err(StageError::reject("look at it", "not this one")),
            _ => unlucky(100),
        });
        unlucky(20)
    }
}

#[derive(Deserialize, JsonSchema)]
struct Collect {}

impl StageConfig for Collect {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let world = context.services.get::<World>().unwrap();
        Ok(Built::stage(Collector { world, name: context.stage.to_owned() }))
    }
}

struct Collector {
    world: Arc<World>,
    name: String,
}

#[async_trait]
impl Stage for Collector {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        unlucky(20)?;
        batch.each(|slot| {
            unlucky(100)?;
            let record = slot.record();
            let arrived = (record.key.as_ref().unwrap().to_string(), number(record));
            self.world.0.lock().unwrap().entry(self.name.clone()).or_default().push(arrived);
            Ok(())
        });
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Shape {
    stages: Vec<RandomStage>,
    /// Behind which stage a sink hangs on, besides the one at the end.
    branches: Vec<prop::sample::Index>,
    keys: u32,
}

#[derive(Debug, Clone)]
struct RandomStage {
    kind: &'static str,
    lanes: u16,
    buffer: Option<u32>,
    batch: u32,
    wait_ms: u32,
    on_error: &'static str,
}

fn shape() -> impl Strategy<Value = Shape> {
    let kind = prop::sample::select(vec!["flaky", "picky", "map", "filter"]);
    let on_error = prop::sample::select(vec!["dead-letter", "drop"]);
    let stage = (kind, 1u16..5, prop::option::of(1u32..200), 1u32..100, 0u32..3, on_error).prop_map(
        |(kind, lanes, buffer, batch, wait_ms, on_error)| RandomStage {
            kind,
            lanes,
            buffer,
            batch,
            wait_ms,
            on_error,
        },
    );
    let branches = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    (prop::collection::vec(stage, 1..5), branches, 1u32..12).prop_map(|(stages, branches, keys)| Shape {
        stages,
        branches,
        keys,
    })
}

impl Shape {
    /// Every sink with the number of stages before it.
    fn sinks(&self) -> Vec<(String, usize)> {
        let depth = |at: &prop::sample::Index| at.index(self.stages.len() + 1);
        let branches = self.branches.iter().enumerate().map(|(n, at)| (format!("branch{n}"), depth(at)));
        branches.chain([("end".to_owned(), self.stages.len())]).collect()
    }

    fn refusing(&self, before: usize) -> bool {
        self.stages[..before].iter().any(|stage| stage.kind == "picky")
    }

    /// The first stage that refuses decides; those behind it see none of these numbers.
    fn letters(&self) -> usize {
        let refused = (0..COUNT).filter(|n| n % REFUSED == 7).count();
        match self.stages.iter().find(|stage| stage.kind == "picky") {
            Some(stage) if stage.on_error == "dead-letter" => refused,
            _ => 0,
        }
    }

    fn toml(&self, version: usize) -> String {
        let retry = r#"retry = { initial = "1ms", max = "4ms", circuit_pause = "4ms" }"#;
        let mut text = format!(
            "[[pipeline]]\nname = 'soak'\n[[pipeline.stage]]\nkind = 'generate'\nname = 's0'\nparams = {{ count = {COUNT}, keys = {} }}\n",
            self.keys
        );
        for (n, stage) in self.stages.iter().enumerate() {
            let (kind, params) = match stage.kind {
                "flaky" => ("flaky", format!("refuses = false, version = {version}")),
                "picky" => ("flaky", format!("refuses = true, version = {version}")),
                kind => (kind, "expr = '.'".to_owned()),
            };
            let buffer = stage.buffer.map_or_else(String::new, |buffer| format!("buffer = {buffer}\n"));
            let RandomStage { lanes, batch, wait_ms, on_error, .. } = stage;
            write!(
                text,
                "[[pipeline.stage]]\nkind = '{kind}'\nname = 's{}'\ninput = 's{n}'\nlanes = {lanes}\n{buffer}\
                 batch = {{ records = {batch}, wait = '{wait_ms}ms' }}\non_error = '{on_error}'\n{retry}\nparams = {{ {params} }}\n",
                n + 1
            )
            .unwrap();
        }
        for (name, depth) in self.sinks() {
            writeln!(
                text,
                "[[pipeline.stage]]\nkind = 'collect'\nname = '{name}'\ninput = 's{depth}'\n{retry}"
            )
            .unwrap();
        }
        text
    }

    fn topologies(&self, services: &Services, version: usize) -> Vec<Topology> {
        let text = self.toml(version);
        let loaded =
            Loader::new(Registry(KINDS), services.clone()).load_str("soak.toml", &text, std::iter::empty());
        loaded.unwrap_or_else(|wrong| panic!("{wrong}\n{text}")).topologies
    }
}

/// What disturbs a run, once this share of a thousand has arrived at the end.
fn disturbances() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((0u64..1000, any::<bool>()), 0..5).prop_map(|mut all| {
        all.sort_unstable();
        all
    })
}

async fn play(shape: &Shape, disturbances: &[(u64, bool)]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let world = Arc::new(World::default());
    let letters = Arc::new(DeadLetterStore::open(folder.path().join("letters")).await.unwrap());
    let host = Host {
        services: Services::default().with(Arc::clone(&world)),
        dead_letters: Arc::clone(&letters) as _,
        positions: Arc::new(PositionFiles::open(folder.path().join("positions")).await.unwrap()),
        drain_deadline: LIMIT,
    };
    let mut runtime = Runtime::new(host.clone());
    runtime.apply(shape.topologies(&host.services, 0)).await;
    for (version, (share, restart)) in (1..).zip(disturbances) {
        let arrived = || world.0.lock().unwrap().get("end").map_or(0, Vec::len) as u64;
        while arrived() < COUNT * share / 1000 && runtime.health()[0].state != PipelineState::Finished {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if *restart {
            runtime.drain().await;
            runtime = Runtime::new(host.clone());
        }
        runtime.apply(shape.topologies(&host.services, version)).await;
    }
    runtime.finished().await;
    let health = runtime.health().remove(0);
    prop_assert_eq!((health.restarts, health.read), (0, health.dispositions.sum()), "{:?}", health);
    let kept = host.positions.load("soak").await.unwrap().unwrap();
    prop_assert_eq!(kept.positions.values().copied().collect::<Vec<_>>(), [COUNT]);
    let kept = letters.journal().list(None, usize::MAX).await.unwrap();
    prop_assert_eq!(kept.len(), shape.letters(), "dead letters");
    check(shape, &world)
}

/// Everything that no stage refused is at every sink, once and in its key's order.
fn check(shape: &Shape, world: &World) -> Result<(), TestCaseError> {
    let world = world.0.lock().unwrap();
    for (sink, before) in shape.sinks() {
        let refuses = shape.refusing(before);
        let wanted: Vec<u64> = (0..COUNT).filter(|n| !(refuses && n % REFUSED == 7)).collect();
        let arrived = world.get(&sink).cloned().unwrap_or_default();
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, n) in &arrived {
            let previous = last.insert(key, *n);
            prop_assert!(previous < Some(*n), "at {sink}, key {key}: {n} came after {previous:?}");
        }
        let mut numbers: Vec<u64> = arrived.iter().map(|(_, n)| *n).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, wanted, "at {}", sink);
    }
    Ok(())
}

fn cases() -> u32 {
    std::env::var("COURANT_SOAK_CASES").map_or(40, |cases| cases.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_out_of_order(shape in shape(), disturbances in disturbances()) {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        threads.block_on(async {
            let played = tokio::time::timeout(LIMIT, play(&shape, &disturbances)).await;
            played.unwrap_or_else(|_| Err(TestCaseError::fail("it does not come to an end")))
        })?;
    }
}
