//! Looking after a folder: what its parts are, how far work on them has come, and why it failed.

use std::fmt::Display;
use std::path::PathBuf;

use fjall::Keyspace;

use super::Engine;

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
    #[error("'{}' exists; name a folder that does not", .folder.display())]
    Exists { folder: PathBuf },
    #[error(transparent)]
    Open(#[from] super::OpenError),
}

/// Everything that is kept for one table, one topic, or the engine itself.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) keyspaces: Vec<Keyspace>,
}

impl Engine {
    pub(super) fn parts(&self) -> Vec<Part> {
        let shared = &self.shared;
        let tables = shared.tables();
        let tables = tables.values().map(|table| Part {
            name: format!("table {}", table.name()),
            keyspaces: table.keyspaces().cloned().collect(),
        });
        let topics = shared.topics();
        let topics = topics.values().map(|topic| Part {
            name: format!("topic {}", topic.name()),
            keyspaces: vec![topic.chunks().clone()],
        });
        let mut parts: Vec<Part> = tables.chain(topics).collect();
        parts.sort_by(|a, b| a.name.cmp(&b.name));
        let own = [&shared.catalog_rows, &shared.tokens.0, &shared.group_offsets];
        parts.push(Part { name: "catalog".to_owned(), keyspaces: own.into_iter().cloned().collect() });
        parts
    }

    pub(super) fn care_error(&self, error: &dyn Display) -> CareError {
        CareError::Failed { folder: self.folder.clone(), what: error.to_string() }
    }
}

/// Runs what waits for the disk where that keeps nobody else waiting.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.expect("the work neither panics nor is cancelled")
}
