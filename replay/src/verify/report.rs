//! What came of it. Plain data that goes over the admin socket and to programs as JSON.

use std::collections::BTreeMap;

use courant_connectors::model::{ChatId, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::checks::{Check, Severity};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub began_at: Timestamp,
    pub ended_at: Timestamp,
    pub ending: Ending,
    pub figures: Figures,
    pub checks: Vec<CheckReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    Finished,
    /// Told to stop: what is in the report was found until then, and the rest was not looked at.
    Stopped,
}

/// What there is, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Items by table.
    pub items: BTreeMap<String, u64>,
    /// Events by topic.
    pub events: BTreeMap<String, u64>,
    /// Sequences that were allocated and never used, up to the last one used in each chat. They are allowed.
    pub gaps: u64,
    pub chats_with_gaps: u64,
    /// Messages too new for their event to be missed yet.
    pub too_new: u64,
    /// Messages from before what the log still holds.
    pub before_the_log: u64,
    /// Items written down for a second look.
    pub watched: u64,
}

/// What one check came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    pub id: String,
    pub severity: Severity,
    pub holds: String,
    pub means: String,
    pub remedy: String,
    pub from: String,
    /// Why it was not made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub skipped: Option<String>,
    pub looked_at: u64,
    pub found: u64,
    /// Some of what was found.
    pub examples: Vec<Example>,
}

impl CheckReport {
    /// Of a check that was made.
    pub fn of(check: &Check, looked_at: u64, found: u64, examples: Vec<Example>) -> Self {
        Self {
            id: check.id.to_owned(),
            severity: check.severity,
            holds: check.holds.to_owned(),
            means: check.means.to_owned(),
            remedy: check.remedy.to_owned(),
            from: check.from.to_owned(),
            skipped: None,
            looked_at,
            found,
            examples,
        }
    }
}

/// One thing that does not hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Example {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chat_id: Option<ChatId>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user_id: Option<UserId>,
    /// What was found there, for people.
    pub detail: String,
}

impl Example {
    pub(crate) fn of(chat: &ChatId) -> Self {
        Self { chat_id: Some(chat.clone()), ..Self::default() }
    }

    pub(crate) fn about(user: &UserId) -> Self {
        Self { user_id: Some(user.clone()), ..Self::default() }
    }

    pub(crate) fn at(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    pub(crate) fn with(mut self, user: &UserId) -> Self {
        self.user_id = Some(user.clone());
        self
    }

    pub(crate) fn saying(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }
}

impl Report {
    /// How much of this severity was found.
    pub fn found(&self, severity: Severity) -> u64 {
        self.checks.iter().filter(|check| check.severity == severity).map(|check| check.found).sum()
    }
}
