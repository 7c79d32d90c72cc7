//! The lists of files that each tree of the engine below consists of, checked before they are believed.
//!
//! A tree's folder has a file `current` with the number and the checksum of its newest list, `v<number>`. The engine
//! below writes the checksum and does not look at it: a damaged list makes it forget files, and then remove them as
//! nobody's. So it is looked at here.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

/// A list that is not as it was written, if there is one.
pub(super) fn find_damaged(folder: &Path) -> io::Result<Option<PathBuf>> {
    let trees = match std::fs::read_dir(folder.join("keyspaces")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        trees => trees?,
    };
    for tree in trees {
        let tree = tree?.path();
        if tree.is_dir() && !is_whole(&tree)? {
            return Ok(Some(tree));
        }
    }
    Ok(None)
}

fn is_whole(tree: &Path) -> io::Result<bool> {
    let current = match std::fs::read(tree.join("current")) {
        // its making was interrupted before anything was in it
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        current => current?,
    };
    let Some((number, checksum)) = parse(&current) else { return Ok(false) };
    match std::fs::read(tree.join(format!("v{number}"))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        list => Ok(xxh3_128(&list?) == checksum),
    }
}

/// The number of the list and its checksum, of which there is one kind.
fn parse(current: &[u8]) -> Option<(u64, u128)> {
    let (number, rest) = current.split_first_chunk()?;
    let (checksum, kind) = rest.split_first_chunk()?;
    (kind == [0]).then(|| (u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}
