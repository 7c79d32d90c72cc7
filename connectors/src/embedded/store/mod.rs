//! The store in the embedded engine.
//!
//! - `encoding`: keys whose bytes are in order; `codec`: items as bytes; `table`: rows, indexes and ends; `changes`: the change stream,
//!   `shard`: reading it.
//! - `read`: gets, queries, scans; `prepared`, `write`: what the committer decides; `tokens`: transactions done before.
//! - `admin`: tables come and go; `sweep`: what time removes; `check`: whether all agrees; `plain`: for measuring.

mod admin;
mod changes;
mod check;
mod encoding;
mod plain;
mod prepared;
mod read;
mod shard;
mod sweep;
mod table;
mod tokens;
mod write;

use std::sync::Arc;

use super::Engine;
use super::committer::CommitError;
use super::trouble::passing;
use crate::store::{Name, Result, StoreError};

pub(super) use admin::open_tables;
pub(super) use changes::{Numbering, StoreChanges};
pub use plain::PlainRows;
pub(super) use sweep::SweepStore;
pub(super) use table::Table;
pub(super) use tokens::Tokens;

impl Engine {
    fn table(&self, name: &Name) -> Result<Arc<Table>> {
        let found = self.shared.tables().get(name).cloned();
        found.ok_or_else(|| StoreError::NoSuchTable { table: name.clone() })
    }
}

/// A failed read of the engine below. What fails its checksum is not served.
fn read_error(error: fjall::Error) -> StoreError {
    match passing(error) {
        Ok(error) => StoreError::Unavailable(format!("reading failed: {error}")),
        Err(damage) => StoreError::Damaged(damage.to_string()),
    }
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(what.to_owned())
}

/// The outcome, unless the group could not be written.
fn settle<T>(outcome: Result<T>, committed: std::result::Result<(), &CommitError>) -> Result<T> {
    match committed {
        Ok(()) => outcome,
        Err(closed @ CommitError::Closed { .. }) => Err(StoreError::Unavailable(closed.to_string())),
        Err(failed @ CommitError::Failed { .. }) => Err(StoreError::UnknownOutcome(failed.to_string())),
    }
}
