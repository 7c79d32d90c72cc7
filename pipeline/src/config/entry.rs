//! The tables of `pipelines.toml` as they are written; their doc comments are the user's documentation.

use std::num::{NonZeroU16, NonZeroU32};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Size, Span};

/// One `[[pipeline]]`: a tree of stages from one source.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PipelineEntry {
    /// Name in logs, metrics, commands and kept positions. Renaming a pipeline starts it anew.
    pub name: String,
    /// The plane it belongs to, which decides what it may touch.
    #[serde(default)]
    pub plane: Plane,
    /// Answer the client once this stage has handled the record, instead of at the end of the pipeline. Not the source,
    /// which has only read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_after: Option<String>,
    /// The stages, source first. Each takes its input from the one before it unless it names another.
    pub stage: Vec<StageEntry>,
}

/// What a pipeline is for, and so what it may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Plane {
    /// Talks to clients; owns nothing.
    Connection,
    /// Changes the truth: the only plane that writes the store, and it does so before anything else.
    Durability,
    /// Carries events to whom they concern.
    Fanout,
    /// Builds something that can be built again, such as a search index.
    #[default]
    Derived,
    /// Runs history again.
    Replay,
}

impl Plane {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Durability => "durability",
            Self::Fanout => "fanout",
            Self::Derived => "derived",
            Self::Replay => "replay",
        }
    }
}

/// One `[[pipeline.stage]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageEntry {
    /// What it does: one of the kinds that `courant stages` lists.
    pub kind: String,
    /// Name within the pipeline; the kind if left out. Needed when a kind appears twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The stage it takes its records from, or one of its outputs as `"<stage>.<output>"`. The stage before it
    /// if left out. Several stages may share an input: each gets every record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// What the kind itself is told; see `courant stages <kind>`.
    #[serde(default)]
    pub params: serde_json::Map<String, serde_json::Value>,
    /// How many lanes work in parallel. Records of one key stay in one lane, in order; records without a key
    /// share one. As many as the stage before it if left out, and as the machine has cores after the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<NonZeroU16>,
    /// How many records it is given at a time.
    #[serde(default)]
    pub batch: BatchLimits,
    /// Records that may wait in front of each of its lanes: with 4 lanes and a buffer of 100, 400 may wait. Without a
    /// buffer it runs in the same task as the stage before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<NonZeroU32>,
    /// How failed work is tried again.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// What happens to a record that is refused, or whose retries ran out.
    #[serde(default)]
    pub on_error: OnError,
    /// The queue that its dead letters go to; named like the pipeline if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
}

/// Limits of one call to a stage; whichever is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BatchLimits {
    /// Records at the most.
    pub records: NonZeroU32,
    /// Bytes at the most. A single larger record still passes.
    pub bytes: Size,
    /// How long to wait for a batch to fill. Zero takes what is there.
    pub wait: Span,
}

/// Enough to spread the cost of a call, little enough that a batch stays a matter of milliseconds.
const DEFAULT_BATCH_RECORDS: NonZeroU32 = NonZeroU32::new(512).expect("not zero");

impl Default for BatchLimits {
    fn default() -> Self {
        Self { records: DEFAULT_BATCH_RECORDS, bytes: Size(1 << 20), wait: Span::default() }
    }
}

/// Back-off between tries, and when to stop trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Wait after the first failure, more than nothing; doubles with each further one, with jitter.
    pub initial: Span,
    /// Longest wait between two tries.
    pub max: Span,
    /// Give up on a record this long after its first failure, and do what `on_error` says. Never if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// Calls that must fail in a row before the stage leaves its dependency alone for a while.
    pub circuit_after: NonZeroU32,
    /// How long it leaves it alone before one lane tries again.
    pub circuit_pause: Span,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial: Span::millis(100),
            max: Span::secs(10),
            deadline: None,
            circuit_after: NonZeroU32::new(5).expect("not zero"),
            circuit_pause: Span::secs(5),
        }
    }
}

/// What happens to a record that a stage refuses, or whose retries ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnError {
    /// Keep it aside with the error; see `courant dead-letters`.
    #[default]
    DeadLetter,
    /// Leave it out and count it.
    Drop,
    /// Keep trying for ever, whatever the error; the rest of its key waits behind it.
    Retry,
    /// Stop the pipeline; it restarts from its last commit, with back-off.
    Stop,
}
