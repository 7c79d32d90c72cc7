//! What stands in for the world in a test: a source that gives the test's records, sinks that remember.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use courant_pipeline::config::{Input, StageNode, Topology};
use courant_pipeline::dead_letter::{DeadLetter, DeadLetters};
use courant_pipeline::positions::{PositionStore, SavedPositions};
use courant_pipeline::spec::{ANY, BuildContext, Built, Problem, Role, StageConfig, StageSpec, Takes};
use courant_pipeline::stage::{Partition, Positions, Read, ReadBatch};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, Key, Output, Payload, Record, Reply, Source, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::entry::Given;

static GIVEN: StageSpec = StageSpec::source::<GiveConfig>("given", ANY);
static CAPTURE: StageSpec = StageSpec::sink::<CaptureConfig>("capture", Takes::Any);

/// One test's world.
pub(super) struct Scene {
    given: Vec<Given>,
    arrived: Mutex<BTreeMap<String, Vec<Arrived>>>,
    letters: Mutex<Vec<DeadLetter>>,
    replies: Mutex<Vec<oneshot::Receiver<Reply>>>,
}

/// A record as it arrived at a sink.
#[derive(Debug, Clone)]
pub(super) struct Arrived {
    pub(super) payload: Value,
    pub(super) key: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
}

/// Everything that came of the given records.
pub(super) struct Happened {
    pub(super) arrived: BTreeMap<String, Vec<Arrived>>,
    pub(super) letters: Vec<DeadLetter>,
    pub(super) replies: Vec<Reply>,
}

impl Scene {
    pub(super) fn new(given: Vec<Given>) -> Self {
        Self { given, arrived: Mutex::default(), letters: Mutex::default(), replies: Mutex::default() }
    }

    pub(super) async fn happened(&self) -> Happened {
        let waiting = std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner));
        let mut replies = Vec::new();
        for reply in waiting {
            replies.extend(reply.await.ok());
        }
        Happened {
            arrived: self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            letters: self.letters.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            replies,
        }
    }
}

/// A topology on stage.
pub(super) struct Staged {
    /// With its ends replaced, in one lane.
    pub(super) topology: Topology,
    /// Where records can arrive, by name.
    pub(super) ends: Vec<String>,
}

pub(super) fn stage(topology: &Topology) -> Staged {
    let mut staged = topology.clone();
    for node in &mut staged.stages {
        node.policy.lanes = Some(1);
        node.policy.buffer = None;
        node.policy.batch.wait = Span::default();
    }
    replace(&mut staged.stages[0], &GIVEN);
    let mut ends = Vec::new();
    for (index, node) in topology.stages.iter().enumerate() {
        if node.spec.role == Role::Sink {
            replace(&mut staged.stages[index], &CAPTURE);
            ends.push(node.name.to_string());
            continue;
        }
        for output in loose_outputs(topology, index) {
            let name = match node.outputs.get(usize::from(output)) {
                Some(output) if node.outputs.len() > 1 => format!("{}.{output}", node.name),
                _ => node.name.to_string(),
            };
            let capture = capture(&name, Input { stage: index, output }, &staged.stages[index]);
            staged.stages.push(capture);
            ends.push(name);
        }
    }
    Staged { topology: staged, ends }
}

/// Puts a fake in a stage's place, which touches nothing.
fn replace(node: &mut StageNode, spec: &'static StageSpec) {
    (node.spec, node.params) = (spec, json!({}));
    node.access.clear();
}

/// The outputs of a stage that no other takes.
fn loose_outputs(topology: &Topology, stage: usize) -> Vec<Output> {
    let outputs = topology.stages[stage].outputs.len().max(1);
    let is_taken = |output: Output| topology.children(stage).any(|(_, taken)| taken == output);
    (0..outputs)
        .filter_map(|output| Output::try_from(output).ok())
        .filter(|output| !is_taken(*output))
        .collect()
}

/// A sink that remembers, behind a stage and under its policy.
fn capture(name: &str, input: Input, behind: &StageNode) -> StageNode {
    StageNode {
        name: name.into(),
        spec: &CAPTURE,
        params: json!({}),
        input: Some(input),
        outputs: Vec::new(),
        access: Vec::new(),
        rekeys: false,
        policy: behind.policy.clone(),
    }
}

fn scene(context: &BuildContext<'_>) -> Result<Arc<Scene>, Vec<Problem>> {
    context.services.get::<Scene>().ok_or_else(|| vec![Problem::new("", "works in a test only")])
}

#[derive(Deserialize, JsonSchema)]
struct GiveConfig {}

impl StageConfig for GiveConfig {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::source(Give { scene: scene(context)?, next: 0 }))
    }
}

/// Gives the test's records and waits for what their client is told.
struct Give {
    scene: Arc<Scene>,
    next: usize,
}

#[async_trait]
impl Source for Give {
    fn identity(&self) -> String {
        "test".into()
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let upto = (self.next + max).min(self.scene.given.len());
        if self.next == upto {
            return Ok(Read::End);
        }
        let mut batch = ReadBatch::new(Partition::only(), max);
        let mut replies = self.scene.replies.lock().unwrap_or_else(PoisonError::into_inner);
        for given in &self.scene.given[self.next..upto] {
            let (to, reply) = oneshot::channel();
            batch.push_request(record(given), to);
            replies.push(reply);
        }
        self.next = upto;
        Ok(Read::Batch(batch))
    }
}

fn record(given: &Given) -> Record {
    let text = given.text.clone().unwrap_or_else(|| given.payload.to_string());
    let mut record = Record::new(text);
    record.key = given.key.clone().map(Key::new);
    for (name, value) in &given.headers {
        record.headers.set(name.clone(), value.as_str());
    }
    record
}

#[derive(Deserialize, JsonSchema)]
struct CaptureConfig {}

impl StageConfig for CaptureConfig {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Capture { scene: scene(context)?, sink: context.stage.to_owned() }))
    }
}

struct Capture {
    scene: Arc<Scene>,
    sink: String,
}

#[async_trait]
impl Stage for Capture {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let mut arrived = self.scene.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let here = arrived.entry(self.sink.clone()).or_default();
        here.extend(batch.records().map(|record| Arrived {
            payload: as_value(&record.payload),
            key: record.key.as_ref().map(ToString::to_string),
            headers: record.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }));
        Ok(())
    }
}

pub(super) fn as_value(payload: &Payload) -> Value {
    let text = payload.to_json();
    serde_json::from_slice(&text)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&text).into_owned()))
}

#[async_trait]
impl DeadLetters for Scene {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<(), StageError> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).extend(letters);
        Ok(())
    }
}

/// Every test starts at the beginning.
#[async_trait]
impl PositionStore for Scene {
    async fn load(&self, _: &str) -> Result<Option<SavedPositions>, StageError> {
        Ok(None)
    }

    async fn save(&self, _: &str, _: &SavedPositions) -> Result<(), StageError> {
        Ok(())
    }
}
