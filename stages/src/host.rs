//! What a process keeps for its pipelines in local files, in the words of the runtime.
//!
//! The connectors know no pipeline and the runtime knows no file: these types stand between. A process opens
//! both once and hands them to the runtime; the dead-letter store also goes into
//! [`Services`](courant_pipeline::Services), where `dead-letter-read` looks for it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use courant_connectors::files::FileError;
use courant_connectors::files::dead_letters::{DeadLetterJournal, NewLetter};
use courant_connectors::files::positions::{PositionFolder, StoredPositions};
use courant_pipeline::dead_letter::{DeadLetter, DeadLetters};
use courant_pipeline::positions::{PositionStore, SavedPositions};
use courant_pipeline::stage::Partition;
use courant_pipeline::{Class, StageError};

/// Dead letters in a folder.
#[derive(Clone)]
pub struct DeadLetterStore(DeadLetterJournal);

impl DeadLetterStore {
    /// Creates the folder if it is missing.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, FileError> {
        DeadLetterJournal::open(folder).await.map(Self)
    }

    /// The store without touching the disk: for checking a configuration, and for looking at letters.
    pub fn unopened(folder: impl Into<PathBuf>) -> Self {
        Self(DeadLetterJournal::unopened(folder))
    }

    /// For listing, settling and everything else that is not a pipeline's business.
    pub fn journal(&self) -> &DeadLetterJournal {
        &self.0
    }
}

#[async_trait]
impl DeadLetters for DeadLetterStore {
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<(), StageError> {
        let mut queues: BTreeMap<String, Vec<NewLetter>> = BTreeMap::new();
        for letter in letters {
            queues.entry(letter.queue.clone()).or_default().push(new_letter(letter));
        }
        for (queue, letters) in queues {
            self.0.append(&queue, letters).await.map_err(|error| file_error("keep dead letters", error))?;
        }
        Ok(())
    }
}

fn new_letter(letter: DeadLetter) -> NewLetter {
    NewLetter {
        pipeline: letter.pipeline,
        stage: letter.stage,
        class: letter.class.name().to_owned(),
        error: letter.error,
        attempts: letter.attempts,
        failed_at: letter.failed_at,
        key: letter.key,
        headers: letter.headers,
        payload: letter.payload,
    }
}

/// Positions in a folder, one file per pipeline.
#[derive(Clone)]
pub struct PositionFiles(PositionFolder);

impl PositionFiles {
    /// Creates the folder if it is missing.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, FileError> {
        PositionFolder::open(folder).await.map(Self)
    }

    /// The folder without touching the disk, for looking at positions and forgetting them; it may not exist.
    pub fn unopened(folder: impl Into<PathBuf>) -> Self {
        Self(PositionFolder::unopened(folder))
    }

    /// What a source of the pipeline noted that keeps its positions itself; nothing if it was another source.
    pub async fn note(&self, pipeline: &str, source: &str) -> Result<Option<serde_json::Value>, StageError> {
        let stored = self.0.load(pipeline).await.map_err(|error| file_error("load positions", error))?;
        Ok(stored.filter(|stored| stored.source == source).and_then(|stored| stored.note))
    }

    /// Returns once it is on disk.
    pub async fn keep_note(
        &self,
        pipeline: &str,
        source: &str,
        note: serde_json::Value,
    ) -> Result<(), StageError> {
        let positions = BTreeMap::new();
        let stored = StoredPositions { source: source.to_owned(), positions, note: Some(note) };
        self.0.save(pipeline, &stored).await.map_err(|error| file_error("save positions", error))
    }

    /// For listing and forgetting.
    pub fn folder(&self) -> &PositionFolder {
        &self.0
    }
}

#[async_trait]
impl PositionStore for PositionFiles {
    async fn load(&self, pipeline: &str) -> Result<Option<SavedPositions>, StageError> {
        let stored = self.0.load(pipeline).await.map_err(|error| file_error("load positions", error))?;
        Ok(stored.map(|stored| SavedPositions {
            source: stored.source,
            positions: stored
                .positions
                .iter()
                .map(|(name, at)| (Partition::from(name.as_str()), *at))
                .collect(),
        }))
    }

    async fn save(&self, pipeline: &str, saved: &SavedPositions) -> Result<(), StageError> {
        let stored = StoredPositions {
            source: saved.source.clone(),
            positions: saved.positions.iter().map(|(name, at)| (name.as_str().to_owned(), *at)).collect(),
            note: None,
        };
        self.0.save(pipeline, &stored).await.map_err(|error| file_error("save positions", error))
    }
}

/// A failed file operation as the runtime sees it: a full disk or a missing file may be there tomorrow, a name
/// or a content that is wrong stays wrong.
pub(crate) fn file_error(doing: &'static str, error: FileError) -> StageError {
    let class = match error {
        FileError::Io { .. } | FileError::Interrupted(_) => Class::Retry,
        FileError::Name { .. } | FileError::Damaged { .. } => Class::Fatal,
    };
    StageError::new(class, doing, error)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bytes::Bytes;

    pub(crate) fn letter(queue: &str, payload: &str) -> DeadLetter {
        DeadLetter {
            pipeline: "ingest".into(),
            stage: "persist".into(),
            queue: queue.into(),
            class: Class::Reject,
            error: "no such chat".into(),
            attempts: 3,
            failed_at: 1_700_000_000_000,
            key: Some("chat_1".into()),
            headers: [("origin".to_owned(), "conn_1".to_owned())].into(),
            payload: Bytes::from(payload.to_owned()),
        }
    }

    #[tokio::test]
    async fn letters_of_one_call_find_their_queues_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let store = DeadLetterStore::open(folder.path()).await.unwrap();
        store.put(vec![letter("b", "1"), letter("a", "2"), letter("b", "3")]).await.unwrap();
        let kept = store.journal().list(Some("b"), 10).await.unwrap();
        assert_eq!(kept.iter().map(|kept| &kept.letter.payload[..]).collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(kept[0].letter.class, "reject");
        assert_eq!(store.put(vec![letter("", "1")]).await.unwrap_err().class, Class::Fatal);
    }

    #[tokio::test]
    async fn positions_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let files = PositionFiles::open(folder.path()).await.unwrap();
        let saved = SavedPositions {
            source: "file:in.jsonl".into(),
            positions: [(Partition::only(), 7), (Partition::from("b"), u64::MAX)].into(),
        };
        files.save("p", &saved).await.unwrap();
        assert_eq!(files.load("p").await.unwrap(), Some(saved));
        assert_eq!(files.load("q").await.unwrap(), None);
    }
}
