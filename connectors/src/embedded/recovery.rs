//! What opening a folder finds, in words for a person.

use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::journal::{self, Reading};
use super::manifest;
use super::trouble::passing;
use crate::store::Remedy;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("'{}' is in use by another process; stop it, or give this one a folder of its own", .folder.display())]
    InUse { folder: PathBuf },
    #[error("'{}' holds damaged data ({what}); restore a backup with 'courant data restore'", .folder.display())]
    Damaged { folder: PathBuf, what: String },
    #[error("'{}' was written by another version of the engine: {what}", .folder.display())]
    OtherVersion { folder: PathBuf, what: String },
    #[error("'{}' cannot be opened: {source}", .folder.display())]
    Io { folder: PathBuf, source: io::Error },
}

impl OpenError {
    pub(super) fn new(folder: &Path, error: fjall::Error) -> Self {
        let folder = folder.to_owned();
        match error {
            fjall::Error::Locked => Self::InUse { folder },
            fjall::Error::InvalidVersion(version) => {
                Self::OtherVersion { folder, what: format!("{version:?}") }
            }
            other => match passing(other) {
                Ok(source) => Self::Io { folder, source },
                Err(damage) => Self::Damaged { folder, what: damage.to_string() },
            },
        }
    }

    /// What the catalog names could not be read.
    pub(super) fn unread(folder: &Path, error: &dyn Display, remedy: Remedy) -> Self {
        let (folder, what) = (folder.to_owned(), error.to_string());
        match remedy {
            Remedy::Retry => Self::Io { folder, source: io::Error::other(what) },
            _ => Self::Damaged { folder, what },
        }
    }

    /// The engine below takes what it finds in its files for granted in places; damage there ends in a panic.
    pub(super) fn panicked(folder: &Path, error: tokio::task::JoinError) -> Self {
        let panic = error.try_into_panic().ok();
        let words = panic.as_ref().and_then(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied())
        });
        let what = format!("reading it ended with '{}'", words.unwrap_or("a panic"));
        Self::Damaged { folder: folder.to_owned(), what }
    }
}

/// The file that the engine below holds a lock on while it has the folder open. It is made first.
const LOCK: &str = "lock";
/// What the engine below takes a folder for its own by. One that lacks it and has anything else can never be opened.
pub(super) const MADE_LAST: &str = "version";
/// How long that is.
const MADE_LAST_BYTES: u64 = 4;
/// Where its trees are.
const TREES: &str = "keyspaces";

/// Looks at what the engine below would take for granted, while nobody else can open the folder.
pub(super) fn check_files(folder: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { folder: folder.to_owned(), source };
    let lock = match OpenOptions::new().read(true).write(true).open(folder.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { folder: folder.to_owned() }),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    if !is_made(folder).map_err(failed)? {
        return clear_unmade(folder);
    }
    if let Some(tree) = manifest::find_damaged(folder).map_err(failed)? {
        let what = format!("the list of files in '{}'", tree.display());
        return Err(OpenError::Damaged { folder: folder.to_owned(), what });
    }
    check_journals(folder)
}

fn is_made(folder: &Path) -> io::Result<bool> {
    match folder.join(MADE_LAST).metadata() {
        Ok(file) => Ok(file.len() >= MADE_LAST_BYTES),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whoever opened the folder first was stopped before it was made, so nothing was ever written to it: it is empty again.
/// Where something was written it is not ours to remove.
fn clear_unmade(folder: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { folder: folder.to_owned(), source };
    if has_data(folder).map_err(failed)? {
        let what = format!("its file '{MADE_LAST}' is missing or cut off");
        return Err(OpenError::Damaged { folder: folder.to_owned(), what });
    }
    let journals = journal_numbers(folder).map_err(failed)?;
    let files = journals.into_iter().map(|number| journal_path(folder, number));
    for file in files.chain([folder.join(MADE_LAST)]) {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(())
}

fn has_data(folder: &Path) -> io::Result<bool> {
    for journal in journal_numbers(folder)? {
        if written_bytes(&journal_path(folder, journal))? > 0 {
            return Ok(true);
        }
    }
    match std::fs::read_dir(folder.join(TREES)) {
        Ok(mut trees) => Ok(trees.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Cuts off what a stopped writer left unfinished, and says so; refuses what is damaged.
fn check_journals(folder: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Io { folder: folder.to_owned(), source };
    let numbers = journal_numbers(folder).map_err(failed)?;
    let mut last_sequence = None;
    for number in &numbers {
        let path = journal_path(folder, *number);
        let written = read_written(&path).map_err(failed)?;
        let is_newest = Some(number) == numbers.last();
        last_sequence = match journal::read(&written, last_sequence) {
            Reading::Whole { last_sequence } => last_sequence,
            // only the newest was still being written to
            Reading::Incomplete { at, last_sequence } if is_newest => {
                cut_off(&path, at as u64).map_err(failed)?;
                report_discarded(folder, written.len() - at);
                last_sequence
            }
            Reading::Incomplete { at, .. } | Reading::Damaged { at } => {
                let what = format!("journal '{}' at byte {at}", path.display());
                return Err(OpenError::Damaged { folder: folder.to_owned(), what });
            }
        };
    }
    Ok(())
}

fn cut_off(journal: &Path, at: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(journal)?;
    file.set_len(at)?;
    file.sync_all()
}

fn report_discarded(folder: &Path, bytes: usize) {
    tracing::warn!(
        folder = %folder.display(),
        bytes,
        "the journal ended in a write that was not finished and never acknowledged as synced; it was discarded"
    );
}

/// Of the journals in the folder, oldest first.
pub(super) fn journal_numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) fn journal_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number}.jnl"))
}

fn read_written(path: &Path) -> io::Result<Vec<u8>> {
    let length = written_bytes(path)?;
    let mut written = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    File::open(path)?.take(length).read_to_end(&mut written)?;
    Ok(written)
}

/// The length without the zeros that were put there beforehand.
fn written_bytes(path: &Path) -> io::Result<u64> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(ZEROS.len() as u64);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(&mut file).take(end - start).read_to_end(&mut block)?;
        // nearly all of it, and compared as a whole that costs next to nothing
        if block == ZEROS[..block.len()] {
            end = start;
            continue;
        }
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
