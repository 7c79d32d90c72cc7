//! Questions to store and log. What passes by itself, such as a store that asks to slow down, is asked again.

use std::time::Duration;

use courant_connectors::log::{LogError, Offsets, Reader, Topic, Watermarks};
use courant_connectors::model::Timestamp;
use courant_connectors::store::{Consistency, Get, Item, Page, Query, Remedy, Scan, StoreError};
use tokio::time::sleep;

use super::{Deployment, Result, VerifyError};

/// Gets of one call: four of DynamoDB's, which go at once; and on the embedded engine a millisecond or two after which
/// others get their turn.
const GETS: usize = 400;
pub(crate) const TRIES: u32 = 6;
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Reads {
    deployment: Deployment,
}

impl Reads {
    pub(crate) fn new(deployment: Deployment) -> Self {
        Self { deployment }
    }

    pub(crate) async fn get(&self, get: Get) -> Result<Option<Item>> {
        let ask = || self.deployment.store.get(get.clone());
        patiently(ask).await.map_err(|source| VerifyError::Store { doing: "get an item", source })
    }

    /// As many as there are, found or not in the order asked.
    pub(crate) async fn get_all(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        let mut found = Vec::with_capacity(gets.len());
        for part in gets.chunks(GETS) {
            let ask = || self.deployment.store.batch_get(part.to_vec());
            let failed = |source| VerifyError::Store { doing: "get items", source };
            found.extend(patiently(ask).await.map_err(failed)?);
            tokio::task::yield_now().await;
        }
        Ok(found)
    }

    pub(crate) async fn query(&self, query: Query) -> Result<Page> {
        let ask = || self.deployment.store.query(query.clone());
        patiently(ask).await.map_err(|source| VerifyError::Store { doing: "query items", source })
    }

    /// Every page of a query.
    pub(crate) async fn query_all(&self, mut query: Query) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        loop {
            let page = self.query(query.clone()).await?;
            items.extend(page.items);
            query.start_after = page.next;
            if query.start_after.is_none() {
                return Ok(items);
            }
        }
    }

    pub(crate) async fn scan(&self, scan: Scan) -> Result<Page> {
        let ask = || self.deployment.scan.scan(scan.clone());
        patiently(ask).await.map_err(|source| VerifyError::Store { doing: "scan a table", source })
    }

    pub(crate) async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>> {
        let ask = || self.deployment.log.watermarks(topic);
        patiently(ask).await.map_err(|source| VerifyError::Log { doing: "find the ends of the log", source })
    }

    pub(crate) async fn offsets_at(&self, topic: &Topic, time: Timestamp) -> Result<Offsets> {
        let ask = || self.deployment.log.offsets_at(topic, time.into());
        patiently(ask).await.map_err(|source| VerifyError::Log { doing: "find a time in the log", source })
    }

    pub(crate) async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>, LogError> {
        patiently(|| self.deployment.log.read_from(offsets.clone())).await
    }
}

/// Strong, whatever the access pattern asks for: a finding is not to rest on a late answer.
pub(crate) fn strongly(mut get: Get) -> Get {
    get.consistency = Consistency::Strong;
    get
}

pub(crate) trait Passing {
    fn passes(&self) -> bool;
}

impl Passing for StoreError {
    fn passes(&self) -> bool {
        // Reading twice does no harm.
        matches!(self.remedy(), Remedy::Retry | Remedy::Look)
    }
}

impl Passing for LogError {
    fn passes(&self) -> bool {
        self.remedy() == Remedy::Retry
    }
}

/// Asks again a few times, with pauses, what fails and may pass.
pub(crate) async fn patiently<T, E, F>(ask: impl Fn() -> F) -> Result<T, E>
where
    E: Passing,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if error.passes() => sleep(pause).await,
            answer => return answer,
        }
        pause *= 2;
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    async fn asked(failures: u32, error: fn() -> StoreError) -> (Result<u32, StoreError>, u32) {
        let count = AtomicU32::new(0);
        let answer = patiently(|| async {
            if count.fetch_add(1, Ordering::Relaxed) < failures { Err(error()) } else { Ok(7) }
        });
        (answer.await, count.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_asked_again_and_nothing_else() {
        let busy = || StoreError::Throttled("busy".into());
        assert!(matches!(asked(5, busy).await, (Ok(7), 6)));
        assert!(matches!(asked(9, busy).await, (Err(StoreError::Throttled(_)), 6)));
        let gone = || StoreError::NoSuchTable { table: "messages".into() };
        assert!(matches!(asked(9, gone).await, (Err(StoreError::NoSuchTable { .. }), 1)));
    }
}
