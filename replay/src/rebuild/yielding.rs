//! A source that stands back while live pipelines are slow.
//!
//! Those that clients wait for come first: while their records take longer than somebody said, a rebuild reads half as
//! much from one step to the next, and a quarter more while they do not. It never stops altogether, or a deployment that
//! is slow for another reason would never have its store again.
//!
//! Rejected: waiting until live pipelines are fast again, and then going on at full speed. It swings between the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::config::{Plane, Topology};
use courant_pipeline::runtime::Runtime;
use courant_pipeline::spec::{BuildContext, Built, Part, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{PositionKeeping, Positions, Read};
use courant_pipeline::units::Span;
use courant_pipeline::{Source, StageError};
use courant_stages::commands::EVENT;
use courant_stages::sources::{dynamo_scan, kafka_read};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

/// How often it is decided anew how much is read: as often as there is news of the live ones.
const STEP: Duration = super::TELL_EVERY;
/// Records in a step, at the least and at first.
const LEAST: usize = 20;
const FIRST: usize = 2000;
/// More than any machine does in a step.
const MOST: usize = 1_000_000;

pub(super) static SPEC: StageSpec = StageSpec::source::<Config>("replay-yielding", EVENT)
    .summary("reads as another source does, and stands back while live pipelines are slow");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// The source that it reads from, and its parameters.
    kind: String,
    params: Value,
    /// Live records that take longer are slow.
    over: Span,
}

/// How long live records take, as the engine last looked. Among the services of everything it runs.
#[derive(Debug, Default)]
pub(super) struct LiveLatency(AtomicU64);

impl LiveLatency {
    pub(super) fn look(&self, runtime: &Runtime) {
        // The others gather for as long as they like, and nobody waits for them.
        let waited_for = |topology: &Topology| !matches!(topology.plane, Plane::Derived | Plane::Replay);
        let micros = runtime.latency(waited_for).as_micros();
        self.0.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let kinds = [&kafka_read::SPEC, &dynamo_scan::SPEC];
        let Some(spec) = kinds.into_iter().find(|spec| spec.kind == self.kind) else {
            return Err(vec![Problem::new("kind", format!("`{}` gives no history", self.kind))]);
        };
        let built = (spec.build)(self.params, context)?;
        let Part::Source(source) = built.part else {
            return Err(vec![Problem::new("kind", "it is no source")]);
        };
        let live = context.services.get::<LiveLatency>().unwrap_or_default();
        Ok(Built { part: Part::Source(Box::new(Yielding::new(source, live, self.over.0))), ..built })
    }
}

struct Yielding {
    source: Box<dyn Source>,
    live: Arc<LiveLatency>,
    over: Duration,
    /// Records that are read in a step, and those that are left of this one.
    budget: usize,
    left: usize,
    step_ends: Option<Instant>,
}

impl Yielding {
    fn new(source: Box<dyn Source>, live: Arc<LiveLatency>, over: Duration) -> Self {
        Self { source, live, over, budget: FIRST, left: FIRST, step_ends: None }
    }

    /// Waits until something may be read, and says how much. Cancel-safe.
    async fn turn(&mut self, max: usize) -> usize {
        loop {
            let now = Instant::now();
            let ends = *self.step_ends.get_or_insert(now + STEP);
            if now >= ends {
                self.budget = if self.live.get() > self.over {
                    (self.budget / 2).max(LEAST)
                } else if self.left == 0 {
                    (self.budget + self.budget / 4).min(MOST)
                } else {
                    self.budget // it has as much as it can do
                };
                (self.left, self.step_ends) = (self.budget, Some(now + STEP));
            }
            if self.left > 0 {
                return max.min(self.left);
            }
            sleep_until(ends).await;
        }
    }
}

#[async_trait]
impl Source for Yielding {
    fn identity(&self) -> String {
        self.source.identity()
    }

    fn origin(&self) -> String {
        self.source.origin()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        self.source.keeps_positions()
    }

    fn positions_last(&self) -> bool {
        self.source.positions_last()
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        self.source.open(resume).await
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let max = self.turn(max).await;
        let read = self.source.read(max).await?;
        if let Read::Batch(batch) = &read {
            self.left = self.left.saturating_sub(batch.len());
        }
        Ok(read)
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        self.source.commit(positions).await
    }

    fn lag(&self) -> Option<u64> {
        self.source.lag()
    }

    async fn close(&mut self) -> Result<(), StageError> {
        self.source.close().await
    }
}

#[cfg(test)]
mod tests {
    use courant_pipeline::Record;
    use courant_pipeline::stage::{Partition, ReadBatch};

    use super::*;

    /// Has as much as anybody wants.
    struct Endless;

    #[async_trait]
    impl Source for Endless {
        fn identity(&self) -> String {
            "endless".to_owned()
        }

        async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
            Ok(())
        }

        async fn read(&mut self, max: usize) -> Result<Read, StageError> {
            let mut batch = ReadBatch::new(Partition::only(), max);
            (0..max).for_each(|_| batch.push(Record::new("{}".to_owned()), 0));
            Ok(Read::Batch(batch))
        }
    }

    /// Records that are read in so many steps.
    async fn steps(source: &mut Yielding, steps: u32) -> usize {
        let (until, mut count) = (Instant::now() + STEP * steps, 0);
        loop {
            match tokio::time::timeout_at(until, source.read(1000)).await {
                Ok(Ok(Read::Batch(batch))) if Instant::now() < until => count += batch.len(),
                Ok(Ok(Read::Batch(_))) | Err(_) => return count,
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_stands_back_for_as_long_as_live_records_are_slow_and_goes_on_all_the_same() {
        let live = Arc::new(LiveLatency::default());
        let mut source = Yielding::new(Box::new(Endless), Arc::clone(&live), Duration::from_millis(50));
        live.0.store(50_000, Ordering::Relaxed);
        let fast = steps(&mut source, 10).await;
        assert!(fast > 10 * FIRST, "{fast}");
        live.0.store(50_001, Ordering::Relaxed);
        let slower = steps(&mut source, 10).await;
        assert!(slower < fast * 2 / 3, "{slower} after {fast}");
        steps(&mut source, 10).await;
        let slow = steps(&mut source, 10).await;
        assert!((9 * LEAST..=11 * LEAST).contains(&slow), "{slow}");
        live.0.store(0, Ordering::Relaxed);
        steps(&mut source, 30).await;
        let again = steps(&mut source, 10).await;
        assert!(again > fast, "{again}");
    }
}
