//! The index that a process has open, for those who answer clients.
//!
//! Whoever writes an index offers it while it is open; whoever is asked looks here. Neither knows the other, and a process
//! that keeps no index says so. Searches run on threads of their own that may block, a few at a time: those that find no
//! place wait for one, and are sent away before they have waited for longer than a search takes.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::SearchError;
use super::ask::{Ask, Page, SearchIndex};

/// Searches at a time, beside the work that a process is there for.
const AT_A_TIME: usize = 4;
/// Waiting longer for a place than a good search takes means that there are too many.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    #[error("this process keeps no search index; add a pipeline that ends in `search-index`")]
    NoIndex,
    #[error("too many searches are being made")]
    Crowded,
    #[error(transparent)]
    Failed(#[from] SearchError),
}

/// The searches of a process.
pub struct Searches {
    /// The last one is asked: while a pipeline starts again there may be two.
    offered: RwLock<Vec<Arc<SearchIndex>>>,
    places: Arc<Semaphore>,
}

impl Default for Searches {
    fn default() -> Self {
        Self { offered: RwLock::default(), places: Arc::new(Semaphore::new(AT_A_TIME)) }
    }
}

/// An index that is asked for as long as this lives.
pub struct Offered {
    searches: Arc<Searches>,
    index: Arc<SearchIndex>,
}

impl Searches {
    pub fn offer(self: &Arc<Self>, index: Arc<SearchIndex>) -> Offered {
        self.offered.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&index));
        Offered { searches: Arc::clone(self), index }
    }

    pub async fn ask(&self, ask: Ask) -> Result<Page, Unanswered> {
        let index = self.index().ok_or(Unanswered::NoIndex)?;
        let place = timeout(LONGEST_WAIT, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(Unanswered::Crowded) };
        let folder = index.folder().to_owned();
        let asked = tokio::task::spawn_blocking(move || {
            // Kept until the search has ended, also when nobody waits for it any more.
            let _place = place;
            index.ask(&ask)
        });
        match asked.await {
            Ok(page) => Ok(page?),
            // Damage that was not seen before is met as a panic.
            Err(error) => Err(SearchError::Interrupted { folder, reason: error.to_string() }.into()),
        }
    }

    fn index(&self) -> Option<Arc<SearchIndex>> {
        self.offered.read().unwrap_or_else(PoisonError::into_inner).last().cloned()
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let mut offered = self.searches.offered.write().unwrap_or_else(PoisonError::into_inner);
        offered.retain(|index| !Arc::ptr_eq(index, &self.index));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ask, message, open};
    use super::*;

    #[tokio::test]
    async fn the_index_that_was_offered_last_is_asked() {
        let searches = Arc::new(Searches::default());
        let question = ask("tea", &["chat_1"]);
        assert!(matches!(searches.ask(question.clone()).await, Err(Unanswered::NoIndex)));
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut old, new] = folders.each_ref().map(|folder| open(folder.path()));
        old.write(&[message("chat_1", 1, "tea")]).unwrap();
        let offered = searches.offer(Arc::clone(old.reader()));
        assert_eq!(searches.ask(question.clone()).await.unwrap().hits.len(), 1);
        let replacement = searches.offer(Arc::clone(new.reader()));
        assert_eq!(searches.ask(question.clone()).await.unwrap().hits.len(), 0);
        drop(replacement);
        assert_eq!(searches.ask(question.clone()).await.unwrap().hits.len(), 1);
        drop(offered);
        assert!(matches!(searches.ask(question).await, Err(Unanswered::NoIndex)));
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_find_no_place_are_sent_away() {
        let searches = Arc::new(Searches::default());
        let folder = tempfile::tempdir().unwrap();
        let _offered = searches.offer(Arc::clone(open(folder.path()).reader()));
        let held =
            Arc::clone(&searches.places).acquire_many_owned(u32::try_from(AT_A_TIME).unwrap()).await.unwrap();
        assert!(matches!(searches.ask(ask("tea", &["chat_1"])).await, Err(Unanswered::Crowded)));
        drop(held);
        assert!(searches.ask(ask("tea", &["chat_1"])).await.is_ok());
    }
}
