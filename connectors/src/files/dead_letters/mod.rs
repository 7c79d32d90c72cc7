//! Dead letters in a folder: a durable journal per queue, that a server appends to while a command settles.
//!
//! A letter is on disk before [`DeadLetterJournal::append`] returns, and stays until it is settled: run again
//! or discarded. Writes of one call cost one sync. Readers and writers of several processes take turns by an
//! advisory lock per queue. A database was rejected: operators can read these files with any tool.

mod letter;
mod queue;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::{FileError, blocking, create_private_folder, names};
pub use letter::{NewLetter, StoredLetter};
pub use queue::Cursor;
use queue::{Counted, Hold, LockedQueue};

/// A folder of dead-letter queues. Clones share it.
#[derive(Clone)]
pub struct DeadLetterJournal(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    ids: Mutex<ulid::Generator>,
    /// By queue, how far its letters have been counted. Held on blocking threads only.
    counted: Mutex<HashMap<String, Counted>>,
}

/// How many letters wait in a queue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct QueueDepth {
    pub queue: String,
    pub pending: u64,
}

impl DeadLetterJournal {
    /// Creates the folder if it is missing.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, FileError> {
        let journal = Self::unopened(folder);
        journal.blocking(|inner| create_private_folder(&inner.folder)).await?;
        Ok(journal)
    }

    /// The journal without touching the disk: for checking a configuration, and for looking at letters. Reading
    /// creates nothing, so a folder or a queue that is not there has no letters; to append, [`open`](Self::open) it.
    pub fn unopened(folder: impl Into<PathBuf>) -> Self {
        let ids = Mutex::new(ulid::Generator::new());
        Self(Arc::new(Inner { folder: folder.into(), ids, counted: Mutex::default() }))
    }

    /// Keeps letters in their order, all or none, and returns their ids once they are on disk.
    pub async fn append(&self, queue: &str, letters: Vec<NewLetter>) -> Result<Vec<String>, FileError> {
        if letters.is_empty() {
            return Ok(Vec::new());
        }
        let queue = queue.to_owned();
        self.blocking(move |inner| inner.append(&queue, letters)).await
    }

    /// At most `limit` of the letters that wait, in the order they came: of one queue or of all.
    pub async fn list(&self, queue: Option<&str>, limit: usize) -> Result<Vec<StoredLetter>, FileError> {
        let queue = queue.map(str::to_owned);
        self.blocking(move |inner| inner.list(queue, limit)).await
    }

    /// Looks at every letter that waits in a queue, in the order they came and as of one moment; writers wait.
    pub async fn fold<T: Send + 'static>(
        &self,
        queue: &str,
        mut so_far: T,
        mut look: impl FnMut(&mut T, StoredLetter) + Send + 'static,
    ) -> Result<T, FileError> {
        let queue = queue.to_owned();
        self.blocking(move |inner| {
            inner.each_pending(&queue, &mut Cursor::default(), |letter| {
                look(&mut so_far, letter);
                true
            })?;
            Ok(so_far)
        })
        .await
    }

    /// The letter with this id, unless it was settled.
    pub async fn get(&self, id: &str) -> Result<Option<StoredLetter>, FileError> {
        let id = id.to_owned();
        self.blocking(move |inner| inner.get(&id)).await
    }

    /// At most `max` letters that wait in the queue, from the cursor on, and the cursor behind them.
    ///
    /// After a compaction an old cursor starts over, so letters that were handed out and not settled come again.
    pub async fn pending(
        &self,
        queue: &str,
        cursor: &Cursor,
        max: usize,
    ) -> Result<(Vec<StoredLetter>, Cursor), FileError> {
        let (queue, mut cursor) = (queue.to_owned(), cursor.clone());
        self.blocking(move |inner| {
            let mut letters = Vec::new();
            inner.each_pending(&queue, &mut cursor, |letter| {
                let room = letters.len() < max;
                if room {
                    letters.push(letter);
                }
                room
            })?;
            Ok((letters, cursor))
        })
        .await
    }

    /// The letters are done with: run again or discarded. Returns once that is on disk; unknown ids are ignored.
    pub async fn settle(&self, queue: &str, ids: Vec<String>) -> Result<(), FileError> {
        let queue = queue.to_owned();
        self.blocking(move |inner| inner.settle(&queue, &ids)).await
    }

    /// Every queue that has ever had a letter, by name.
    pub async fn queues(&self) -> Result<Vec<QueueDepth>, FileError> {
        self.blocking(|inner| {
            inner.queues()?.into_iter().map(|queue| inner.depth(queue)).collect::<Result<_, _>>()
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let inner = Arc::clone(&self.0);
        blocking(move || work(&inner)).await
    }
}

impl Inner {
    fn lock(&self, queue: &str) -> Result<LockedQueue<'_>, FileError> {
        LockedQueue::lock(&self.folder, &names::to_file_name(queue)?, Hold::Exclusive)
    }

    /// Calls `visit` with letters of a queue until it returns false; a queue without a file has none.
    fn each_pending(
        &self,
        queue: &str,
        cursor: &mut Cursor,
        visit: impl FnMut(StoredLetter) -> bool,
    ) -> Result<(), FileError> {
        let file_name = names::to_file_name(queue)?;
        if !LockedQueue::exists(&self.folder, &file_name) {
            return Ok(());
        }
        LockedQueue::lock(&self.folder, &file_name, Hold::Shared)?.each_pending(cursor, visit)
    }

    fn next_id(&self) -> ulid::Ulid {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.generate().unwrap_or_else(ulid::Overflow::commit_overflow_increment)
    }

    fn append(&self, queue: &str, letters: Vec<NewLetter>) -> Result<Vec<String>, FileError> {
        let locked = self.lock(queue)?;
        let mut lines = Vec::new();
        let mut ids = Vec::with_capacity(letters.len());
        for letter in letters {
            let stored =
                StoredLetter { id: format!("dl_{}", self.next_id()), queue: queue.to_owned(), letter };
            serde_json::to_writer(&mut lines, &stored).expect("a letter of texts has a JSON form");
            lines.push(b'\n');
            ids.push(stored.id);
        }
        locked.append_letters(&lines, &self.next_id().to_string())?;
        Ok(ids)
    }

    fn settle(&self, queue: &str, ids: &[String]) -> Result<(), FileError> {
        let locked = self.lock(queue)?;
        let mut all = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = all.entry(queue.to_owned()).or_default();
        locked.settle(ids, counted, &self.next_id().to_string())
    }

    fn list(&self, queue: Option<String>, limit: usize) -> Result<Vec<StoredLetter>, FileError> {
        let queues = queue.map_or_else(|| self.queues(), |queue| Ok(vec![queue]))?;
        let mut letters = Vec::new();
        for queue in &queues {
            let mut room = limit;
            self.each_pending(queue, &mut Cursor::default(), |letter| {
                if room > 0 {
                    letters.push(letter);
                    room -= 1;
                }
                room > 0
            })?;
        }
        if queues.len() > 1 {
            // Between queues only ids tell what came first; a clock that was set back shows here, and only here.
            letters.sort_by(|one, other| one.id.cmp(&other.id));
        }
        letters.truncate(limit);
        Ok(letters)
    }

    fn get(&self, id: &str) -> Result<Option<StoredLetter>, FileError> {
        for queue in self.queues()? {
            let mut found = None;
            self.each_pending(&queue, &mut Cursor::default(), |letter| {
                if letter.id == id {
                    found = Some(letter);
                }
                found.is_none()
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn depth(&self, queue: String) -> Result<QueueDepth, FileError> {
        let mut pending = 0;
        self.each_pending(&queue, &mut Cursor::default(), |_| {
            pending += 1;
            true
        })?;
        Ok(QueueDepth { queue, pending })
    }

    fn queues(&self) -> Result<Vec<String>, FileError> {
        let mut queues = Vec::new();
        let failed = || FileError::doing("list", &self.folder);
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(queues),
            Err(error) => return Err(failed()(error)),
        };
        for entry in entries {
            let name = entry.map_err(failed())?.file_name();
            let queue = name.to_str().and_then(|name| names::from_file_name(name.strip_suffix(".jsonl")?));
            queues.extend(queue);
        }
        queues.sort();
        Ok(queues)
    }
}

#[cfg(test)]
pub(super) mod tests;
