//! A small world for runtime tests: a source of numbers, stages that misbehave on cue, and a memory of everything
//! that happened.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::batch::{Batch, Slot};
use crate::config::{
    BatchLimits, Input, OnError, PipelineEntry, Plane, Policy, RetryPolicy, StageEntry, StageNode, Topology,
};
use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::error::StageError;
use crate::positions::{PositionStore, SavedPositions};
use crate::record::Record;
use crate::runtime::Host;
use crate::services::Services;
use crate::spec::{BuildContext, Built, Effect, Gives, JSON, Problem, StageConfig, StageSpec, Takes};
use crate::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch, Source, Stage};
use crate::units::{Size, Span};

/// Everything that happened.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) arrived: Mutex<BTreeMap<String, Vec<Arrival>>>,
    /// The same as sets, for quick look-ups.
    seen: Mutex<BTreeMap<String, BTreeSet<u64>>>,
    buried: Mutex<BTreeSet<u64>>,
    pub(crate) letters: Mutex<Vec<DeadLetter>>,
    /// Dropped by a stage, or failed where `on_error` says drop.
    pub(crate) dropped: Mutex<BTreeSet<u64>>,
    pub(crate) saved: Mutex<BTreeMap<String, SavedPositions>>,
    pub(crate) calls: AtomicU64,
    pub(crate) runs: AtomicU32,
    pub(crate) violations: Mutex<Vec<String>>,
    /// Sinks a record must reach before its position may be committed.
    pub(crate) sinks: Mutex<Vec<String>>,
    tries: Mutex<BTreeMap<(String, u64), u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) run: u32,
    pub(crate) key: u64,
    pub(crate) n: u64,
}

impl World {
    pub(crate) fn host(self: &Arc<Self>) -> Host {
        Host {
            services: Services::default().with(Arc::clone(self)),
            dead_letters: Arc::clone(self) as _,
            positions: Arc::clone(self) as _,
            drain_deadline: Duration::from_secs(30),
        }
    }

    pub(crate) fn arrived_at(&self, sink: &str) -> Vec<u64> {
        self.arrived
            .lock()
            .unwrap()
            .get(sink)
            .map(|all| all.iter().map(|a| a.n).collect())
            .unwrap_or_default()
    }

    fn complain(&self, what: String) {
        let mut violations = self.violations.lock().unwrap();
        if violations.len() < 5 {
            violations.push(what);
        }
    }

    /// Whether a record has come to an end on every branch, as far as stages and dead letters saw.
    fn has_ended(&self, n: u64) -> bool {
        if self.dropped.lock().unwrap().contains(&n) || self.buried.lock().unwrap().contains(&n) {
            return true;
        }
        let seen = self.seen.lock().unwrap();
        self.sinks.lock().unwrap().iter().all(|sink| seen.get(sink).is_some_and(|all| all.contains(&n)))
    }
}

#[async_trait]
impl DeadLetters for World {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<(), StageError> {
        self.buried.lock().unwrap().extend(letters.iter().map(|letter| number(&letter.payload)));
        self.letters.lock().unwrap().extend(letters);
        Ok(())
    }
}

#[async_trait]
impl PositionStore for World {
    async fn load(&self, pipeline: &str) -> Result<Option<SavedPositions>, StageError> {
        Ok(self.saved.lock().unwrap().get(pipeline).cloned())
    }

    async fn save(&self, pipeline: &str, saved: &SavedPositions) -> Result<(), StageError> {
        let position = saved.positions.get(&Partition::only()).copied().unwrap_or(0);
        let before = self
            .saved
            .lock()
            .unwrap()
            .get(pipeline)
            .and_then(|s| s.positions.get(&Partition::only()).copied());
        if before.is_some_and(|before| before > position) {
            self.complain(format!("position went back from {before:?} to {position}"));
        }
        for n in before.unwrap_or(0)..position {
            if !self.has_ended(n) {
                self.complain(format!("committed {position} although record {n} has not ended"));
            }
        }
        self.saved.lock().unwrap().insert(pipeline.to_owned(), saved.clone());
        Ok(())
    }
}

fn number(payload: &[u8]) -> u64 {
    std::str::from_utf8(payload).unwrap().parse().unwrap()
}

pub(crate) fn number_of(record: &Record) -> u64 {
    number(&record.payload.to_json())
}

/// Numbers from 0, spread over keys.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct NumbersConfig {
    count: Option<u64>,
    keys: u64,
    chunk: usize,
}

pub(crate) struct Numbers {
    config: NumbersConfig,
    world: Arc<World>,
    next: u64,
    run: u32,
}

impl StageConfig for NumbersConfig {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let world = context.services.get::<World>().unwrap();
        Ok(Built::source(Numbers { config: self, world, next: 0, run: 0 }))
    }
}

#[async_trait]
impl Source for Numbers {
    fn identity(&self) -> String {
        "numbers".into()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        self.next = resume.get(&Partition::only()).copied().unwrap_or(0);
        self.run = self.world.runs.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        tokio::task::yield_now().await;
        let end = self.config.count.unwrap_or(u64::MAX);
        let upto = (self.next + self.config.chunk.min(max) as u64).min(end);
        if self.next == upto {
            return Ok(Read::End);
        }
        let mut batch = ReadBatch::new(Partition::only(), max);
        for n in self.next..upto {
            let mut record = Record::new(n.to_string()).with_key(format!("{}", n % self.config.keys));
            record.headers.set("run", self.run.to_string());
            batch.push(record, n + 1);
        }
        self.next = upto;
        Ok(Read::Batch(batch))
    }
}

/// Does what its numbers say: `n % every == at` selects the records, `act` what happens to them.
#[derive(Deserialize, JsonSchema, Clone)]
pub(crate) struct MischiefConfig {
    act: String,
    every: u64,
    at: u64,
    /// For failures: how many tries fail before the record passes.
    #[serde(default)]
    times: u32,
    #[serde(default)]
    pause_ms: u64,
    /// Failed records are dropped by policy.
    #[serde(default)]
    drops_failed: bool,
}

pub(crate) struct Mischief {
    name: String,
    config: MischiefConfig,
    world: Arc<World>,
}

impl StageConfig for MischiefConfig {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let world = context.services.get::<World>().unwrap();
        Ok(Built::stage(Mischief { name: context.stage.to_owned(), config: self, world }))
    }
}

impl Mischief {
    fn chosen(&self, n: u64) -> bool {
        n % self.config.every == self.config.at
    }

    /// Whether this try is one of those that fail.
    fn fails_now(&self, n: u64) -> bool {
        let mut tries = self.world.tries.lock().unwrap();
        let count = tries.entry((self.name.clone(), n)).or_default();
        *count += 1;
        *count <= self.config.times
    }

    fn act(&self, slot: &mut Slot) -> Result<(), StageError> {
        let n = number_of(slot.record());
        if !self.chosen(n) {
            return Ok(());
        }
        let acted = self.act_on(n, slot);
        if acted.is_err() {
            self.failed(n);
        }
        acted
    }

    fn failed(&self, n: u64) {
        if self.config.drops_failed {
            self.world.dropped.lock().unwrap().insert(n);
        }
    }

    fn act_on(&self, n: u64, slot: &mut Slot) -> Result<(), StageError> {
        match self.config.act.as_str() {
            "flaky" if self.fails_now(n) => return Err(StageError::retry("be flaky", "not now")),
            "reject" => return Err(StageError::reject("read", "not a number I like")),
            "fatal" if self.fails_now(n) => return Err(StageError::fatal("go on", "broken")),
            "drop" => {
                self.world.dropped.lock().unwrap().insert(n);
                slot.drop_as("odd");
            }
            "panic" if self.fails_now(n) => panic!("cannot stand {n}"),
            "split" => {
                let parts = (0..2).map(|_| slot.record().derive(n.to_string())).collect();
                slot.replace(parts);
            }
            _ => {}
        }
        Ok(())
    }
}

#[async_trait]
impl Stage for Mischief {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        self.world.calls.fetch_add(1, Ordering::SeqCst);
        if self.config.pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.config.pause_ms)).await;
        }
        if self.config.act == "down" {
            let first = number_of(batch.records().next().unwrap());
            if self.chosen(first) && self.fails_now(first) {
                batch.records().for_each(|record| self.failed(number_of(record)));
                return Err(StageError::retry("connect", "down"));
            }
        }
        if self.config.act == "careless" {
            // Fails records without holding those behind them: what comes after must still be in order.
            for slot in batch {
                let n = number_of(slot.record());
                if self.chosen(n) && self.fails_now(n) {
                    self.failed(n);
                    slot.fail(StageError::retry("be careless", "not now"));
                }
            }
            return Ok(());
        }
        batch.each(|slot| self.act(slot));
        Ok(())
    }
}

/// Remembers what arrives.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct CollectConfig {}

pub(crate) struct Collect {
    name: String,
    world: Arc<World>,
}

impl StageConfig for CollectConfig {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let world = context.services.get::<World>().unwrap();
        Ok(Built::stage(Collect { name: context.stage.to_owned(), world }))
    }
}

#[async_trait]
impl Stage for Collect {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let mut arrived = self.world.arrived.lock().unwrap();
        let here = arrived.entry(self.name.clone()).or_default();
        let mut seen = self.world.seen.lock().unwrap();
        seen.entry(self.name.clone()).or_default().extend(batch.records().map(number_of));
        for record in batch.records() {
            let key = record.key.as_ref().unwrap().as_str().parse().unwrap();
            let run = record.headers.get("run").unwrap().parse().unwrap();
            here.push(Arrival { run, key, n: number_of(record) });
        }
        Ok(())
    }
}

static NUMBERS: StageSpec = StageSpec::source::<NumbersConfig>("numbers", JSON);
static MISCHIEF: StageSpec = StageSpec::transform::<MischiefConfig>("mischief", Takes::Any, Gives::Same);
static COLLECT: StageSpec =
    StageSpec::sink::<CollectConfig>("collect", Takes::Any).effect(Effect::IdempotentWrite);

/// Puts a topology together stage by stage.
pub(crate) struct Build {
    stages: Vec<StageNode>,
    world: Arc<World>,
}

pub(crate) fn numbers(world: &Arc<World>, count: impl Into<Option<u64>>, keys: u64, chunk: usize) -> Build {
    let params = json!({"count": count.into(), "keys": keys, "chunk": chunk});
    let mut build = Build { stages: Vec::new(), world: Arc::clone(world) };
    build.push("numbers", &NUMBERS, params, None);
    build
}

impl Build {
    fn push(
        &mut self,
        name: &str,
        spec: &'static StageSpec,
        params: serde_json::Value,
        input: Option<usize>,
    ) {
        self.stages.push(StageNode {
            name: name.into(),
            spec,
            params,
            input: input.map(|stage| Input { stage, output: 0 }),
            outputs: Vec::new(),
            access: Vec::new(),
            policy: Policy {
                lanes: Some(1),
                batch: BatchLimits { bytes: Size(1 << 20), ..BatchLimits::default() },
                buffer: None,
                retry: RetryPolicy::default(),
                on_error: OnError::DeadLetter,
                dead_letter_queue: "letters".into(),
            },
        });
    }

    pub(crate) fn mischief(mut self, name: &str, params: serde_json::Value) -> Self {
        let after = self.stages.len() - 1;
        self.push(name, &MISCHIEF, params, Some(after));
        self
    }

    pub(crate) fn collect(self, name: &str) -> Self {
        let after = self.stages.len() - 1;
        self.collect_from(name, after)
    }

    pub(crate) fn collect_from(mut self, name: &str, stage: usize) -> Self {
        self.push(name, &COLLECT, json!({}), Some(stage));
        self.world.sinks.lock().unwrap().push(name.to_owned());
        self
    }

    /// Sets the policy of the stage added last.
    pub(crate) fn with(mut self, set: impl FnOnce(&mut Policy)) -> Self {
        set(&mut self.stages.last_mut().unwrap().policy);
        self
    }

    pub(crate) fn done(self) -> Topology {
        let stage = |node: &StageNode| StageEntry {
            kind: node.spec.kind.into(),
            name: Some(node.name.to_string()),
            input: None,
            params: node.params.as_object().unwrap().clone(),
            lanes: node.policy.lanes.and_then(|lanes| NonZeroU16::new(u16::try_from(lanes).unwrap())),
            batch: node.policy.batch,
            buffer: node.policy.buffer.and_then(|records| NonZeroU32::new(u32::try_from(records).unwrap())),
            retry: node.policy.retry,
            on_error: node.policy.on_error,
            dead_letter: None,
        };
        let entry = PipelineEntry {
            name: "test".into(),
            plane: Plane::Derived,
            reply_after: None,
            stage: self.stages.iter().map(stage).collect(),
        };
        Topology {
            name: "test".into(),
            plane: Plane::Derived,
            reply_after: None,
            stages: self.stages,
            entry: Arc::new(entry),
        }
    }
}

/// Short retries, so that a paused clock has little to skip.
pub(crate) fn quick() -> RetryPolicy {
    RetryPolicy {
        initial: Span::millis(10),
        max: Span::millis(50),
        circuit_pause: Span::millis(40),
        ..RetryPolicy::default()
    }
}
