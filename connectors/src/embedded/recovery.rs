//! What opening a folder finds, in words for a person.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

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
            fjall::Error::Io(source) => Self::Io { folder, source },
            fjall::Error::InvalidVersion(version) => {
                Self::OtherVersion { folder, what: format!("{version:?}") }
            }
            other => Self::Damaged { folder, what: other.to_string() },
        }
    }
}

/// The end of the journal as the last process left it.
///
/// A process that was killed may leave half a batch; opening cuts that off, which is right, but also cuts off whatever
/// stands behind damage in the middle of the journal. The engine below does not say so. Here is noted where the journal's
/// written part ended, and afterwards how much of it is left: what is gone is reported.
pub(super) struct JournalTail {
    journal: Option<(PathBuf, u64)>,
}

impl JournalTail {
    pub(super) fn before_opening(folder: &Path) -> Self {
        let newest = newest_journal(folder);
        let journal = newest.and_then(|path| written_bytes(&path).ok().map(|written| (path, written)));
        Self { journal }
    }

    pub(super) fn report_what_was_discarded(self, folder: &Path) {
        let Some((path, written)) = self.journal else { return };
        // a journal that is gone was taken over whole
        let Ok(left) = std::fs::metadata(path).map(|metadata| metadata.len()) else { return };
        let discarded = written.saturating_sub(left);
        if discarded > 0 {
            tracing::warn!(
                folder = %folder.display(),
                bytes = discarded,
                "the journal ended in an incomplete or damaged batch, which was discarded; after a crash this is a \
                 write that was never acknowledged, otherwise check the disk"
            );
        }
    }
}

/// The journal with the highest number, which is the one that was written last.
fn newest_journal(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(|file| Some(file.ok()?.path()));
    let numbered = files.filter_map(|path| {
        let number: u64 = path.file_name()?.to_str()?.strip_suffix(".jnl")?.parse().ok()?;
        Some((number, path))
    });
    numbered.max_by_key(|(number, _)| *number).map(|(_, path)| path)
}

/// The length without the zeros that were put there beforehand.
fn written_bytes(path: &Path) -> io::Result<u64> {
    const STEP: u64 = 64 * 1024;
    let mut file = File::open(path)?;
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(&mut file).take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
