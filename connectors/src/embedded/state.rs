//! What a stage keeps between records: an ordered store of bytes in a folder of its own.
//!
//! A change is a batch that is on disk when the call returns, whole or not at all. One writer at a time: whoever holds
//! the store takes care of that. It rests on the same engine as store and log, with the same look at its files before
//! they are believed; it is apart from them because it belongs to a derived store, which can be thrown away and made
//! again.

use std::ops::RangeInclusive;
use std::path::Path;

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode};

use super::recovery::{self, MADE_LAST, OpenError};
use super::shared::{folder_builder, open_keyspace};
use crate::files::make_whole;

/// Blocks read from disk that are kept in memory.
const CACHE_BYTES: u64 = 16 << 20;
/// See the engine's own: what is in memory only, and replayed when the folder is opened.
const JOURNAL_BYTES: u64 = 64 << 20;
const WORKERS: usize = 2;

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

#[derive(Debug, thiserror::Error)]
#[error("the state in '{folder}' cannot be {doing}")]
pub struct StateError {
    folder: String,
    doing: &'static str,
    source: fjall::Error,
}

/// An open folder. Calls block.
pub struct StateStore {
    database: Database,
    rows: Keyspace,
    folder: String,
}

impl StateStore {
    /// Opens the folder, which may be empty. Only one can have it open.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        recovery::check_files(folder)?;
        if !folder.join(MADE_LAST).exists() {
            let failed = |source| OpenError::Io { folder: folder.to_owned(), source };
            make_whole(folder, |beside| Self::open_in(beside).map(drop), failed)?;
        }
        Self::open_in(folder)
    }

    fn open_in(folder: &Path) -> Result<Self, OpenError> {
        let builder = folder_builder(folder)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(WORKERS);
        let database = builder.open().map_err(|error| OpenError::new(folder, error))?;
        let rows = open_keyspace(&database, "state").map_err(|error| OpenError::new(folder, error))?;
        Ok(Self { database, rows, folder: folder.display().to_string() })
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
        let found = self.rows.get(key).map_err(|source| self.failed("read", source))?;
        Ok(found.map(|value| value.to_vec()))
    }

    /// What lies in the range, in order.
    pub fn range(&self, keys: RangeInclusive<Vec<u8>>) -> impl Iterator<Item = Result<Pair, StateError>> {
        self.rows.range(keys).map(|guard| {
            let (key, value) = guard.into_inner().map_err(|source| self.failed("read", source))?;
            Ok((key.to_vec(), value.to_vec()))
        })
    }

    /// Sets values and removes keys, all or nothing. Returns once it is on disk.
    pub fn commit(
        &self,
        changes: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
    ) -> Result<(), StateError> {
        let mut batch = OwnedWriteBatch::with_capacity(self.database.clone(), changes.size_hint().0);
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        let committed = batch.durability(Some(PersistMode::SyncData)).commit();
        committed.map_err(|source| self.failed("written", source))
    }

    fn failed(&self, doing: &'static str, source: fjall::Error) -> StateError {
        StateError { folder: self.folder.clone(), doing, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_committed_is_there_again_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::open(folder.path()).unwrap();
        let set = |key: &str, value: Option<&str>| (key.into(), value.map(Into::into));
        store.commit([set("b", Some("2")), set("a", Some("1")), set("c", Some("3"))].into_iter()).unwrap();
        store.commit([set("a", None), set("b", Some("4"))].into_iter()).unwrap();
        drop(store);
        let store = StateStore::open(folder.path()).unwrap();
        let all: Vec<Pair> = store.range(b"a".to_vec()..=b"b".to_vec()).map(Result::unwrap).collect();
        assert_eq!(all, [(b"b".to_vec(), b"4".to_vec())]);
        assert_eq!((store.get(b"a").unwrap(), store.get(b"c").unwrap()), (None, Some(b"3".to_vec())));
    }

    #[test]
    fn a_folder_is_open_once() {
        let folder = tempfile::tempdir().unwrap();
        let _store = StateStore::open(folder.path()).unwrap();
        assert!(matches!(StateStore::open(folder.path()), Err(OpenError::InUse { .. })));
    }
}
