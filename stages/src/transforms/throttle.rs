//! `throttle`: slows records down to a rate by waiting, which holds up the source.
//!
//! The rule is that of a leaky bucket kept as one point in time: when the next record would be due if all came
//! evenly. A record may come `burst - 1` intervals before that. It takes one record at a time: a batch would wait for
//! its last record, minutes at a slow rate, pass in one lump, and be given back as a whole if a reload came before.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use crate::rate::PerSecond;

pub static SPEC: StageSpec = StageSpec::transform::<Config>("throttle", Takes::Any, Gives::Same)
    .summary("lets records pass no faster than a rate, and holds up what comes before it")
    .example("[[pipeline.stage]]\nkind = \"throttle\"\nparams = { rate = 20, burst = 5, per_key = true }\n");

/// A batch waits until its last record may pass. This long a wait is not felt, and what follows still gets batches.
const STEP: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Records per second, over all lanes. They pass in small batches, of what may pass in a tenth of a second.
    pub rate: PerSecond,
    /// How many records may pass at once after a pause.
    #[serde(default = "default_burst")]
    pub burst: NonZeroU32,
    /// Give each key a rate of its own; records without a key share one. A key that has to wait holds up the
    /// other keys of its lane.
    #[serde(default)]
    pub per_key: bool,
    /// How many keys are kept track of; beyond that those that have waited least are forgotten, and may burst
    /// again.
    #[serde(default = "default_max_keys")]
    pub max_keys: NonZeroU32,
}

fn default_burst() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn default_max_keys() -> NonZeroU32 {
    const { NonZeroU32::new(10_000).expect("not zero") }
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let interval = self.rate.interval();
        let buckets = Buckets {
            interval,
            slack: interval.saturating_mul(self.burst.get() - 1),
            max_keys: self.max_keys.get() as usize,
            shared: None,
            by_key: HashMap::new(),
        };
        let scope = if self.per_key { Scope::Key } else { Scope::All };
        let at_once = self.rate.within(STEP);
        Ok(Built::stage(Throttle { scope, buckets: Mutex::new(buckets) }).max_batch(at_once))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Key,
}

struct Throttle {
    scope: Scope,
    /// Never held across an await: lanes take their turns first and wait afterwards.
    buckets: Mutex<Buckets>,
}

#[async_trait]
impl Stage for Throttle {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let now = Instant::now();
        let passes_at = {
            let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let turns = batch.records().map(|record| match (self.scope, &record.key) {
                (Scope::Key, Some(key)) => buckets.key_turn(key.as_str(), now),
                _ => buckets.shared_turn(now),
            });
            turns.max()
        };
        if let Some(passes_at) = passes_at {
            sleep_until(passes_at).await;
        }
        Ok(())
    }
}

struct Buckets {
    interval: Duration,
    /// How much earlier than evenly a record may come.
    slack: Duration,
    max_keys: usize,
    /// When the next record is due; a bucket that is not there is due now.
    shared: Option<Instant>,
    by_key: HashMap<String, Instant>,
}

impl Buckets {
    fn shared_turn(&mut self, now: Instant) -> Instant {
        let due = self.shared.unwrap_or(now).max(now);
        self.shared = Some(due + self.interval);
        self.earliest(due, now)
    }

    fn key_turn(&mut self, key: &str, now: Instant) -> Instant {
        if let Some(next) = self.by_key.get_mut(key) {
            let due = (*next).max(now);
            *next = due + self.interval;
            return self.earliest(due, now);
        }
        if self.by_key.len() >= self.max_keys {
            self.make_room(now);
        }
        self.by_key.insert(key.to_owned(), now + self.interval);
        now
    }

    fn earliest(&self, due: Instant, now: Instant) -> Instant {
        due.checked_sub(self.slack).map_or(now, |at| at.max(now))
    }

    /// Forgets the keys that are due anyway. If that is not enough, a tenth of the rest: one at a time would
    /// search the table for every new key.
    fn make_room(&mut self, now: Instant) {
        self.by_key.retain(|_, due| *due > now);
        if self.by_key.len() < self.max_keys {
            return;
        }
        let mut dues: Vec<Instant> = self.by_key.values().copied().collect();
        let (_, limit, _) = dues.select_nth_unstable(self.max_keys / 10);
        let limit = *limit;
        self.by_key.retain(|_, due| *due > limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, problem, stage};
    use courant_pipeline::{Payload, Record};
    use serde_json::json;

    async fn time(stage: &dyn Stage, mut batch: Batch) -> Duration {
        let started = Instant::now();
        stage.process(&mut batch).await.unwrap();
        started.elapsed()
    }

    fn keyed(keys: &[&'static str]) -> Batch {
        keys.iter().map(|key| Record::new(Payload::from_static("1")).with_key(*key)).collect()
    }

    /// The clock of tokio's timers goes in whole milliseconds.
    fn about(time: Duration, millis: u64) -> bool {
        time.abs_diff(Duration::from_millis(millis)) <= Duration::from_millis(2)
    }

    #[tokio::test(start_paused = true)]
    async fn records_pass_at_the_rate_whatever_the_batches() {
        let stage = stage(&SPEC, json!({"rate": 10}));
        let started = Instant::now();
        for size in [1, 3, 1, 5] {
            stage.process(&mut batch(&["1"; 5][..size])).await.unwrap();
        }
        assert!(about(started.elapsed(), 900), "ten records: {:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_must_be_earned_again() {
        let stage = stage(&SPEC, json!({"rate": 10, "burst": 3}));
        assert!(about(time(&*stage, batch(&["1"; 3])).await, 0));
        assert!(about(time(&*stage, batch(&["1"])).await, 100));
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(about(time(&*stage, batch(&["1"; 4])).await, 100), "a long pause earns one burst, not more");
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_share_the_rate() {
        let stage = stage(&SPEC, json!({"rate": 10}));
        let (mut one, mut two) = (batch(&["1"; 3]), batch(&["1"; 3]));
        let started = Instant::now();
        let (one, two) = tokio::join!(stage.process(&mut one), stage.process(&mut two));
        one.and(two).unwrap();
        assert!(about(started.elapsed(), 500), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn keys_have_rates_of_their_own() {
        let stage = stage(&SPEC, json!({"rate": 10, "per_key": true}));
        assert!(about(time(&*stage, keyed(&["a", "b", "c"])).await, 0));
        assert!(about(time(&*stage, keyed(&["d", "a"])).await, 100));
        assert!(about(time(&*stage, batch(&["1", "1"])).await, 100), "those without a key share one");
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_of_keys_stays_bounded() {
        let stage = stage(&SPEC, json!({"rate": 10, "per_key": true, "max_keys": 2}));
        assert!(about(time(&*stage, keyed(&["a", "a", "b"])).await, 100));
        // `b` is due by now and makes room for `c`; `a` is kept.
        assert!(about(time(&*stage, keyed(&["c", "a"])).await, 100));

        let now = Instant::now();
        let mut buckets = Buckets {
            interval: Duration::from_secs(1),
            slack: Duration::ZERO,
            max_keys: 100,
            shared: None,
            by_key: HashMap::new(),
        };
        for key in 0..10_000 {
            buckets.key_turn(&key.to_string(), now);
            assert!(buckets.by_key.len() <= 100);
        }
    }

    #[test]
    fn a_batch_waits_no_longer_than_a_step() {
        let most = |rate: f64| {
            let context =
                BuildContext { pipeline: "p", stage: "s", services: &courant_pipeline::Services::default() };
            (SPEC.build)(json!({"rate": rate}), &context).ok().unwrap().max_batch.unwrap().get()
        };
        assert_eq!([most(0.5), most(20.0), most(5000.0)], [1, 2, 500]);
    }

    #[test]
    fn a_rate_of_nothing_is_refused() {
        assert!(problem(&SPEC, json!({"rate": 0})).message.contains("records per second"));
        assert!(problem(&SPEC, json!({})).message.contains("rate"));
    }
}
