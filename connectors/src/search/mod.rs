//! Full-text search over messages: a Tantivy index in a folder.
//!
//! One document per message, found by chat and sequence. Writing the same message again changes nothing, and an older
//! image of a message never replaces a newer one, so whoever writes may repeat and overlap as it likes ([`IndexWriter`]).
//! What [`IndexWriter::write`] returned from is on disk and can be found.
//!
//! - [`Message`]: what is indexed, as an event of the log tells it.
//! - [`IndexWriter`]: the one writer of a folder.
//! - [`SearchIndex`]: asks it ([`Ask`]), newest messages first.
//! - [`Query`]: what people type, and what is refused.
//! - [`Searches`]: the index that a process has open, for whoever answers clients.
//! - [`walk`]: everything that an index holds, for comparing.
//! - [`PlainWriter`]: Tantivy without all that, for measuring.
//!
//! The index is no authority: who may see a message is for its reader to ask of the store. Of a chat it knows only the
//! messages, and what they said.

mod ask;
mod expand;
mod folder;
mod highlight;
mod marks;
mod message;
mod plain;
mod query;
mod schema;
mod searches;
#[cfg(test)]
mod testing;
mod walk;
mod words;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use tantivy::TantivyError;
use tantivy::directory::error::{LockError, OpenDirectoryError, OpenReadError, OpenWriteError};

pub use ask::{Ask, Cursor, Hit, Page, SearchIndex};
pub use message::{Left, Message, NotIndexed};
pub use plain::PlainWriter;
pub use query::{NotAQuery, Query};
pub use searches::{Offered, Searches, Unanswered};
pub use walk::walk;
pub use writer::{IndexOptions, IndexWriter, MEMORY_PER_THREAD, MOST_THREADS, Written};

/// Something that could not be done with an index.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("cannot {doing} the search index {folder}", folder = .folder.display())]
    Io { doing: &'static str, folder: PathBuf, source: io::Error },
    #[error(
        "the search index {folder} is being written by another process or pipeline; \
         let only one of them write it, or wait until the other has ended",
        folder = .folder.display()
    )]
    InUse { folder: PathBuf },
    #[error(
        "the search index {folder} is damaged: {reason}; build it again with `courant replay`",
        folder = .folder.display()
    )]
    Damaged { folder: PathBuf, reason: String },
    #[error(
        "the search index {folder} was made by another version; build it again with `courant replay`",
        folder = .folder.display()
    )]
    OtherVersion { folder: PathBuf },
    /// Whether it was done is not known.
    #[error("work on the search index {folder} was cut short: {reason}", folder = .folder.display())]
    Interrupted { folder: PathBuf, reason: String },
    #[error("the search took longer than it may; ask with a chat, or with rarer words")]
    TooSlow,
    #[error("too many different words begin with '{0}'; write more of it")]
    TooManyWords(String),
}

impl SearchError {
    /// What Tantivy says, as what can be done about it: a disk that is full or a file that cannot be opened may be well
    /// again later, bytes that are wrong stay wrong.
    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    fn of(doing: &'static str, folder: &Path, error: TantivyError) -> Self {
        let io = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        let source = match &error {
            TantivyError::IoError(source)
            | TantivyError::OpenReadError(OpenReadError::IoError { io_error: source, .. })
            | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error: source, .. })
            | TantivyError::LockFailure(LockError::IoError(source), _)
            | TantivyError::OpenDirectoryError(OpenDirectoryError::IoError { io_error: source, .. }) => {
                io(source)
            }
            TantivyError::LockFailure(LockError::LockBusy, _) => {
                return Self::InUse { folder: folder.to_owned() };
            }
            // An indexing thread that failed says only that it did; nearly always the disk is full.
            TantivyError::ErrorInThread(_) | TantivyError::SystemError(_) | TantivyError::Poisoned => {
                io::Error::other(error.to_string())
            }
            // What the disk says reaches here as text by some ways.
            TantivyError::InternalError(reason) if reason.contains("(os error ") => {
                io::Error::other(reason.clone())
            }
            TantivyError::IncompatibleIndex(_)
            | TantivyError::OpenReadError(OpenReadError::IncompatibleIndex(_)) => {
                return Self::OtherVersion { folder: folder.to_owned() };
            }
            _ => return Self::Damaged { folder: folder.to_owned(), reason: error.to_string() },
        };
        // These two say that a file is shorter than it was written.
        if [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData].contains(&source.kind()) {
            return Self::Damaged { folder: folder.to_owned(), reason: source.to_string() };
        }
        Self::Io { doing, folder: folder.to_owned(), source }
    }
}
