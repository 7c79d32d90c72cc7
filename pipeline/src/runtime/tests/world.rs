//! A small world for runtime tests: it remembers everything that happened and complains about what must not.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::kinds::{COLLECT, FILES, MISCHIEF, NUMBERS};
use crate::config::{
    BatchLimits, Input, OnError, PipelineEntry, Plane, Policy, RetryPolicy, StageEntry, StageNode, Topology,
};
use crate::dead_letter::{DeadLetter, DeadLetters};
use crate::error::StageError;
use crate::positions::{PositionStore, SavedPositions};
use crate::record::Record;
use crate::runtime::Host;
use crate::services::Services;
use crate::spec::StageSpec;
use crate::stage::Partition;
use crate::units::{Size, Span};

/// Everything that happened.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) arrived: Mutex<BTreeMap<String, Vec<Arrival>>>,
    /// The same as sets, for quick look-ups.
    pub(super) seen: Mutex<BTreeMap<String, BTreeSet<u64>>>,
    buried: Mutex<BTreeSet<u64>>,
    pub(crate) letters: Mutex<Vec<DeadLetter>>,
    /// Dropped by a stage, or failed where `on_error` says drop.
    pub(crate) dropped: Mutex<BTreeSet<u64>>,
    pub(crate) saved: Mutex<BTreeMap<String, SavedPositions>>,
    /// Whether the numbers are read elsewhere once they are read.
    pub(crate) is_gone: AtomicBool,
    pub(crate) calls: AtomicU64,
    pub(crate) runs: AtomicU32,
    pub(crate) violations: Mutex<Vec<String>>,
    /// Sinks a record must reach before its position may be committed.
    pub(crate) sinks: Mutex<Vec<String>>,
    /// Keys that a call is working on.
    pub(super) inside: Mutex<BTreeSet<String>>,
    pub(super) tries: Mutex<BTreeMap<(String, u64), u32>>,
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

    pub(super) fn complain(&self, what: String) {
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
            .filter(|before| before.source == saved.source)
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

/// Puts a topology together stage by stage.
pub(crate) struct Build {
    stages: Vec<StageNode>,
    world: Arc<World>,
}

pub(crate) fn numbers(world: &Arc<World>, count: impl Into<Option<u64>>, keys: u64, chunk: usize) -> Build {
    Build::of(world, &NUMBERS, json!({"count": count.into(), "keys": keys, "chunk": chunk}))
}

pub(crate) fn files(world: &Arc<World>, each: u64) -> Build {
    Build::of(world, &FILES, json!({"each": each}))
}

impl Build {
    fn of(world: &Arc<World>, source: &'static StageSpec, params: serde_json::Value) -> Self {
        let mut build = Self { stages: Vec::new(), world: Arc::clone(world) };
        build.push(source.kind, source, params, None);
        build
    }

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
            rekeys: false,
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
        let rekeys = ["rekey", "careless-rekey", "same-key"].contains(&params["act"].as_str().unwrap());
        self.push(name, &MISCHIEF, params, Some(after));
        self.stages[after + 1].rekeys = rekeys;
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
            serves: Vec::new(),
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
