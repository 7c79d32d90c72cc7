//! Snapshots: folders with exactly the files that count, and the link that says which of them does.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::files::{FileError, create_private_folder, private_file, sync_folder};

const CURRENT: &str = "current";
const NEXT: &str = "current.tmp";
const PREFIX: &str = "snapshot-";
/// Where the writer keeps how far it came. Readers of folders leave out what begins with `_`.
const NOTE: &str = "_progress";
pub(super) const EXTENSION: &str = "parquet";

/// Older snapshots that stay for those who still read them. At a write every half minute they have two minutes to open
/// their files.
const KEPT: u64 = 4;

/// One snapshot of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    table: PathBuf,
    pub(super) number: u64,
}

impl Snapshot {
    pub(super) fn folder(&self) -> PathBuf {
        self.table.join(name(self.number))
    }

    /// The one that counts; none in a new table.
    pub(super) fn current(table: &Path) -> Result<Option<Self>, FileError> {
        let link = table.join(CURRENT);
        let target = match std::fs::read_link(&link) {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::doing("read the link", &link)(error)),
        };
        let number = target.to_str().and_then(number).filter(|_| table.join(&target).is_dir());
        match number {
            Some(number) => Ok(Some(Self { table: table.to_owned(), number })),
            None => Err(FileError::Damaged {
                path: link,
                reason: format!("it points to {}, which is no snapshot", target.display()),
                advice: "point it to one of the folders beside it, or rebuild the pipeline that writes it",
            }),
        }
    }

    /// An empty folder for the one after `before`, in place of what a writer that died left there.
    pub(super) fn begin(table: &Path, before: Option<&Self>) -> Result<Self, FileError> {
        let next = Self { table: table.to_owned(), number: before.map_or(1, |before| before.number + 1) };
        remove(&next.folder())?;
        create_private_folder(&next.folder())?;
        Ok(next)
    }

    /// Takes a file over as it is.
    pub(super) fn keep(&self, from: &Self, file: &str) -> Result<(), FileError> {
        let path = self.folder().join(file);
        std::fs::hard_link(from.folder().join(file), &path).map_err(FileError::doing("link", &path))
    }

    /// Makes it the one that counts, with the writer's note, in one step. Its files are on disk already.
    pub(super) fn publish(&self, note: &[u8]) -> Result<(), FileError> {
        use std::io::Write as _;

        let path = self.folder().join(NOTE);
        let created = private_file().write(true).create_new(true).open(&path);
        let mut file = created.map_err(FileError::doing("create", &path))?;
        file.write_all(note).and_then(|()| file.sync_all()).map_err(FileError::doing("write", &path))?;
        sync_folder(&self.folder())?;
        let (link, next) = (self.table.join(CURRENT), self.table.join(NEXT));
        remove(&next)?;
        symlink(name(self.number), &next).map_err(FileError::doing("create the link", &next))?;
        std::fs::rename(&next, &link).map_err(FileError::doing("replace the link", &link))?;
        sync_folder(&self.table)
    }

    pub(super) fn note(&self) -> Result<Vec<u8>, FileError> {
        let path = self.folder().join(NOTE);
        std::fs::read(&path).map_err(FileError::doing("read", &path))
    }

    /// Names of its Parquet files, oldest first.
    pub(super) fn files(&self) -> Result<Vec<String>, FileError> {
        let folder = self.folder();
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(FileError::doing("list", &folder))? {
            let path = entry.map_err(FileError::doing("list", &folder))?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && let Some(name) = path.file_name().and_then(|name| name.to_str())
            {
                files.push(name.to_owned());
            }
        }
        files.sort();
        Ok(files)
    }

    /// Removes the snapshots that are too old for anybody to read, and those that a writer that died began.
    pub(super) fn tidy(&self) -> Result<(), FileError> {
        for entry in std::fs::read_dir(&self.table).map_err(FileError::doing("list", &self.table))? {
            let entry = entry.map_err(FileError::doing("list", &self.table))?;
            let number = entry.file_name().to_str().and_then(number);
            if number.is_some_and(|number| number > self.number || number + KEPT < self.number) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn name(number: u64) -> String {
    format!("{PREFIX}{number:010}")
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

fn remove(path: &Path) -> Result<(), FileError> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::doing("remove", path)(error)),
        _ => Ok(()),
    }
}
