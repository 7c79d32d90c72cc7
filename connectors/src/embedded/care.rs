//! Looking after a folder: what its parts are, how far work on them has come, and why it failed.

use std::fmt::Display;
use std::path::PathBuf;

use fjall::Keyspace;
use rustc_hash::FxHashSet;

use super::Engine;
use super::shared::{Shared, open_keyspace};

/// How far work that goes through all parts of the folder has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The part that comes next.
    pub what: &'a str,
    pub done: usize,
    pub of: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum CareError {
    #[error("working on '{}' failed ({what}); make room or check the disk, then try again", .folder.display())]
    Failed { folder: PathBuf, what: String },
    #[error("'{}' exists and is not empty; name a folder that does not exist", .folder.display())]
    Exists { folder: PathBuf },
    #[error("'{}' holds no backup; name a folder made by 'courant data backup'", .folder.display())]
    NoBackup { folder: PathBuf },
    #[error(transparent)]
    Open(#[from] super::OpenError),
}

/// Everything that is kept for one table, one topic, or the engine itself.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) keyspaces: Vec<Keyspace>,
}

impl Shared {
    pub(super) fn parts(&self) -> Vec<Part> {
        let tables = self.tables();
        let tables = tables.values().map(|table| Part {
            name: format!("table {}", table.name()),
            keyspaces: table.keyspaces().cloned().collect(),
        });
        let topics = self.topics();
        let topics = topics.values().map(|topic| Part {
            name: format!("topic {}", topic.name()),
            keyspaces: vec![topic.chunks().clone()],
        });
        let mut parts: Vec<Part> = tables.chain(topics).collect();
        parts.sort_by(|a, b| a.name.cmp(&b.name));
        let own = [&self.catalog_rows, &self.tokens.0, &self.group_offsets];
        parts.push(Part { name: "catalog".to_owned(), keyspaces: own.into_iter().cloned().collect() });
        parts
    }

    /// Empties trees of tables and topics that are not in the catalog: their dropping was interrupted.
    ///
    /// They are emptied and not deleted, here and when a table is dropped. The engine below may give a deleted tree's
    /// number to a new one after a restart, and then takes the note of the deletion for the newer one of the two: the
    /// new tree is gone at the next start (fjall 3.1.13). An empty tree costs next to nothing and is never used again,
    /// except by the table whose making was interrupted.
    pub(super) fn empty_leftovers(&self) -> Result<(), fjall::Error> {
        let parts = self.parts();
        let known: FxHashSet<_> = parts.iter().flat_map(|part| &part.keyspaces).map(Keyspace::name).collect();
        for name in self.database.list_keyspace_names() {
            if !known.contains(&name) {
                let leftover = open_keyspace(&self.database, &name)?;
                if !leftover.is_empty()? {
                    leftover.clear()?;
                }
            }
        }
        Ok(())
    }
}

impl Engine {
    pub(super) fn care_error(&self, error: &dyn Display) -> CareError {
        CareError::Failed { folder: self.folder.clone(), what: error.to_string() }
    }
}

/// Runs what waits for the disk where that keeps nobody else waiting.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.expect("the work neither panics nor is cancelled")
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[tokio::test]
    async fn what_is_in_no_catalog_is_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
        // as if the process was killed after the table was out of the catalog
        let leftover = open_keyspace(&engine.shared.database, "table7.rows").unwrap();
        leftover.insert("row", "left over").unwrap();
        drop(leftover);
        engine.close().await;
        drop(engine);
        for _ in 0..2 {
            let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
            assert!(open_keyspace(&engine.shared.database, "table7.rows").unwrap().is_empty().unwrap());
            engine.close().await;
        }
    }
}
