//! What a worker and its keeper tell each other: what is held and until when, what was lost, what went wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::Timestamp;
use crate::model::tables::stream_leases::{Group, Place};
use crate::store::{ShardId, StoreError};

/// A shard that this worker holds.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) term: u64,
    /// Where it was when it was taken.
    pub(super) place: Place,
    /// Nothing is handed out after this, unless a sign of life was written.
    pub(super) valid_until: Instant,
    /// Somebody else is to have it.
    pub(super) is_leaving: bool,
    /// How changes are to be looked at.
    pub(super) window: Window,
}

/// Which changes are not handed out as they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) since: Timestamp,
    pub(super) scanned_until: Timestamp,
}

impl From<&Group> for Window {
    fn from(group: &Group) -> Self {
        Self { since: group.since, scanned_until: group.scanned_until }
    }
}

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// For the worker: something of the state has changed.
    changed: Notify,
    /// For the keeper: there is something to do before its time.
    wanted: Notify,
    /// Milliseconds since 1970 from which on not everything is done; zero if everything is.
    behind_since: AtomicU64,
}

#[derive(Default)]
struct State {
    parts: BTreeMap<ShardId, Part>,
    /// Shards of which changes are lost, in the term that found out.
    trimmed: BTreeSet<(ShardId, u64)>,
    failure: Option<StoreError>,
    /// How many scans the group has begun.
    scans: u64,
}

impl State {
    /// Whether it was held in this term.
    fn drop_part(&mut self, shard: &ShardId, term: u64) -> bool {
        self.trimmed.remove(&(shard.clone(), term));
        let is_held = self.parts.get(shard).is_some_and(|part| part.term == term);
        if is_held {
            self.parts.remove(shard);
        }
        is_held
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    pub(super) fn parts(&self) -> BTreeMap<ShardId, Part> {
        self.state().parts.clone()
    }

    pub(super) fn hold(&self, shard: ShardId, part: Part) {
        self.state().parts.insert(shard, part);
        self.changed.notify_one();
    }

    /// After a sign of life.
    pub(super) fn renewed(&self, shard: &ShardId, term: u64, valid_until: Instant) {
        if let Some(part) = self.state().parts.get_mut(shard).filter(|part| part.term == term) {
            part.valid_until = part.valid_until.max(valid_until);
        }
        self.changed.notify_one();
    }

    pub(super) fn let_go(&self, shard: &ShardId) {
        if let Some(part) = self.state().parts.get_mut(shard) {
            part.is_leaving = true;
        }
        self.changed.notify_one();
    }

    /// The lease is another's, or nobody's.
    pub(super) fn lose(&self, shard: &ShardId, term: u64) {
        let mut state = self.state();
        if state.drop_part(shard, term) {
            tracing::warn!(shard = %shard.0, term, "lost a shard before everything read from it was done");
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Like [`lose`](Self::lose), as it was meant to be. Others may go on with its children now.
    pub(super) fn released(&self, shard: &ShardId, term: u64) {
        self.state().drop_part(shard, term);
        self.wanted.notify_one();
    }

    pub(super) fn report_trimmed(&self, shard: ShardId, term: u64) {
        self.state().trimmed.insert((shard, term));
        self.wanted.notify_one();
    }

    pub(super) fn trimmed(&self) -> BTreeSet<(ShardId, u64)> {
        self.state().trimmed.clone()
    }

    pub(super) fn fail(&self, error: StoreError) {
        self.state().failure = Some(error);
        self.changed.notify_one();
    }

    pub(super) fn take_failure(&self) -> Option<StoreError> {
        self.state().failure.take()
    }

    pub(super) fn set_scans(&self, scans: u64) {
        self.state().scans = scans;
    }

    pub(super) fn scans(&self) -> u64 {
        self.state().scans
    }

    pub(super) fn set_behind_since(&self, at: Option<SystemTime>) {
        let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        self.behind_since.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn behind_since(&self) -> Option<SystemTime> {
        let millis = self.behind_since.load(Ordering::Relaxed);
        (millis > 0).then(|| UNIX_EPOCH + Duration::from_millis(millis))
    }
}
