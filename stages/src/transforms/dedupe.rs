//! `dedupe`: drops records that have been here before.
//!
//! An id is remembered when its record is let through, which is the last thing that happens to it here and
//! cannot fail; so one that is refused leaves no trace. With it where the record was read: one that is read again,
//! as when its partition was elsewhere for a while, is not taken for its own duplicate while it may still be on its way.
//! What is remembered lives in memory: after a restart the window starts empty.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, Origin, Record, Stage, StageError};
use rustc_hash::FxBuildHasher;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use crate::jq::Expr;

pub static SPEC: StageSpec = StageSpec::transform::<Config>("dedupe", Takes::Any, Gives::Same)
    .summary("drops records whose id was seen before, within a window of time")
    .example("[[pipeline.stage]]\nkind = \"dedupe\"\nparams = { by = \".message_id\", window = \"10m\" }\n");

/// The metric label of what is left out.
const DUPLICATE: &str = "duplicate";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What makes records the same, in jq: `.` is the payload, `$key` the key, `$headers` the headers. Any JSON
    /// will do, such as `[.chat_id, .message_id]`; a record for which it is null is refused. The record's key
    /// if left out.
    pub by: Option<String>,
    /// How long an id is remembered, from the first record that had it.
    pub window: Span,
    /// How many ids are remembered at the most; beyond that the oldest are forgotten before their time. An id
    /// takes about 80 bytes.
    pub max_keys: NonZeroU32,
}

/// About 8 MB when full.
const DEFAULT_MAX_KEYS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");

impl Default for Config {
    fn default() -> Self {
        Self { by: None, window: Span::secs(600), max_keys: DEFAULT_MAX_KEYS }
    }
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        if self.window.0.is_zero() {
            problems.push(Problem::new("window", "a window of no time drops nothing"));
        }
        let compiled = self.by.map(|code| Expr::on_record("by", &code)).transpose();
        let by = compiled.map_err(|more| problems.extend(more)).unwrap_or_default();
        if !problems.is_empty() {
            return Err(problems);
        }
        let seen = Seen { window: self.window.0, max: self.max_keys.get() as usize, ..Seen::default() };
        Ok(Built::stage(Dedupe { by, hashers: Default::default(), seen: Mutex::new(seen) }))
    }
}

struct Dedupe {
    by: Option<Expr>,
    hashers: [RandomState; 2],
    /// Shared by all lanes, since one id may come with different keys; never held across an await.
    seen: Mutex<Seen>,
}

/// An id of any length in 128 bits, hashed with secret keys: clients choose ids and must not find two alike.
type Fingerprint = u128;

#[async_trait]
impl Stage for Dedupe {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let now = Instant::now();
        let places: Vec<_> = batch.origins().map(|origin| origin.map(|origin| self.place(&origin))).collect();
        for (slot, place) in batch.iter_mut().zip(places) {
            let id = match self.id_of(slot.record_mut()) {
                Ok(id) => id,
                Err(error) => {
                    slot.fail(error);
                    continue;
                }
            };
            if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).is_new(id, place, now) {
                slot.drop_as(DUPLICATE);
            }
        }
        Ok(())
    }
}

impl Dedupe {
    fn id_of(&self, record: &mut Record) -> Result<Fingerprint, StageError> {
        let Some(by) = &self.by else {
            let key = record.key.as_ref().ok_or_else(|| {
                StageError::reject(
                    "tell duplicates by key",
                    "the record has no key; say `by` what they are told by",
                )
            })?;
            return Ok(self.fingerprint(key.as_str().as_bytes()));
        };
        match by.first(record)? {
            Some(id) if !id.is_null() => Ok(self.fingerprint(&id.text())),
            _ => Err(StageError::reject("evaluate `by`", "the record has no id: the result is null")),
        }
    }

    /// Where a record was read, in a word. Two places that are taken for one let a duplicate pass, nothing else.
    fn place(&self, &Origin { source, partition, resume_at, part, settled: _ }: &Origin<'_>) -> u64 {
        self.hashers[0].hash_one((source, partition.as_str(), resume_at, part))
    }

    fn fingerprint(&self, id: &[u8]) -> Fingerprint {
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(id)));
        high << 64 | low
    }
}

#[derive(Default)]
struct Seen {
    window: Duration,
    max: usize,
    /// With the place of the first record that had it.
    ids: HashMap<Fingerprint, Option<u64>, FxBuildHasher>,
    /// The same ids, oldest first.
    by_age: VecDeque<(Instant, Fingerprint)>,
}

impl Seen {
    /// Whether the id is new, or that of the same record; from then on it is not.
    fn is_new(&mut self, id: Fingerprint, place: Option<u64>, now: Instant) -> bool {
        while let Some((since, oldest)) = self.by_age.front()
            && now.duration_since(*since) >= self.window
        {
            self.ids.remove(oldest);
            self.by_age.pop_front();
        }
        if let Some(first) = self.ids.get(&id) {
            return place.is_some() && *first == place;
        }
        self.ids.insert(id, place);
        if self.by_age.len() == self.max
            && let Some((_, oldest)) = self.by_age.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.by_age.push_back((now, id));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::origins::read;
    use crate::testing::{batch, problem, process, stage};
    use courant_pipeline::Payload;
    use serde_json::json;
    use tokio::time::advance;

    const DROPPED: &str = "dropped: duplicate";

    #[tokio::test(start_paused = true)]
    async fn duplicates_are_dropped_within_a_batch_and_across() {
        let stage = stage(&SPEC, json!({"by": "[.a, .b]"}));
        let one =
            process(&*stage, batch(&[r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1,"c":0}"#, r#"{"a":12}"#])).await;
        assert_eq!(one, [r#"{"a":1,"b":2}"#, DROPPED, r#"{"a":12}"#]);
        assert_eq!(process(&*stage, batch(&[r#"{"a":1,"b":2}"#])).await, [DROPPED]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_duplicate_after_the_window_passes() {
        let stage = stage(&SPEC, json!({"by": ".", "window": "10s"}));
        assert_eq!(process(&*stage, batch(&["1"])).await, ["1"]);
        advance(Duration::from_millis(9_999)).await;
        assert_eq!(
            process(&*stage, batch(&["1"])).await,
            [DROPPED],
            "a duplicate does not lengthen the window"
        );
        advance(Duration::from_millis(1)).await;
        assert_eq!(process(&*stage, batch(&["1", "1"])).await, ["1", DROPPED]);
    }

    /// Its partition was read elsewhere for a while, and it may still be on its way: what is dropped would be committed.
    #[tokio::test(start_paused = true)]
    async fn a_record_that_is_read_again_is_no_duplicate_of_itself() {
        let stage = stage(&SPEC, json!({"by": "."}));
        let at = |place| read("0", [(place, Record::new(Payload::from_static("1")))], None);
        assert_eq!(process(&*stage, at(7)).await, ["1"]);
        assert_eq!(process(&*stage, at(7)).await, ["1"]);
        assert_eq!(process(&*stage, at(8)).await, [DROPPED]);
        assert_eq!(process(&*stage, batch(&["1"])).await, [DROPPED]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_ids_make_room() {
        let stage = stage(&SPEC, json!({"by": ".", "max_keys": 2}));
        assert_eq!(process(&*stage, batch(&["1", "2", "3"])).await, ["1", "2", "3"]);
        assert_eq!(process(&*stage, batch(&["3", "2", "1"])).await, [DROPPED, DROPPED, "1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_record_is_not_remembered_and_does_not_count_against_itself() {
        let stage = stage(&SPEC, json!({"by": ".id"}));
        let refused = process(&*stage, batch(&["{}", "[]", r#"{"id":1}"#])).await;
        assert!(refused[0].starts_with("reject: evaluate `by`: the record has no id"), "{}", refused[0]);
        assert!(refused[1].starts_with("reject: "), "{}", refused[1]);
        assert_eq!(refused[2], r#"{"id":1}"#);
        assert_eq!(
            process(&*stage, batch(&["{}"])).await[..],
            refused[..1],
            "it is refused, not a duplicate"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_key_is_the_id_unless_told_otherwise() {
        let stage = stage(&SPEC, json!({}));
        let keyed = |key: &'static str| Record::new(Payload::from_static("{}")).with_key(key);
        let records = vec![keyed("a"), keyed("b"), keyed("a"), Record::new(Payload::from_static("{}"))];
        let fates = process(&*stage, Batch::from(records)).await;
        assert_eq!(fates[..3], ["{}", "{}", DROPPED]);
        assert!(fates[3].contains("has no key"), "{}", fates[3]);
        assert_eq!(problem(&SPEC, json!({"window": "0s"})).key, "window");
    }
}
