//! What the engine does by itself from time to time: removing what time has ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::committer::Committer;
use super::log::SweepLog;
use super::shared::Shared;
use super::store::SweepStore;

/// Ended rows are hidden at once; this is how long they take up space.
const INTERVAL: Duration = Duration::from_secs(30);
/// Between two rounds while there is more to do, so that others get their turn.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Upkeep(AbortHandle);

impl Upkeep {
    pub(super) fn start(shared: &Arc<Shared>, committer: &Arc<Committer>) -> Self {
        // weak: the engine ends when its last user drops it, and not when this task does
        let (shared, committer) = (Arc::downgrade(shared), Arc::downgrade(committer));
        Self(tokio::spawn(run(shared, committer)).abort_handle())
    }

    pub(super) fn stop(&self) {
        self.0.abort();
    }
}

async fn run(shared: Weak<Shared>, committer: Weak<Committer>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        loop {
            let (Some(shared), Some(committer)) = (shared.upgrade(), committer.upgrade()) else { return };
            if !sweep_once(&shared, &committer).await {
                break;
            }
            drop((shared, committer));
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// One round of everything; whether there is more to do.
pub(super) async fn sweep_once(shared: &Arc<Shared>, committer: &Committer) -> bool {
    let (store, store_done) = SweepStore::new(Arc::clone(shared));
    let (log, log_done) = SweepLog::new(Arc::clone(shared));
    committer.submit(Box::new(store)).await;
    committer.submit(Box::new(log)).await;
    let more_in_store = store_done.await.unwrap_or(false);
    let more_in_log = log_done.await.unwrap_or(false);
    more_in_store || more_in_log
}
