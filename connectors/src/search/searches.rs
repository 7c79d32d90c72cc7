//! The index that a process has open, for those who answer clients.
//!
//! Whoever writes an index offers it while it is open; whoever is asked looks here. Neither knows the other, and a process
//! that keeps no index says so. One that was closed is asked for a while longer, unless another is offered: a pipeline that
//! is loaded again, or whose index is replaced by a rebuilt one, is back in a moment, and clients need not notice. Searches
//! run on threads of their own that may block, a few at a time: those that find no place wait for one, and are sent away
//! before they have waited for longer than a search takes.

use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::SearchError;
use super::ask::{Ask, Page, SearchIndex};

/// Searches at a time, beside the work that a process is there for.
const AT_A_TIME: usize = 4;
/// Waiting longer for a place than a good search takes means that there are too many.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How long an index is asked after it was closed. Pipelines that start again take less; what is said meanwhile is not in
/// it, so it must not be long.
const KEPT: Duration = Duration::from_secs(30);

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
    indexes: RwLock<Indexes>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Indexes {
    /// The last one is asked: while a pipeline starts again there may be two.
    offered: Vec<Arc<SearchIndex>>,
    kept: Option<Kept>,
}

/// Closed a moment ago, and asked until another is offered.
struct Kept {
    index: Arc<SearchIndex>,
    until: Instant,
}

impl Default for Searches {
    fn default() -> Self {
        Self { indexes: RwLock::default(), places: Arc::new(Semaphore::new(AT_A_TIME)) }
    }
}

/// An index that is asked for as long as this lives, and a little longer if there is no other.
pub struct Offered {
    searches: Arc<Searches>,
    index: Arc<SearchIndex>,
}

impl Searches {
    pub fn offer(self: &Arc<Self>, index: Arc<SearchIndex>) -> Offered {
        let mut indexes = self.indexes();
        indexes.offered.push(Arc::clone(&index));
        indexes.kept = None;
        drop(indexes);
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
        let indexes = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let kept = || indexes.kept.as_ref().filter(|kept| Instant::now() < kept.until);
        indexes.offered.last().or_else(|| kept().map(|kept| &kept.index)).cloned()
    }

    fn indexes(&self) -> RwLockWriteGuard<'_, Indexes> {
        self.indexes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one that was closed, for as long as there is no other, and not for ever.
    fn keep(self: &Arc<Self>, indexes: &mut Indexes, closed: &Arc<SearchIndex>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let until = Instant::now() + KEPT;
        indexes.kept = Some(Kept { index: Arc::clone(closed), until });
        let searches = Arc::downgrade(self);
        runtime.spawn(async move {
            // Its files may be removed by now, and take room for as long as anybody has them open.
            sleep_until(until).await;
            let Some(searches) = searches.upgrade() else { return };
            let late = searches.indexes().kept.take_if(|kept| kept.until <= Instant::now());
            drop(late);
        });
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let mut indexes = self.searches.indexes();
        indexes.offered.retain(|index| !Arc::ptr_eq(index, &self.index));
        if indexes.offered.is_empty() {
            self.searches.keep(&mut indexes, &self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ask, message, open};
    use super::super::writer::IndexWriter;
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
    }

    /// A pipeline that stands still for a moment is not noticed; one that is gone is.
    #[tokio::test(start_paused = true)]
    async fn an_index_that_is_closed_is_asked_until_there_is_another_or_it_is_late() {
        let searches = Arc::new(Searches::default());
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut old, new] = folders.each_ref().map(|folder| open(folder.path()));
        old.write(&[message("chat_1", 1, "tea")]).unwrap();
        let hits = async || Some(searches.ask(ask("tea", &["chat_1"])).await.ok()?.hits.len());
        let offer = |writer: &IndexWriter| searches.offer(Arc::clone(writer.reader()));
        let closed = offer(&old);
        drop(closed);
        drop(old);
        tokio::time::advance(KEPT / 2).await;
        assert_eq!(hits().await, Some(1), "it is closed, and can be read");
        drop(open(folders[0].path())); // as when its own pipeline is back
        let other = offer(&new);
        assert_eq!(hits().await, Some(0));
        drop(other);
        let left = Arc::downgrade(new.reader());
        drop(new);
        tokio::time::advance(KEPT / 2 + Duration::from_millis(1)).await;
        assert_eq!(hits().await, Some(0), "the end of the first is not that of the other");
        tokio::time::advance(KEPT / 2).await;
        assert_eq!(hits().await, None);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(left.upgrade().is_none(), "nobody has its files open");
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
