//! How far each pipeline has read: one small JSON file per pipeline, replaced in one step.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{FileError, blocking, create_private_folder, names, replace_file};

const EXTENSION: &str = ".json";

/// What a pipeline remembers of its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPositions {
    /// What was read; positions of another source mean nothing to this one.
    pub source: String,
    /// By partition, where to read on.
    pub positions: BTreeMap<String, u64>,
    /// What a source remembers that keeps its positions itself, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<serde_json::Value>,
}

/// A folder of positions. Clones share it.
#[derive(Clone)]
pub struct PositionFolder(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    /// Writers share the temporary file's name, so they take turns. Held on blocking threads only.
    writing: Mutex<()>,
}

impl PositionFolder {
    /// Creates the folder if it is missing.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, FileError> {
        let positions = Self::unopened(folder);
        let inner = Arc::clone(&positions.0);
        blocking(move || create_private_folder(&inner.folder)).await?;
        Ok(positions)
    }

    /// The folder without touching the disk, for looking at positions and forgetting them; it may not exist.
    pub fn unopened(folder: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Inner { folder: folder.into(), writing: Mutex::new(()) }))
    }

    /// None if the pipeline has never saved any.
    pub async fn load(&self, pipeline: &str) -> Result<Option<StoredPositions>, FileError> {
        let path = self.0.path_of(pipeline)?;
        blocking(move || read(&path)).await
    }

    /// Returns once they are on disk.
    pub async fn save(&self, pipeline: &str, stored: &StoredPositions) -> Result<(), FileError> {
        let path = self.0.path_of(pipeline)?;
        let content = serde_json::to_vec(stored).expect("positions have text keys, so they have a JSON form");
        let inner = Arc::clone(&self.0);
        blocking(move || {
            let _turn = inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
            replace_file(&inner.folder, &path, &content)
        })
        .await
    }

    /// Everything that is kept, by pipeline.
    pub async fn list(&self) -> Result<BTreeMap<String, StoredPositions>, FileError> {
        let inner = Arc::clone(&self.0);
        blocking(move || inner.list()).await
    }

    /// Forgets a pipeline's positions, so that it starts anew.
    pub async fn forget(&self, pipeline: &str) -> Result<(), FileError> {
        let path = self.0.path_of(pipeline)?;
        let inner = Arc::clone(&self.0);
        blocking(move || match std::fs::remove_file(&path) {
            Ok(()) => super::sync_folder(&inner.folder),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(FileError::doing("remove", &path)(error)),
        })
        .await
    }
}

impl Inner {
    fn path_of(&self, pipeline: &str) -> Result<PathBuf, FileError> {
        Ok(self.folder.join(names::to_file_name(pipeline)? + EXTENSION))
    }

    fn list(&self) -> Result<BTreeMap<String, StoredPositions>, FileError> {
        let mut all = BTreeMap::new();
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(all),
            Err(error) => return Err(FileError::doing("list", &self.folder)(error)),
        };
        for entry in entries {
            let path = entry.map_err(FileError::doing("list", &self.folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(EXTENSION));
            if let Some(pipeline) = name.and_then(names::from_file_name)
                && let Some(stored) = read(&path)?
            {
                all.insert(pipeline, stored);
            }
        }
        Ok(all)
    }
}

fn read(path: &Path) -> Result<Option<StoredPositions>, FileError> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::doing("read", path)(error)),
    };
    serde_json::from_slice(&content).map(Some).map_err(|error| FileError::Damaged {
        path: path.to_owned(),
        reason: error.to_string(),
        advice: "restore it, or remove it to read the source from its start",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(source: &str, position: u64) -> StoredPositions {
        StoredPositions {
            source: source.into(),
            positions: BTreeMap::from([("0".into(), position)]),
            note: None,
        }
    }

    #[tokio::test]
    async fn positions_outlive_the_process_and_stay_apart() {
        let folder = tempfile::tempdir().unwrap();
        let positions = PositionFolder::open(folder.path().join("new/positions")).await.unwrap();
        assert_eq!(positions.load("a/b").await.unwrap(), None);
        positions.save("a/b", &at("file:x", 7)).await.unwrap();
        positions.save("a/b", &at("file:x", 9)).await.unwrap();
        positions.save("c", &at("file:y", 1)).await.unwrap();

        let again = PositionFolder::open(folder.path().join("new/positions")).await.unwrap();
        assert_eq!(again.load("a/b").await.unwrap(), Some(at("file:x", 9)));
        let all = again.list().await.unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a/b", "c"]);
        again.forget("c").await.unwrap();
        again.forget("c").await.unwrap();
        assert_eq!(again.load("c").await.unwrap(), None);
    }

    #[tokio::test]
    async fn looking_creates_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let absent = PositionFolder::unopened(folder.path().join("absent"));
        assert_eq!(absent.list().await.unwrap(), BTreeMap::new());
        assert_eq!(absent.load("p").await.unwrap(), None);
        absent.forget("p").await.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_half_written_replacement_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let positions = PositionFolder::open(folder.path()).await.unwrap();
        positions.save("p", &at("file:x", 7)).await.unwrap();
        std::fs::write(folder.path().join("p.json.tmp"), "{\"sour").unwrap();
        assert_eq!(positions.load("p").await.unwrap(), Some(at("file:x", 7)));
        assert_eq!(positions.list().await.unwrap().len(), 1);
        positions.save("p", &at("file:x", 8)).await.unwrap();
        assert_eq!(positions.load("p").await.unwrap(), Some(at("file:x", 8)));
    }

    #[tokio::test]
    async fn a_damaged_file_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let positions = PositionFolder::open(folder.path()).await.unwrap();
        std::fs::write(folder.path().join("p.json"), "zzz").unwrap();
        let error = positions.load("p").await.unwrap_err().to_string();
        assert!(error.contains("p.json") && error.contains("remove it"), "{error}");
    }
}
