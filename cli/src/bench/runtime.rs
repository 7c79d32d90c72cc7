//! `courant bench runtime`: what the runtime costs beside a loop written by hand.
//!
//! 200-byte records go generate → map → filter → blackhole. The limit is a tokio loop that calls the same functions on
//! the same records and nothing else: no acks, no batches, no metrics, no retries. The pipeline does all of that.
//! Rounds alternate between the two and the best of each counts, since other work on the machine only ever slows a
//! round down.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use courant_pipeline::config::{
    BatchLimits, Input, OnError, PipelineEntry, Plane, Policy, RetryPolicy, StageNode, Topology,
};
use courant_pipeline::runtime::{Host, run_to_end};
use courant_pipeline::spec::{Place, StageSpec};
use courant_pipeline::{DecodeError, Native, Payload, Record, Services, StageError};
use courant_stages::jq::Expr;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Figure;
use super::native::{FILTER, GENERATE, MAP, PASS};

const RECORD_BYTES: usize = 200;
/// Rounds per figure: enough that one of them is undisturbed.
const ROUNDS: usize = 7;
/// Records the hand-written loop handles before it lets others run, like a batch.
const LOOP_CHUNK: u64 = 512;

/// What the records say.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Event {
    n: u64,
    odd: bool,
    pad: String,
}

impl Native for Event {
    fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(text).map_err(|error| DecodeError(error.to_string()))
    }
}

/// A record's JSON text, padded to size.
pub(super) fn generate(n: u64) -> Bytes {
    let mut text = Vec::with_capacity(RECORD_BYTES);
    text.extend_from_slice(br#"{"n":1000000000,"odd":false,"pad":""#);
    let mut rest = n;
    for digit in text[6..15].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    text.resize(RECORD_BYTES - 2, b'x');
    text.extend_from_slice(br#""}"#);
    Bytes::from(text)
}

/// What `.odd = (.n % 2 == 1)` says in jq.
pub(super) fn map(text: &[u8]) -> Result<Event, DecodeError> {
    let mut event = Event::from_json(text)?;
    event.odd = event.n % 2 == 1;
    Ok(event)
}

/// What `.n % 10 != 0` says in jq.
pub(super) fn keep(event: &Event) -> bool {
    !event.n.is_multiple_of(10)
}

/// The limit: the same functions in a loop, letting others run now and then.
async fn by_hand(lasting: Duration) -> f64 {
    let started = Instant::now();
    let (mut n, mut arrived) = (0, 0u64);
    while started.elapsed() < lasting {
        for _ in 0..LOOP_CHUNK {
            let event = map(&generate(n)).expect("the generator makes events");
            n += 1;
            if keep(&event) {
                arrived += 1;
            }
            std::hint::black_box(&event);
        }
        tokio::task::yield_now().await;
    }
    std::hint::black_box(arrived);
    n as f64 / started.elapsed().as_secs_f64()
}

const JQ_MAP: &str = ".odd = (.n % 2 == 1)";
const JQ_FILTER: &str = ".n % 10 != 0";

/// The limit with jq: the same expressions in a loop.
async fn by_hand_jq(lasting: Duration) -> f64 {
    let compile = |code| Expr::on_record("expr", code).expect("the expression is right");
    let (map, keep) = (compile(JQ_MAP), compile(JQ_FILTER));
    let started = Instant::now();
    let (mut n, mut arrived) = (0, 0u64);
    while started.elapsed() < lasting {
        for _ in 0..LOOP_CHUNK {
            let mut record = Record::new(generate(n));
            n += 1;
            for output in map.all(&mut record).expect("the generator makes events") {
                let mut mapped = Record::new(Payload::value(output));
                arrived += u64::from(keep.is_true(&mut mapped).expect("events have a number"));
            }
        }
        tokio::task::yield_now().await;
    }
    std::hint::black_box(arrived);
    n as f64 / started.elapsed().as_secs_f64()
}

fn kind(name: &str) -> &'static StageSpec {
    courant_stages::registry().find(name, Place::Later).expect("a shipped kind")
}

/// The least a loop can do: make the records and let them go.
async fn by_hand_bare(lasting: Duration) -> f64 {
    let started = Instant::now();
    let mut n = 0;
    while started.elapsed() < lasting {
        for _ in 0..LOOP_CHUNK {
            std::hint::black_box(generate(n));
            n += 1;
        }
        tokio::task::yield_now().await;
    }
    n as f64 / started.elapsed().as_secs_f64()
}

/// What a pipeline of native stages is made of.
#[derive(Debug, Clone, Copy)]
struct Shape {
    keys: u64,
    lanes: usize,
    extra_hops: usize,
    /// Put a queue in front of each extra hop.
    buffered: bool,
    work: Work,
}

/// What stands between the source and the blackhole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Nothing.
    Bare,
    /// Map and filter as Rust closures.
    Native,
    /// Map and filter as jq expressions.
    Jq,
}

const PLAIN: Shape = Shape { keys: 0, lanes: 1, extra_hops: 0, buffered: false, work: Work::Native };

impl Shape {
    fn topology(self, lasting: Duration) -> Topology {
        let millis = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
        let mut stages =
            vec![node("generate", &GENERATE, json!({"millis": millis, "keys": self.keys}), None)];
        let mut add = |name: &str, spec, params, buffer| {
            let mut node = node(name, spec, params, Some(stages.len() - 1));
            (node.policy.lanes, node.policy.buffer) = (Some(self.lanes), buffer);
            stages.push(node);
        };
        match self.work {
            Work::Bare => {}
            Work::Native => {
                add("map", &MAP, json!({}), None);
                add("filter", &FILTER, json!({}), None);
            }
            Work::Jq => {
                add("map", kind("map"), json!({"expr": JQ_MAP}), None);
                add("filter", kind("filter"), json!({"expr": JQ_FILTER}), None);
            }
        }
        for hop in 0..self.extra_hops {
            add(&format!("hop{hop}"), &PASS, json!({}), self.buffered.then_some(HOP_BUFFER));
        }
        add("blackhole", &PASS, json!({}), None);
        topology(stages)
    }

    async fn rate(self, lasting: Duration) -> f64 {
        let started = Instant::now();
        let report = run_to_end(&self.topology(lasting), &host(), &CancellationToken::new()).await;
        assert_eq!(report.read, report.dispositions.sum(), "every record has its disposition");
        report.read as f64 / started.elapsed().as_secs_f64()
    }
}

/// Room for eight batches, so that a hop costs its channel and not a stall.
const HOP_BUFFER: usize = 4096;

/// Measures everything in about `lasting`, telling each figure as it is known.
pub fn run(lasting: Duration, mut tell: impl FnMut(&Figure)) -> std::io::Result<()> {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let round = lasting / u32::try_from(ROUNDS * MEASUREMENTS).unwrap_or(1);

    let (limit, native) = one.block_on(beside(|| by_hand(round), PLAIN, round));
    tell(&Figure::new("runtime_native", native, "records/s").against(limit));
    let (limit, jq) = one.block_on(beside(|| by_hand_jq(round), Shape { work: Work::Jq, ..PLAIN }, round));
    tell(&Figure::new("runtime_jq", jq, "records/s").against(limit));
    let bare = Shape { work: Work::Bare, ..PLAIN };
    let (limit, least) = one.block_on(beside(|| by_hand_bare(round), bare, round));
    tell(&Figure::new("runtime_overhead", nanos_more(limit, least), "ns/record"));

    let hops = Shape { extra_hops: EXTRA_HOPS, ..bare };
    let (least, fused) = one.block_on(beside(|| bare.rate(round), hops, round));
    tell(&Figure::new("runtime_fused_hop", nanos_more(least, fused) / EXTRA_HOPS as f64, "ns/record"));
    let hops = Shape { buffered: true, ..hops };
    let (least, buffered) = one.block_on(beside(|| bare.rate(round), hops, round));
    tell(&Figure::new("runtime_buffered_hop", nanos_more(least, buffered) / EXTRA_HOPS as f64, "ns/record"));

    for keys in [1, 100, 10_000] {
        let lanes = Shape { keys, lanes: 2, ..PLAIN };
        let one_core = one.block_on(rate(lanes, round));
        let two_cores = two.block_on(rate(lanes, round));
        tell(&Figure::new(format!("runtime_keys_{keys}_cores_1"), one_core, "records/s"));
        tell(&Figure::new(format!("runtime_keys_{keys}_cores_2"), two_cores, "records/s").against(one_core));
    }
    Ok(())
}

/// Hops added at once, so that what one of them costs stands out from the noise.
const EXTRA_HOPS: usize = 4;
/// Rates measured in [`run`], each in [`ROUNDS`].
const MEASUREMENTS: usize = 16;

/// The best of a limit and a pipeline, measured in turns so that noise hits both.
async fn beside<F: Future<Output = f64>>(limit: impl Fn() -> F, shape: Shape, round: Duration) -> (f64, f64) {
    let (mut limits, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        limits.push(limit().await);
        rates.push(shape.rate(round).await);
    }
    (best(limits), best(rates))
}

async fn rate(shape: Shape, round: Duration) -> f64 {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        rates.push(shape.rate(round).await);
    }
    best(rates)
}

fn nanos_more(fast: f64, slow: f64) -> f64 {
    1e9 / slow - 1e9 / fast
}

fn best(rates: Vec<f64>) -> f64 {
    rates.into_iter().fold(0.0, f64::max)
}

fn node(name: &str, spec: &'static StageSpec, params: Value, after: Option<usize>) -> StageNode {
    StageNode {
        name: name.into(),
        spec,
        params,
        input: after.map(|stage| Input { stage, output: 0 }),
        outputs: Vec::new(),
        access: Vec::new(),
        rekeys: false,
        policy: Policy {
            lanes: None,
            batch: BatchLimits::default(),
            buffer: None,
            retry: RetryPolicy::default(),
            on_error: OnError::DeadLetter,
            dead_letter_queue: "bench".into(),
        },
    }
}

fn topology(stages: Vec<StageNode>) -> Topology {
    let entry =
        PipelineEntry { name: "bench".into(), plane: Plane::Derived, reply_after: None, stage: Vec::new() };
    Topology {
        name: "bench".into(),
        plane: Plane::Derived,
        reply_after: None,
        stages,
        serves: Vec::new(),
        entry: Arc::new(entry),
    }
}

fn host() -> Host {
    let nowhere = Arc::new(Nowhere);
    Host {
        services: Services::default(),
        dead_letters: Arc::clone(&nowhere) as _,
        positions: nowhere,
        drain_deadline: Duration::from_secs(10),
    }
}

/// No bench record is dead-lettered and no position kept.
struct Nowhere;

#[async_trait]
impl courant_pipeline::dead_letter::DeadLetters for Nowhere {
    async fn put(&self, _: Vec<courant_pipeline::dead_letter::DeadLetter>) -> Result<(), StageError> {
        Ok(())
    }
}

#[async_trait]
impl courant_pipeline::positions::PositionStore for Nowhere {
    async fn load(&self, _: &str) -> Result<Option<courant_pipeline::positions::SavedPositions>, StageError> {
        Ok(None)
    }

    async fn save(&self, _: &str, _: &courant_pipeline::positions::SavedPositions) -> Result<(), StageError> {
        Ok(())
    }
}
