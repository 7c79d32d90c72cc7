//! What was found and what was done. Plain data that goes over the admin socket and to programs as JSON.

use courant_connectors::model::ChatId;
use serde::{Deserialize, Serialize};

use crate::verify::{self, checks};

/// Groups that are named of those that were not swept.
const KEPT: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What was found, before anything was done about it.
    pub looked: verify::Report,
    /// If that was asked for.
    pub published: Option<Published>,
    /// If that was asked for.
    pub swept: Option<Swept>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub events: u64,
    /// Of how many chats.
    pub chats: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swept {
    pub groups: u64,
    /// Of those groups.
    pub memberships: u64,
    /// How many groups were left as they are.
    pub kept: u64,
    /// Some of those, and why.
    pub examples: Vec<Kept>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub chat_id: ChatId,
    pub why: String,
}

impl Swept {
    pub(super) fn keep(&mut self, kept: Kept) {
        self.kept += 1;
        if self.examples.len() < KEPT {
            self.examples.push(kept);
        }
    }
}

impl Report {
    fn found(&self, check: &checks::Check) -> u64 {
        self.looked.checks.iter().find(|looked| looked.id == check.id).map_or(0, |looked| looked.found)
    }

    /// Messages whose events are not in the log and should be.
    pub fn without_event(&self) -> u64 {
        self.found(&checks::MESSAGE_EVENT)
    }

    /// Events whose messages are not in the store, or say something else.
    pub fn without_message(&self) -> u64 {
        self.found(&checks::EVENT_MESSAGE) + self.found(&checks::EVENT_CONTENT)
    }

    /// What store and log disagree about and nothing was done about. Leftovers are no disagreement: nobody sees them.
    pub fn left(&self) -> u64 {
        let published = self.published.map_or(0, |published| published.events);
        self.without_message() + self.without_event().saturating_sub(published)
    }
}
