//! What readers see: everything up to the last group that was written, and nothing of the one being written.
//!
//! The engine below applies a batch row by row. Its single reads see each row as it comes, and its own snapshots are no
//! help: whenever it puts a file in place meanwhile, it raises the number up to which rows are shown, also over half a
//! batch (`upgrade_version` in lsm-tree 3.1.10). So the committer, the only one who writes, takes a snapshot between two
//! groups, and everybody reads from that one. A transaction is seen as a whole or not at all, by whatever reads.

use std::sync::{Arc, PoisonError, RwLock};

use fjall::{Database, Snapshot};

pub(super) struct Moment(RwLock<Arc<Snapshot>>);

impl Moment {
    /// To be called where no batch is being applied.
    pub(super) fn of(database: &Database) -> Self {
        Self(RwLock::new(Arc::new(database.snapshot())))
    }

    pub(super) fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Shows readers what was written since. For the committer, between two groups.
    pub(super) fn advance(&self, database: &Database) {
        let next = Arc::new(database.snapshot());
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), next);
        // its end may tidy up, which nobody needs to wait for
        drop(before);
    }
}
