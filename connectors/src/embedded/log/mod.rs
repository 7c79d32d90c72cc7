//! The log in the embedded engine.
//!
//! - `chunk`: records on disk; `topic`: chunks by partition and offset; `append`: what the committer adds.
//! - `read`: reading partitions; `groups`: who of a group reads which; `consumer`: a member of a group.
//! - `admin`: topics come and go; `sweep`: retention; `check`: whether all agrees.

mod admin;
mod append;
mod check;
mod chunk;
mod consumer;
mod groups;
mod read;
mod sweep;
mod topic;

use std::sync::Arc;

use super::Engine;
use super::committer::CommitError;
use super::trouble::passing;
use crate::log::{LogError, Result, Topic};

pub(super) use admin::open_topics;
pub(super) use append::LogAppends;
pub(super) use groups::Groups;
pub(super) use sweep::SweepLog;
pub(super) use topic::StoredTopic;

impl Engine {
    fn topic(&self, name: &Topic) -> Result<Arc<StoredTopic>> {
        let found = self.shared.topics().get(name).cloned();
        found.ok_or_else(|| LogError::NoSuchTopic { topic: name.clone() })
    }
}

/// A failed read of the engine below. What fails its checksum is not served.
fn read_error(error: fjall::Error) -> LogError {
    match passing(error) {
        Ok(error) => LogError::Unavailable(format!("reading failed: {error}")),
        Err(damage) => LogError::Damaged(damage.to_string()),
    }
}

fn commit_error(error: &CommitError) -> LogError {
    match error {
        CommitError::Closed { .. } => LogError::Unavailable(error.to_string()),
        CommitError::Failed { .. } => LogError::UnknownOutcome(error.to_string()),
    }
}

/// The outcome, unless the group could not be written.
fn settle<T>(outcome: Result<T>, committed: std::result::Result<(), &CommitError>) -> Result<T> {
    committed.map_err(commit_error).and(outcome)
}
