//! Whether a rebuilt store is what the authority says it should be.
//!
//! What is expected comes from the store of record, through the pipeline's own stages, by the sink's own idea of what a
//! record becomes; what is there comes from walking the rebuilt store. Both are spilled to disk by ranges of keys
//! ([`spill`]): equal ranges are known by a count and a digest, the others are compared key by key. Of entries that share
//! a key the newest counts. A deployment goes on meanwhile: of the store only that is expected which was published before
//! the fence, keys whose newest entry is younger than that are left out, and what still differs is looked at again once
//! the rebuilt store has caught up.

mod expect;
mod spill;
mod stage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use courant_connectors::files::generations::{Generation, Generations};
use courant_connectors::model::Timestamp;
use courant_pipeline::derived::Entry;
use courant_pipeline::runtime::Host;
use serde::{Deserialize, Serialize};

use self::expect::{Expectation, Expectations};
use self::spill::Spill;
use self::stage::{Again, Most};
pub use self::stage::{Found, StageComparison};
use super::plan::{DerivedSink, History, Plan};
use super::progress::Phase;
use super::receipt::{Named, Receipt, folder};
use super::{Engine, Error, Result};

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    pub authority: Authority,
    /// How often it was looked: what differed at first may only have been late.
    pub looks: u32,
    /// Keys whose newest entry is younger than this were left out.
    pub until: Timestamp,
    /// Records that the stages gave up on while they told what is expected.
    pub dead_lettered: u64,
    pub stages: Vec<StageComparison>,
    /// Where the log begins that was the authority, if that is not at its first record: of what was before nobody can
    /// tell what should be there.
    #[serde(default, skip_serializing_if = "Named::is_empty")]
    pub begins_at: Named,
    /// Sinks behind a stage with effects, by that stage: to know what they should hold, it would have to have them again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_compared: BTreeMap<String, String>,
}

/// Where what is expected comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authority {
    Store,
    /// For topics that tell of nothing that can be scanned.
    Log,
}

impl Comparison {
    /// Whether everything was compared, and nothing differs. What the stages gave up on is in neither, so that a stage that
    /// is wrong would differ in nothing.
    pub fn is_clean(&self) -> bool {
        let is_everything =
            self.not_compared.is_empty() && self.begins_at.is_empty() && self.dead_lettered == 0;
        is_everything && self.differences() == 0
    }

    pub fn differences(&self) -> u64 {
        self.stages.iter().map(StageComparison::differences).sum()
    }
}

/// What is looked at again, by stage.
pub(super) type Keys = HashMap<Arc<str>, Again>;

/// Keys of a stage that are remembered for another look. Where more differ it is at everything, and takes longer.
pub(super) const MOST_KEYS: usize = 100_000;

/// What differs.
pub(super) struct Differing {
    pub(super) keys: Keys,
    /// Whether those are all. Where they are too many to be kept, another look is at everything.
    pub(super) is_complete: bool,
}

/// One look.
pub(super) struct Look<'a> {
    pub(super) engine: &'a Engine<'a>,
    pub(super) plan: &'a Plan,
    pub(super) receipt: &'a Receipt,
    pub(super) generation: &'a Generation,
    /// Keys of interest; all if none.
    pub(super) only: Option<&'a Keys>,
    /// That are remembered for the next look, of each stage.
    pub(super) most_keys: usize,
    pub(super) number: u32,
}

impl Look<'_> {
    pub(super) async fn take(&self) -> Result<(Comparison, Differing)> {
        let scratches = Generations::of(&folder(self.generation), "compare")?;
        for left_behind in scratches.list().await? {
            remove(&left_behind).await; // by one that was killed
        }
        let scratch = scratches.begin().await?;
        let looked = self.take_in(&scratch).await;
        remove(&scratch).await;
        looked
    }

    async fn take_in(&self, scratch: &Generation) -> Result<(Comparison, Differing)> {
        let mut expectations = Expectations::default();
        for sink in self.plan.compared() {
            let expectation = Expectation {
                store: Arc::clone(&sink.store),
                spill: spill(scratch, &format!("{}.expected", sink.stage)).await?,
                only: self.only.and_then(|only| only.get(&sink.stage)).map(|again| Arc::clone(&again.keys)),
            };
            expectations.0.insert(Arc::clone(&sink.stage), expectation);
        }
        let expectations = Arc::new(expectations);
        let (authority, dead_lettered) = self.expect(scratch, Arc::clone(&expectations)).await?;
        let until = Timestamp::from_unix_millis(
            self.receipt.fence_at.unix_millis().saturating_sub(millis(self.receipt.request.grace)),
        );
        let behind = |sink: &DerivedSink| Some((sink.stage.to_string(), sink.behind.as_deref()?.to_owned()));
        let mut comparison = Comparison {
            authority,
            looks: self.number,
            until,
            dead_lettered,
            begins_at: match authority {
                Authority::Store => Named::new(),
                Authority::Log => {
                    let cut = self.receipt.start.iter().filter(|(_, start)| **start > 0);
                    cut.map(|(partition, start)| (partition.clone(), *start)).collect()
                }
            },
            stages: Vec::new(),
            not_compared: self.plan.sinks.iter().filter_map(behind).collect(),
        };
        let mut differing = Differing { keys: Keys::new(), is_complete: true };
        for sink in self.plan.compared() {
            if self.only.is_some_and(|only| !only.contains_key(&sink.stage)) {
                continue;
            }
            let expected = &expectations.0[&sink.stage];
            let actual = self.walk(scratch, sink, expected.only.clone()).await?;
            let (stage, again) = self.compare(sink, &expected.spill, actual, until).await?;
            comparison.stages.push(stage);
            differing.is_complete &= again.keys.len() < self.most_keys;
            if !again.keys.is_empty() {
                differing.keys.insert(Arc::clone(&sink.stage), again);
            }
        }
        Ok((comparison, differing))
    }

    /// Runs the pipeline's stages on what the authority holds.
    async fn expect(
        &self,
        scratch: &Generation,
        expectations: Arc<Expectations>,
    ) -> Result<(Authority, u64)> {
        let Self { engine, plan, receipt, .. } = self;
        let (authority, history) = if plan.can_scan() {
            (Authority::Store, History::Store { end: &receipt.fence, at: receipt.fence_at })
        } else {
            (Authority::Log, History::Log { start: &receipt.start, end: &receipt.fence })
        };
        let mut host: Host = engine.host_for(scratch).await?;
        host.services = host.services.with(expectations);
        let reading = plan.reading(&history, receipt.request.segments, receipt.request.pace());
        let topology = plan.with_sinks(reading, &expect::SPEC);
        let of = engine.expected_records(plan, &history).await;
        let report = engine.run(&topology, &host, Phase::Expecting, of).await?;
        Ok((authority, report.dispositions.dead_lettered))
    }

    async fn walk(
        &self,
        scratch: &Generation,
        sink: &DerivedSink,
        only: Option<Arc<HashSet<Box<str>>>>,
    ) -> Result<Arc<Spill>> {
        let spill = spill(scratch, &format!("{}.actual", sink.stage)).await?;
        let folder = self.generation.stage_folder(&sink.stage).await?;
        let (store, taken) = (Arc::clone(&sink.store), Arc::clone(&spill));
        self.engine.tell(Phase::Walking, 0, None, None);
        blocking(move || {
            let mut failed = None;
            let mut waiting: Vec<Entry> = Vec::new();
            store.walk(&folder, &mut |entry| {
                if only.as_ref().is_none_or(|only| only.contains(&entry.key)) {
                    waiting.push(entry);
                }
                if waiting.len() >= AT_ONCE
                    && let Err(error) = taken.add(waiting.drain(..))
                {
                    failed.get_or_insert(error);
                }
            })?;
            taken.add(waiting).map_err(scratch_error)?;
            failed.map_or(Ok(()), |error| Err(scratch_error(error)))
        })
        .await?;
        Ok(spill)
    }

    async fn compare(
        &self,
        sink: &DerivedSink,
        expected: &Arc<Spill>,
        actual: Arc<Spill>,
        until: Timestamp,
    ) -> Result<(StageComparison, Again)> {
        let (stage, expected) = (sink.stage.to_string(), Arc::clone(expected));
        let others = self.only.and_then(|only| only.get(&sink.stage)).map(|again| again.others);
        let others = others.unwrap_or_default();
        let most = Most { examples: self.receipt.request.examples, keys: self.most_keys };
        let compare = move || {
            let (expected, actual) = (expected.finish()?, actual.finish()?);
            stage::compare(stage, &expected, &actual, others, until.unix_millis(), most)
        };
        blocking(move || compare().map_err(scratch_error)).await
    }
}

/// What cannot be removed now is removed with the generation.
async fn remove(scratch: &Generation) {
    let folder = scratch.folder().to_owned();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%error, "cannot remove what a comparison left behind");
    }
}

/// Entries that are handed to disk together.
const AT_ONCE: usize = 4096;

async fn spill(scratch: &Generation, name: &str) -> Result<Arc<Spill>> {
    let folder = Path::new(scratch.folder()).join(".spill").join(name.replace('/', "%2F"));
    blocking(move || Spill::create(&folder).map(Arc::new).map_err(scratch_error)).await
}

fn scratch_error(source: std::io::Error) -> Error {
    Error::Scratch { source }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::Scratch { source: std::io::Error::other(error) }),
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
