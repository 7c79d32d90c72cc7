//! The `[[test]]` table; its doc comments are the user's documentation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use courant_pipeline::Disposition;

/// One `[[test]]`: records given to a pipeline, and what should come of them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestEntry {
    /// What it shows, in words.
    pub name: String,
    /// The pipeline under test.
    pub pipeline: String,
    /// The records its source gives, in order.
    pub given: Vec<Given>,
    /// What should have happened when all are dealt with. What is left out is not looked at.
    pub expect: Expect,
}

/// A record to give.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Given {
    /// The payload, as TOML; it becomes JSON.
    pub payload: Value,
    /// The payload as text, for what is not JSON. Instead of `payload`.
    pub text: Option<String>,
    pub key: Option<String>,
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Expect {
    /// By sink, or by the last stage or output (`"route.errors"`) of a branch without one: the records that arrive
    /// there, in order.
    pub records: BTreeMap<String, Vec<ExpectedRecord>>,
    /// How many of the given records end in which way.
    pub dispositions: ExpectedTally,
    /// The dead letters, in order.
    pub dead_letters: Option<Vec<ExpectedLetter>>,
    /// What the client of each given record is told, in order.
    pub replies: Option<Vec<ExpectedReply>>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRecord {
    pub payload: Value,
    #[serde(default)]
    pub key: Option<String>,
    /// These headers; others may be there.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedTally {
    pub delivered: Option<u64>,
    pub dropped: Option<u64>,
    pub dead_lettered: Option<u64>,
    pub failed: Option<u64>,
}

impl ExpectedTally {
    pub(super) fn of(&self, disposition: Disposition) -> Option<u64> {
        match disposition {
            Disposition::Delivered => self.delivered,
            Disposition::Dropped => self.dropped,
            Disposition::DeadLettered => self.dead_lettered,
            Disposition::Failed => self.failed,
        }
    }
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedLetter {
    /// The stage that gave up.
    pub stage: String,
    /// A part of the error.
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub payload: Option<Value>,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedReply {
    /// `delivered`, `dropped`, `dead-lettered` or `failed`.
    pub disposition: Disposition,
    /// A part of the reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// What a stage attached for the client.
    #[serde(default)]
    pub receipt: Option<Value>,
}
