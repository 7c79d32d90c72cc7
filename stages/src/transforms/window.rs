//! `window`: counts and sums records by time and group, each once, over restarts and crashes.
//!
//! Windows are by the time that records tell, not by when they come. Each partition has a *watermark*, the latest time
//! seen in it; a window closes when the least watermark of all active partitions has passed its end by `lateness`, and
//! its row comes out with the record that closed it. A record is late if its own partition's watermark had passed its
//! window before it, or the window has closed: so the order of partitions among each other, which is never the same
//! twice, does not change a row, unless a partition was silent for longer than `idle`. Nothing closes without records.
//! The stage and those before it have one lane, since lanes that run ahead of each other would make records late; a record
//! that waits for a retry before it needs the `lateness` for that.
//!
//! What is known of windows, which records are in it ([`crate::applied`]) and the rows that came out are on disk, in one
//! step, before the records go on. A record that is read again after a crash is not counted again, and the rows that
//! came out with it come out again, as long as it is not settled. So rows come at least once: give the sink a key.
//!
//! Rejected: keeping open windows in memory with a snapshot now and then, which replays what came since and needs a
//! source that goes back; and estimating distinct values, which is not exact and saves only disk.
//!
//! In a rebuild ([`crate::history`]) every record counts, in any order. A window that the latest time of all records has
//! passed by `lateness` is *shown*: its row comes out as it is, and again with every batch that changes it. It stays open
//! until the pipeline is live and closes it by the rules above, and then without a row, since that has come.

mod absorb;
mod aggregate;
mod shape;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::embedded::OpenError;
use courant_connectors::embedded::state::StateStore;
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, JSON, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, Key, Output, Payload, Record, Slot, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Mutex;

use self::absorb::{Absorbing, Order, Pace, Partitions, Verdict};
pub use self::aggregate::Aggregate;
use self::shape::{Parameters, Shape, millis};
use self::state::{Row, State, state_error};
use crate::derived::StageFolder;
use crate::history::History;
use crate::metrics;
use crate::shared::Shared;

pub static SPEC: StageSpec = StageSpec::transform::<Config>("window", Takes::Any, Gives::Kind(JSON))
    .effect(Effect::IdempotentWrite)
    .summary("counts and sums records by time and group, and gives a row for each window")
    .example(
        "[[pipeline.stage]]\nkind = \"window\"\n[pipeline.stage.params]\nsize = \"1m\"\ntime = \".created_at\"\n\
         lateness = \"30s\"\ngroup_by = { chat_id = \".chat_id\" }\n\
         aggregates = { messages = \"count\", senders = { distinct = \".sender_id\" } }\n",
    );

/// How often and how far apart a folder in use is tried.
const OPEN_TRIES: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// The metric label of what came too late.
const LATE: &str = "late";
/// The outputs with `late = "output"`, in order.
const OUTPUTS: [&str; 2] = ["rows", LATE];
const LATE_OUTPUT: Output = 1;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How long a window is. Windows begin at multiples of it since 1970 in UTC: those of a day at midnight.
    pub size: Span,
    /// How far apart windows begin, for windows that overlap; a record is then in several. Its size if left out, so that
    /// every record is in one.
    #[serde(default)]
    pub hop: Option<Span>,
    /// When what the record tells happened, in jq: ISO 8601 text or milliseconds since 1970.
    pub time: String,
    /// What windows are apart by, by the name in the row, in jq: `{ chat_id = ".chat_id" }`. One window for all if left
    /// out.
    #[serde(default)]
    pub group_by: BTreeMap<String, String>,
    /// What the row says of its records, by name: `"count"`, or one of `sum`, `min`, `max` and `distinct` with a jq
    /// expression, such as `{ senders = { distinct = ".sender_id" } }`.
    pub aggregates: BTreeMap<String, Aggregate>,
    /// What makes records the same, in jq: one that is in a window already does not count again. For logs into which an
    /// event may be written twice. Kept on disk until the window closes.
    #[serde(default)]
    pub id: Option<String>,
    /// How long a window stays open for records that come after later ones.
    #[serde(default)]
    pub lateness: Span,
    /// When rows come out.
    #[serde(default)]
    pub emit: Emit,
    /// What becomes of a record that comes after its windows have closed.
    #[serde(default)]
    pub late: Late,
    /// A partition without records for this long does not hold windows open. For as long after a start nothing closes, so
    /// that every partition can be heard of first.
    #[serde(default = "default_idle")]
    pub idle: Span,
    /// A record that is further ahead of this machine's clock is refused: it would close every window before its time.
    #[serde(default = "default_ahead")]
    pub ahead: Span,
    /// Windows that may be open at a time. They are on disk; a record that needs one more is refused. In a rebuild as many
    /// may be open as history has.
    #[serde(default = "default_max_open")]
    pub max_open: NonZeroU64,
}

fn default_idle() -> Span {
    Span::secs(60)
}

fn default_ahead() -> Span {
    Span::secs(3600)
}

/// Some hundred megabytes.
fn default_max_open() -> NonZeroU64 {
    const { NonZeroU64::new(1_000_000).expect("not zero") }
}

/// When rows come out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Emit {
    /// Once, when the window closes.
    #[default]
    Final,
    /// With every batch that changes the window too, for sinks with a key: the later row counts.
    Updates,
}

/// What becomes of late records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Late {
    /// They are dropped as `late`.
    #[default]
    Drop,
    /// They go to the output `late`; rows go to the output `rows`.
    Output,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let shape = Shape::new(&Parameters {
            size: self.size.0,
            hop: self.hop.map(|hop| hop.0),
            time: &self.time,
            group_by: &self.group_by,
            aggregates: &self.aggregates,
            id: self.id.as_deref(),
        })?;
        let stage = Window {
            shape,
            pace: Pace {
                lateness: millis(self.lateness.0),
                ahead: millis(self.ahead.0),
                idle: self.idle.0,
                emit: self.emit,
                max_open: self.max_open.get(),
            },
            late: self.late,
            order: context.services.get::<History>().map_or(Order::OfTime, |_| Order::Any),
            folder: StageFolder::of(context),
            labels: [context.pipeline.to_owned(), context.stage.to_owned()],
            windows: StdMutex::new(None),
        };
        let built = Built::stage(stage).rekeys(true).in_order();
        Ok(match self.late {
            Late::Drop => built,
            Late::Output => built.outputs(OUTPUTS.map(str::to_owned).to_vec()),
        })
    }
}

/// Every state that is open in this process.
static OPEN: Shared<Windows> = Shared::new();

/// A state, and when its partitions were last heard of. Batches take turns.
struct Windows(Arc<Mutex<Open>>);

struct Open {
    store: Arc<StateStore>,
    /// None after a commit that failed: it may have happened all the same, which only the disk knows.
    state: Option<State>,
    partitions: Partitions,
}

struct Window {
    shape: Shape,
    pace: Pace,
    late: Late,
    order: Order,
    folder: StageFolder,
    /// Pipeline and stage, for metrics.
    labels: [String; 2],
    /// There while it is open.
    windows: StdMutex<Option<Arc<Windows>>>,
}

#[async_trait]
impl Stage for Window {
    async fn open(&self) -> Result<(), StageError> {
        let folder = self.folder.open().await?;
        let opened = OPEN.get(&folder, async || {
            let store = Arc::new(open_store(&folder).await?);
            let state = Some(State::load(Arc::clone(&store))?);
            Ok(Windows(Arc::new(Mutex::new(Open { store, state, partitions: Partitions::new() }))))
        });
        *self.windows.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened.await?);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(windows) = windows else {
            return Err(StageError::fatal("count the record", "the stage is not open"));
        };
        let mut open = Arc::clone(&windows.0).lock_owned().await;
        let inputs: Vec<_> = batch.iter_mut().map(|slot| self.shape.measure(slot.record_mut())).collect();
        let Open { store, state, partitions } = &mut *open;
        let draft = match state.take() {
            Some(known) => state.insert(known).draft(),
            None => state.insert(State::load(Arc::clone(store))?).draft(),
        };
        let mut absorbing = Absorbing::new(&self.shape, &self.pace, self.order, partitions, draft);
        for (input, origin) in inputs.into_iter().zip(batch.origins()) {
            absorbing.record(input, origin)?;
        }
        let (verdicts, draft) = absorbing.finish()?;
        let (changes, finished) = draft.finish()?;
        let store = Arc::clone(store);
        // With the lock: a call that is given up leaves the commit at work, and whoever comes next is to find it made.
        let committed = tokio::task::spawn_blocking(move || {
            let state = open.state.take();
            store.commit(changes.into_iter()).map_err(|error| state_error("write the windows", error))?;
            open.state = state.map(|mut state| {
                state.take_over(finished);
                state
            });
            Ok(open.state.as_ref().map_or(0, State::open))
        });
        let still_open =
            committed.await.unwrap_or_else(|stopped| Err(StageError::retry("write the windows", stopped)))?;
        self.pass(batch, verdicts, still_open);
        Ok(())
    }

    async fn close(&self) -> Result<(), StageError> {
        *self.windows.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}

/// Opens the folder; one that was just closed may still be on its way to that.
async fn open_store(folder: &Path) -> Result<StateStore, StageError> {
    let mut tries = 1;
    loop {
        let opened = folder.to_owned();
        match tokio::task::spawn_blocking(move || StateStore::open(&opened)).await {
            Ok(Ok(store)) => return Ok(store),
            Ok(Err(OpenError::InUse { .. })) if tries < OPEN_TRIES => tokio::time::sleep(OPEN_PAUSE).await,
            Ok(Err(error)) => return Err(StageError::fatal("open the windows", error)),
            Err(panicked) => return Err(StageError::fatal("open the windows", panicked)),
        }
        tries += 1;
    }
}

impl Window {
    /// What is on disk now happens to the records.
    fn pass(&self, batch: &mut Batch, verdicts: Vec<Verdict>, open: u64) {
        let late = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Late)).count();
        metrics::windows(&self.labels, late, open);
        for (slot, verdict) in batch.iter_mut().zip(verdicts) {
            match verdict {
                Verdict::Refused(error) => slot.fail(error),
                Verdict::Late if self.late == Late::Output => slot.send_to(LATE_OUTPUT),
                Verdict::Late => slot.drop_as(LATE),
                Verdict::Counted(rows) if rows.is_empty() => slot.finish(),
                Verdict::Counted(rows) => give(slot, rows),
            }
        }
    }
}

fn give(slot: &mut Slot, rows: Vec<Row>) {
    let record = |row: Row| {
        let mut record = Record::new(Payload::from(row.payload));
        record.key = Some(Key::new(row.key));
        record
    };
    slot.replace(rows.into_iter().map(record).collect());
}
