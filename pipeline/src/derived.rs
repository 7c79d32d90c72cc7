//! Stores that are made from history, and so can be made again and compared.
//!
//! A sink that keeps such a store says so when it is built ([`Built::derives`](crate::spec::Built::derives)). A rebuild
//! makes a second one beside it with the same stages, and goes live only once it is proved equal to what the authority
//! holds: both are walked as [`Entry`]s, by the sink's own idea of what a record becomes. The store itself stays
//! opaque, so that comparing works alike for an index, a folder of files or a table.

use std::path::Path;

use crate::error::StageError;
use crate::record::Record;

/// One thing that a derived store holds, as far as comparing goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is about, such as a message's chat and sequence. There is one of each in a store.
    pub key: Box<str>,
    /// Of everything that the store says about it.
    pub digest: u64,
    /// Which of two entries of a key is the newer; zero where there is only ever one.
    pub version: u64,
    /// When what it is about happened, in milliseconds since 1970: what is newer than a comparison's fence is left out.
    pub at: u64,
}

/// A sink's store as a rebuild sees it. Calls may block.
pub trait Derived: Send + Sync {
    /// What the store holds once it has taken the record; nothing if it leaves the record out.
    fn expected(&self, record: &Record) -> Result<Option<Entry>, StageError>;

    /// Shows every entry of the store in `folder`, in any order. Whoever writes there has closed it, or made what it took
    /// visible.
    fn walk(&self, folder: &Path, each: &mut dyn FnMut(Entry)) -> Result<(), StageError>;
}
