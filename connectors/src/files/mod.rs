//! Durable things in local files.
//!
//! - [`dead_letters`]: records kept aside, one journal per queue.
//! - [`positions`]: how far each pipeline has read, one small file per pipeline.
//! - [`generations`]: stores made from history, old and new side by side.
//! - [`keyed`]: a table by key, for what a pipeline makes.
//! - [`parquet`]: tables of Parquet files, for programs that analyse.
//! - [`json_lines`]: reading JSON lines from a byte offset, and appending them.
//!
//! Whatever returns from a write here is on disk: data is synced before the call returns, and a file that
//! appears or is replaced has its folder synced too. File calls block, so each operation runs on tokio's
//! blocking threads as one unit; dropping the future does not undo or tear it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

pub mod dead_letters;
pub mod generations;
pub mod json_lines;
pub mod keyed;
mod names;
pub mod parquet;
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

/// Creates the folder with its parents, for what others may read.
fn create_folder(folder: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(folder).map_err(FileError::doing("create the folder", folder))
}

/// Creates the folder with its parents, for what only the owner may read: letters hold what users wrote. A folder
/// that is there keeps the permissions somebody gave it.
fn create_private_folder(folder: &Path) -> Result<(), FileError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(FileError::doing("create the folder", folder))
}

/// Options for a file that only the owner may read, if they create it.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Puts `content` in place of the file in one step: after a crash either the old or the new content is there.
///
/// `path` must lie in `folder`. Callers keep others from replacing the same file at the same time.
fn replace_file(folder: &Path, path: &Path, content: &[u8]) -> Result<(), FileError> {
    use io::Write as _;

    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let created = private_file().write(true).create(true).truncate(true).open(&temporary);
    let mut file = created.map_err(FileError::doing("create", &temporary))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(FileError::doing("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(FileError::doing("replace", path))?;
    sync_folder(folder)
}

/// Makes a folder beside its place and moves it there: it is whole, or there is none, whatever the disk or a crash does.
/// An empty folder may be there already. What a crash leaves beside it begins with `.making-`.
pub(crate) fn make_whole<E>(
    folder: &Path,
    make: impl FnOnce(&Path) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let parent = folder.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let beside = parent.join(format!(".making-{}", ulid::Ulid::generate()));
    let create = || DirBuilder::new().recursive(true).mode(0o700).create(&beside);
    let made = create().map_err(&failed).and_then(|()| make(&beside));
    let put = made.and_then(|()| match std::fs::rename(&beside, folder) {
        Ok(()) => Ok(true),
        // Somebody else was faster; opening it tells whether it is theirs.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) => Err(failed(error)),
    });
    if !matches!(put, Ok(true)) {
        // It is in nobody's way if it cannot be removed.
        let _ = std::fs::remove_dir_all(&beside);
        return put.map(drop);
    }
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Every file below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[tokio::test]
    async fn what_a_process_keeps_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let journal = dead_letters::DeadLetterJournal::open(data.join("dead-letters")).await.unwrap();
        let ids = journal.append("q", vec![dead_letters::tests::letter(b"1"); 3]).await.unwrap();
        journal.settle("q", ids[..1].to_vec()).await.unwrap();
        let positions = positions::PositionFolder::open(data.join("positions")).await.unwrap();
        let at = positions::StoredPositions {
            source: "s".into(),
            positions: [("0".into(), 1)].into(),
            note: None,
        };
        positions.save("p", &at).await.unwrap();

        assert_eq!([mode(&data), mode(&data.join("positions"))], [0o700, 0o700]);
        let files = files(&data);
        assert_eq!(files.len(), 4, "{files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    }
}
