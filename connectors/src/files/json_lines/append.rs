//! Appending lines to a file that others may rotate away.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

use crate::files::{FileError, blocking, create_folder, sync_folder};

/// When an append counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Once it is on disk.
    Data,
    /// Once the system has it; a power cut may take it back.
    None,
}

/// Appends to one file; clones share it and take turns.
#[derive(Clone)]
pub struct LineAppender(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// Held on blocking threads only, for the length of a write and its sync.
    file: Mutex<File>,
}

impl LineAppender {
    /// Opens the file, creating it and its folders if they are missing. A last line without an end, as a crash
    /// leaves it, is ended first so that it spoils no other.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        blocking(move || {
            let file = Mutex::new(open(&path)?);
            Ok(Self(Arc::new(Inner { path, file })))
        })
        .await
    }

    /// Adds whole lines, each with its line feed: all of them or, on an error, none.
    ///
    /// A file that was moved or removed since is created anew, so that what is written can be found.
    pub async fn append(&self, lines: Vec<u8>, sync: Sync) -> Result<(), FileError> {
        let inner = Arc::clone(&self.0);
        blocking(move || inner.append(&lines, sync)).await
    }
}

impl Inner {
    fn append(&self, lines: &[u8], sync: Sync) -> Result<(), FileError> {
        self.all_or_nothing(|mut file| {
            file.write_all(lines)?;
            match sync {
                Sync::Data => file.sync_data(),
                Sync::None => Ok(()),
            }
        })
    }

    /// Lets `write` add to the file, in its turn; if that fails, what it has added is taken back.
    fn all_or_nothing(&self, write: impl FnOnce(&File) -> std::io::Result<()>) -> Result<(), FileError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_at(&file, &self.path)? {
            *file = open(&self.path)?;
        }
        let _turn = Turn::take(&file);
        let end = file.metadata().map_err(FileError::doing("look at", &self.path))?.len();
        write(&file).map_err(|error| {
            // The caller will try again: what is there of this try would then be there twice.
            let _ = file.set_len(end);
            FileError::doing("write to", &self.path)(error)
        })
    }
}

/// A writer's turn at a file, among all that write to it: other pipelines, other processes. Without it, taking back
/// a write that failed could take back another's that did not.
struct Turn<'f>(&'f File);

impl<'f> Turn<'f> {
    /// Waits for it. A file system that knows no locks gives none, and its files are better not shared.
    fn take(file: &'f File) -> Option<Self> {
        loop {
            match flock(file, FlockOperation::LockExclusive) {
                Ok(()) => return Some(Self(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    create_folder(folder)?;
    let failed = || FileError::doing("open", path);
    let file = OpenOptions::new().create(true).append(true).read(true).open(path).map_err(failed())?;
    if file.metadata().map_err(failed())?.is_file() {
        let _turn = Turn::take(&file);
        if !ends_with_line_feed(&file).map_err(failed())? {
            (&file).write_all(b"\n").map_err(FileError::doing("write to", path))?;
        }
    }
    sync_folder(folder)?;
    Ok(file)
}

fn ends_with_line_feed(mut file: &File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn is_at(file: &File, path: &Path) -> Result<bool, FileError> {
    let failed = || FileError::doing("look at", path);
    let opened = file.metadata().map_err(failed())?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((opened.dev(), opened.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed()(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn folders_are_made_and_lines_added_to_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/out.jsonl");
        for line in ["1\n", "2\n"] {
            let appender = LineAppender::open(&path).await.unwrap();
            appender.append(line.into(), Sync::Data).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n2\n");
    }

    #[tokio::test]
    async fn a_torn_line_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        std::fs::write(&path, "1\n{\"to").unwrap();
        let appender = LineAppender::open(&path).await.unwrap();
        appender.append("2\n".into(), Sync::None).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n{\"to\n2\n");
    }

    #[tokio::test]
    async fn a_file_rotated_away_is_created_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let appender = LineAppender::open(&path).await.unwrap();
        appender.append("1\n".into(), Sync::None).await.unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        appender.append("2\n".into(), Sync::None).await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2\n");
        assert_eq!(std::fs::read_to_string(folder.path().join("old")).unwrap(), "1\n");
    }

    /// Whether somebody waits for a turn at the file: the kernel lists locks, and below each those who wait.
    fn is_waited_for(path: &Path) -> bool {
        let inode = format!(":{} ", std::fs::metadata(path).unwrap().ino());
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
    }

    #[tokio::test]
    async fn a_write_that_fails_takes_back_nothing_of_another_appender() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let failing = LineAppender::open(&path).await.unwrap();
        let other = LineAppender::open(&path).await.unwrap();
        std::thread::scope(|scope| {
            let failed = failing.0.all_or_nothing(|mut file| {
                file.write_all(b"half a li")?;
                // Now is when the other one must not write. It waits, or it has done it.
                let append = scope.spawn(|| other.0.append(b"1\n", Sync::None).unwrap());
                while !append.is_finished() && !is_waited_for(&path) {
                    std::thread::yield_now();
                }
                Err(ErrorKind::StorageFull.into())
            });
            failed.unwrap_err();
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_that_names_the_file() {
        let appender = LineAppender::open("/dev/full").await.unwrap();
        let error = appender.append("1\n".into(), Sync::None).await.unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("space"));
    }
}
