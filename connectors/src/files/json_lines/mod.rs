//! JSON lines in a file: [`LineReader`] reads them from a byte offset, [`LineAppender`] adds to the end.
//!
//! Neither looks into the lines; what is in them is for others to judge.

mod append;
mod identity;
mod read;

pub use append::{LineAppender, Sync};
pub use identity::FileIdentity;
pub use read::{Line, LineReader, Start};
