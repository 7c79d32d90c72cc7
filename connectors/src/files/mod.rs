//! Durable things in local files.
//!
//! - [`dead_letters`]: records kept aside, one journal per queue.
//! - [`positions`]: how far each pipeline has read, one small file per pipeline.
//! - [`json_lines`]: reading JSON lines from a byte offset, and appending them.
//!
//! Whatever returns from a write here is on disk: data is synced before the call returns, and a file that
//! appears or is replaced has its folder synced too. File calls block, so each operation runs on tokio's
//! blocking threads as one unit; dropping the future does not undo or tear it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub mod dead_letters;
pub mod json_lines;
mod names;
pub mod positions;

/// A file operation that failed: what was done to which file, and what the system said.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {doing} {path}", path = .path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("`{name}` cannot name a file: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("{path} is damaged: {reason}; {advice}", path = .path.display())]
    Damaged { path: PathBuf, reason: String, advice: &'static str },
    #[error(
        "{path} has a line longer than {max} bytes at byte {offset}; raise the limit or shorten the line",
        path = .path.display()
    )]
    LineTooLong { path: PathBuf, offset: u64, max: u64 },
    #[error("the file operation was cut short: {0}")]
    Interrupted(String),
}

impl FileError {
    /// For `map_err`: names what was done and to which file.
    fn doing(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

/// Runs file work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // A panic in the work, or a runtime that shuts down before it began.
        Err(error) => Err(FileError::Interrupted(error.to_string())),
    }
}

/// Makes a created, renamed or removed entry of the folder last.
fn sync_folder(folder: &Path) -> Result<(), FileError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(FileError::doing("sync the folder", folder))
}

/// Creates the folder with its parents, durably as far as the last one goes.
fn create_folder(folder: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(folder).map_err(FileError::doing("create the folder", folder))
}

/// Puts `content` in place of the file in one step: after a crash either the old or the new content is there.
///
/// `path` must lie in `folder`. Callers keep others from replacing the same file at the same time.
fn replace_file(folder: &Path, path: &Path, content: &[u8]) -> Result<(), FileError> {
    use io::Write as _;

    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary).map_err(FileError::doing("create", &temporary))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(FileError::doing("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(FileError::doing("replace", path))?;
    sync_folder(folder)
}
