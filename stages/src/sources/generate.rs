//! `generate`: makes records up, for trying pipelines out and for measuring them.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use courant_pipeline::spec::{BuildContext, Built, JSON, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::units::Size;
use courant_pipeline::{Key, Payload, Record, Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use crate::jq::{Expr, Json};
use crate::rate::PerSecond;

pub static SPEC: StageSpec = StageSpec::source::<Config>("generate", JSON)
    .summary("makes up numbered records, as many and as fast as wanted")
    .example(
        "[[pipeline.stage]]\nkind = \"generate\"\nparams = { count = 1000, rate = 50, payload = '{n: $n, text: \"hello \\($key)\"}' }\n",
    );

/// Keys are made once and kept: this many take about 40 MB.
const MAX_KEYS: u32 = 1_000_000;
/// A generator that was held up makes up for at most this much of the lost time.
const CATCH_UP: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How many records to make; the pipeline finishes after them. Without end if left out. The number reached
    /// is kept as the pipeline's position: a reload or a restart goes on from there, and a pipeline that has
    /// made them all has nothing left to do until its position is forgotten.
    pub count: Option<u64>,
    /// Records per second. As fast as they are taken if left out.
    pub rate: Option<PerSecond>,
    /// How many different keys the records have: `key-0`, `key-1`, … in turn. At most 1000000.
    pub keys: NonZeroU32,
    /// The payload, in jq on the variables `$n`, the record's number from 0, and `$key`. Left out, it is
    /// `{"n": …, "key": …}`.
    pub payload: Option<String>,
    /// Pad the payload to this many bytes. Not together with `payload`.
    pub size: Option<Size>,
}

/// Enough to keep the lanes of a small machine busy.
const DEFAULT_KEYS: NonZeroU32 = NonZeroU32::new(16).expect("not zero");

impl Default for Config {
    fn default() -> Self {
        Self { count: None, rate: None, keys: DEFAULT_KEYS, payload: None, size: None }
    }
}

/// Larger records than this are a slip of the unit.
const MAX_SIZE: u64 = 64 << 20;

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        if self.keys.get() > MAX_KEYS {
            problems.push(Problem::new("keys", format!("there can be at most {MAX_KEYS} keys")));
        }
        if self.payload.is_some() && self.size.is_some() {
            problems.push(
                Problem::new("size", "`size` pads the built-in payload, and `payload` replaces it")
                    .help("leave one of them out"),
            );
        }
        if self.size.is_some_and(|size| size.0 > MAX_SIZE) {
            problems.push(Problem::new("size", format!("a record can have at most {}", Size(MAX_SIZE))));
        }
        let compiled = self.payload.map(|code| Expr::on_variables("payload", &code, &["$n", "$key"]));
        let payload = compiled.transpose().map_err(|more| problems.extend(more)).unwrap_or_default();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Built::source(Generate {
            count: self.count.unwrap_or(u64::MAX),
            pace: self.rate.map(|rate| Pace { interval: rate.interval(), next_at: Instant::now() }),
            keys: (0..self.keys.get()).map(|n| Key::new(format!("key-{n}"))).collect(),
            payload,
            size: self.size.map_or(0, |size| usize::try_from(size.0).unwrap_or(usize::MAX)),
            next: 0,
        }))
    }
}

struct Generate {
    count: u64,
    pace: Option<Pace>,
    keys: Vec<Key>,
    payload: Option<Expr>,
    size: usize,
    /// The number of the next record.
    next: u64,
}

/// When records are due.
struct Pace {
    interval: Duration,
    next_at: Instant,
}

impl Pace {
    /// Waits until a record is due; how many are, up to `max`. Nothing changes before [`Pace::took`].
    async fn due(&mut self, max: u64) -> u64 {
        sleep_until(self.next_at).await;
        let now = Instant::now();
        self.next_at = self.next_at.max(now.checked_sub(CATCH_UP).unwrap_or(now));
        let waiting = now.duration_since(self.next_at).as_nanos() / self.interval.as_nanos().max(1);
        u64::try_from(waiting).unwrap_or(u64::MAX).saturating_add(1).min(max)
    }

    fn took(&mut self, count: u64) {
        // Exact for any count: multiplying a `Duration` takes 32 bits only.
        let nanos = self.interval.as_nanos().saturating_mul(u128::from(count));
        self.next_at += Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    }
}

#[async_trait]
impl Source for Generate {
    /// Numbers go on whatever else about the records is changed.
    fn identity(&self) -> String {
        "generate".to_owned()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        self.next = resume.get(&Partition::only()).copied().unwrap_or(0);
        if let Some(pace) = &mut self.pace {
            pace.next_at = Instant::now();
        }
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let left = self.count.saturating_sub(self.next).min(max as u64);
        if left == 0 {
            return Ok(Read::End);
        }
        let count = match &mut self.pace {
            Some(pace) => pace.due(left).await,
            None => left,
        };
        let batch = self.make(count)?;
        if let Some(pace) = &mut self.pace {
            pace.took(count);
        }
        self.next += count;
        Ok(Read::Batch(batch))
    }

    fn lag(&self) -> Option<u64> {
        (self.count < u64::MAX).then(|| self.count.saturating_sub(self.next))
    }
}

impl Generate {
    fn make(&self, count: u64) -> Result<ReadBatch, StageError> {
        let len = usize::try_from(count).unwrap_or(usize::MAX);
        let mut batch = ReadBatch::new(Partition::only(), len);
        // The texts of a batch share one allocation.
        let mut texts = Texts { buffer: BytesMut::with_capacity(len * self.size.max(48)), line: Vec::new() };
        for n in self.next..self.next + count {
            let index = usize::try_from(n % self.keys.len() as u64).unwrap_or_default();
            let key = &self.keys[index];
            let payload = match &self.payload {
                Some(expr) => made_by(expr, n, key)?,
                None => Payload::Text(texts.numbered(n, key, self.size)),
            };
            let mut record = Record::new(payload);
            record.key = Some(key.clone());
            batch.push(record, n + 1);
        }
        Ok(batch)
    }
}

fn made_by(expr: &Expr, n: u64, key: &Key) -> Result<Payload, StageError> {
    let made = expr.first_with(vec![Json::from(n), Json::from(key.as_str())]);
    // There is no record to refuse: an expression that fails here fails for ever.
    let failed = |error: StageError| StageError::fatal(error.doing, error.source);
    let json = made.map_err(failed)?.ok_or_else(|| {
        StageError::fatal("evaluate `payload`", format!("it gives no result for record {n}"))
    })?;
    Ok(Payload::value(json))
}

struct Texts {
    buffer: BytesMut,
    line: Vec<u8>,
}

impl Texts {
    fn numbered(&mut self, n: u64, key: &Key, size: usize) -> Bytes {
        const PAD: &[u8] = br#","pad":""#;
        self.line.clear();
        // Keys are made here and need no escapes; writing to memory does not fail.
        let _ = write!(self.line, r#"{{"n":{n},"key":"{key}""#);
        let padding = size.saturating_sub(self.line.len() + PAD.len() + 2);
        if size > 0 {
            self.line.extend_from_slice(PAD);
            self.line.resize(self.line.len() + padding, b'x');
            self.line.push(b'"');
        }
        self.line.push(b'}');
        self.buffer.extend_from_slice(&self.line);
        self.buffer.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{payloads, problem, read, source};
    use courant_pipeline::{Class, Services};
    use serde_json::json;

    async fn opened(params: serde_json::Value, at: u64) -> Box<dyn Source> {
        let mut source = source(&SPEC, params, &Services::default());
        source.open(&Positions::from([(Partition::only(), at)])).await.unwrap();
        source
    }

    #[tokio::test]
    async fn numbers_keys_and_positions_go_together() {
        let mut source = opened(json!({"count": 5, "keys": 2}), 0).await;
        let batch = read(&mut *source, 3).await.unwrap();
        assert_eq!(batch.resume_at(), [1, 2, 3]);
        assert_eq!(payloads(&batch)[2], r#"{"n":2,"key":"key-0"}"#);
        assert_eq!(batch.records().slots()[1].record().key.as_ref().unwrap().as_str(), "key-1");
        assert_eq!(source.lag(), Some(2));
        assert_eq!(read(&mut *source, 3).await.unwrap().len(), 2);
        assert!(read(&mut *source, 3).await.is_none());
    }

    #[tokio::test]
    async fn a_restart_goes_on_where_it_was() {
        let mut source = opened(json!({"count": 5}), 4).await;
        assert_eq!(payloads(&read(&mut *source, 9).await.unwrap()), [r#"{"n":4,"key":"key-4"}"#]);
        assert!(read(&mut *opened(json!({"count": 5}), 5).await, 9).await.is_none());
    }

    #[tokio::test]
    async fn payloads_are_made_to_measure() {
        let mut sized = opened(json!({"size": "100 B"}), 0).await;
        let batch = read(&mut *sized, 20).await.unwrap();
        for text in payloads(&batch) {
            assert_eq!(text.len(), 100);
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        let mut made = opened(json!({"payload": "{id: \"\\($key)/\\($n)\"}"}), 17).await;
        assert_eq!(payloads(&read(&mut *made, 1).await.unwrap()), [r#"{"id":"key-1/17"}"#]);
        let mut failing = opened(json!({"payload": "$n | keys"}), 0).await;
        assert_eq!(failing.read(1).await.unwrap_err().class, Class::Fatal);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept_and_a_dropped_read_loses_nothing() {
        let mut source = opened(json!({"rate": 10}), 0).await;
        let started = Instant::now();
        let mut made = 0;
        while started.elapsed() < Duration::from_millis(950) {
            let given_up = tokio::time::timeout(Duration::from_millis(30), source.read(100)).await;
            if let Ok(Ok(Read::Batch(batch))) = given_up {
                assert_eq!(batch.resume_at()[0], made + 1);
                made += batch.len() as u64;
                assert!(made <= 10, "faster than the rate");
            }
        }
        assert_eq!(made, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_time_is_made_up_for_one_second_at_most() {
        let mut source = opened(json!({"rate": 10}), 0).await;
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(read(&mut *source, 1000).await.unwrap().len(), 11);
    }

    #[test]
    fn parameters_that_contradict_each_other_are_refused() {
        assert_eq!(problem(&SPEC, json!({"payload": "1", "size": "1 KiB"})).key, "size");
        assert_eq!(problem(&SPEC, json!({"payload": "$m"})).offset, Some(0));
        assert_eq!(problem(&SPEC, json!({"keys": 2_000_000})).key, "keys");
    }
}
