//! What time removes: rows that ended, changes older than a day, tokens older than ten minutes.
//!
//! A little at a time, as a job among others, so that nobody waits long behind it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::super::shared::Shared;
use super::table::{RowChange, Table};
use crate::store::{Durability, Result};

/// As long as AWS keeps a stream.
const CHANGES_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Per table and round: a few milliseconds of the committer's time.
const AT_ONCE: usize = 500;

pub(in crate::embedded) struct SweepStore {
    shared: Arc<Shared>,
    /// Whether there may be more to do.
    more: bool,
    reply: oneshot::Sender<bool>,
}

impl SweepStore {
    pub(in crate::embedded) fn new(shared: Arc<Shared>) -> (Self, oneshot::Receiver<bool>) {
        let (reply, answer) = oneshot::channel();
        (Self { shared, more: false, reply }, answer)
    }

    fn sweep(&self, group: &mut Group) -> Result<bool> {
        let mut more = self.shared.tokens.sweep(group, AT_ONCE)? == AT_ONCE;
        let keep_from =
            group.now.saturating_sub(u64::try_from(CHANGES_KEPT.as_millis()).expect("a day is short"));
        let tables: Vec<Arc<Table>> = self.shared.tables().values().cloned().collect();
        for table in tables {
            more |= sweep_rows(&table, group)? == AT_ONCE;
            more |= table.trim_changes(group, &self.shared.catalog_rows, keep_from, AT_ONCE)? == AT_ONCE;
        }
        Ok(more)
    }
}

/// Removes rows that have ended; returns how many it looked at.
fn sweep_rows(table: &Table, group: &mut Group) -> Result<usize> {
    let now = Duration::from_millis(group.now);
    let ended = table.ended_rows(now.as_secs(), AT_ONCE)?;
    let count = ended.len();
    for (end, row) in ended {
        let stored = table.stored_row(group, &row)?;
        match stored.filter(|stored| table.schema.has_ended(&stored.item, now)) {
            Some(old) => {
                table.change_row(group, RowChange { row, old: Some(&old), new: None, expired: true });
            }
            // replaced in this very group: only the note of its end is left over
            None => table.forget_end(group, end, &row),
        }
    }
    Ok(count)
}

impl Job for SweepStore {
    fn bytes(&self) -> usize {
        64 * 1024
    }

    /// What is removed was not seen by anybody any more, so it need not be on disk at once.
    fn durability(&self) -> Durability {
        Durability::Ordered
    }

    fn decide(&mut self, group: &mut Group) {
        match self.sweep(group) {
            Ok(more) => self.more = more,
            Err(error) => tracing::error!(%error, "sweeping the store failed"),
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        // nobody waits once the engine is closing
        let _ = self.reply.send(committed.is_ok() && self.more);
    }
}
