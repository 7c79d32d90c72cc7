//! What a folder of a stage is open as, shared by everybody in the process who works on it.
//!
//! A pipeline and a redrive of its dead letters run the same stage at the same time, and a folder has one writer. Within a
//! process they share it; other processes are kept out of the data folder as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use courant_pipeline::StageError;
use tokio::sync::Mutex;

/// The open folders of one kind of stage.
pub(crate) struct Shared<T>(Mutex<BTreeMap<PathBuf, Weak<T>>>);

impl<T> Shared<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::const_new(BTreeMap::new()))
    }

    /// What the folder is open as, opened if nobody has it.
    pub(crate) async fn get(
        &self,
        folder: &Path,
        open: impl AsyncFnOnce() -> Result<T, StageError>,
    ) -> Result<Arc<T>, StageError> {
        let mut all = self.0.lock().await;
        if let Some(open) = all.get(folder).and_then(Weak::upgrade) {
            return Ok(open);
        }
        all.retain(|_, open| open.strong_count() > 0);
        let opened = Arc::new(open().await?);
        all.insert(folder.to_owned(), Arc::downgrade(&opened));
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_is_open_once_and_again_when_all_have_let_go() {
        static OPEN: Shared<u32> = Shared::new();
        let get = async |folder: &str, value| OPEN.get(Path::new(folder), async || Ok(value)).await.unwrap();
        let (one, same, other) = (get("a", 1).await, get("a", 2).await, get("b", 3).await);
        assert_eq!((*one, *same, *other), (1, 1, 3));
        drop((one, same));
        assert_eq!(*get("a", 4).await, 4);
    }
}
