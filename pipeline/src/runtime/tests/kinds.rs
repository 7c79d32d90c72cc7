//! The stage kinds of runtime tests: numbers that come, mischief that happens to them, a memory of what arrives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use super::world::{Arrival, World, number_of};
use crate::batch::{Batch, Slot};
use crate::error::StageError;
use crate::record::{Key, Record};
use crate::spec::{BuildContext, Built, Effect, Gives, JSON, Problem, StageConfig, StageSpec, Takes};
use crate::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch, Source, Stage};

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
            let is_gone = self.world.is_gone.swap(false, Ordering::SeqCst);
            return Ok(if is_gone { Read::Gone(vec![Partition::only()]) } else { Read::End });
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

/// So many numbers from one file and as many from the next, which it waits for, and whose positions begin again.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct FilesConfig {
    each: u64,
}

pub(crate) struct Files {
    each: u64,
    next: u64,
    second_from: Option<Instant>,
}

impl StageConfig for FilesConfig {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::source(Files { each: self.each, next: 0, second_from: None }))
    }
}

#[async_trait]
impl Source for Files {
    fn identity(&self) -> String {
        format!("file {}", if self.second_from.is_none() { 1 } else { 2 })
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        if self.next == 2 * self.each {
            return Ok(Read::End);
        }
        if self.next == self.each {
            let from = *self.second_from.get_or_insert_with(|| Instant::now() + Duration::from_secs(1));
            sleep_until(from).await;
        }
        let mut batch = ReadBatch::new(Partition::only(), max);
        for n in self.next..self.next + self.each {
            let mut record = Record::new(n.to_string()).with_key("0");
            record.headers.set("run", "1");
            batch.push(record, n % self.each + 1);
        }
        self.next += self.each;
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
    /// Of what it gives up on, a number a thousand higher goes on.
    #[serde(default)]
    consoles: bool,
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

/// Gives each key another key, so that order is still defined.
fn rekey(record: &mut Record) {
    let key: u64 = record.key.as_ref().unwrap().as_str().parse().unwrap();
    record.key = Some(Key::new((key % 1000 + 1000).to_string()));
}

impl Mischief {
    /// Complains if two calls have records of the same key at the same time.
    async fn look_for_overlap(&self, batch: &Batch) -> Result<(), StageError> {
        let keys: BTreeSet<String> =
            batch.records().map(|record| record.key.as_ref().unwrap().as_str().to_owned()).collect();
        for key in &keys {
            if !self.world.inside.lock().unwrap().insert(key.clone()) {
                self.world.complain(format!("two calls at once for key {key}"));
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.world.inside.lock().unwrap().retain(|key| !keys.contains(key));
        Ok(())
    }

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
            "finish" => slot.finish(),
            "panic" if self.fails_now(n) => panic!("cannot stand {n}"),
            "swap" => *slot.record_mut() = slot.record().derive(n.to_string()),
            "hold" if self.fails_now(n) => slot.hold(),
            "split-fail" => {
                slot.replace(vec![slot.record().derive(n.to_string())]);
                return Err(StageError::reject("split", "half way"));
            }
            "rekey" => rekey(slot.record_mut()),
            "same-key" => slot.record_mut().key = Some(Key::new("7")),
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
    async fn open(&self) -> Result<(), StageError> {
        if self.config.act == "never-opens" {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn instead(&self, record: &Record, _: &StageError) -> Option<Record> {
        self.config.consoles.then(|| record.derive((number_of(record) + 1000).to_string()))
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let call = self.world.calls.fetch_add(1, Ordering::SeqCst);
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
        if self.config.act == "outage" && call < u64::from(self.config.times) {
            return Err(StageError::retry("connect", "nobody there"));
        }
        if self.config.act == "overlap" {
            return self.look_for_overlap(batch).await;
        }
        if self.config.act.starts_with("careless") {
            // Fails records without holding those behind them: what comes after must still be in order.
            for slot in batch {
                let n = number_of(slot.record());
                if self.chosen(n) && self.fails_now(n) {
                    self.failed(n);
                    slot.fail(StageError::retry("be careless", "not now"));
                } else if self.config.act == "careless-rekey" {
                    rekey(slot.record_mut());
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
        for origin in batch.origins().flatten() {
            if origin.settled >= Some(origin.resume_at) {
                self.world.complain(format!("{origin:?} counts as settled and is here only now"));
            }
        }
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

pub(super) static NUMBERS: StageSpec = StageSpec::source::<NumbersConfig>("numbers", JSON);
pub(super) static FILES: StageSpec = StageSpec::source::<FilesConfig>("files", JSON);
pub(super) static MISCHIEF: StageSpec =
    StageSpec::transform::<MischiefConfig>("mischief", Takes::Any, Gives::Same);
pub(super) static COLLECT: StageSpec =
    StageSpec::sink::<CollectConfig>("collect", Takes::Any).effect(Effect::IdempotentWrite);
