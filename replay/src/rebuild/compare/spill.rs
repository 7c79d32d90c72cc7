//! Entries on disk, by ranges of their keys' hashes: what is compared is larger than memory.
//!
//! Each range also has a count and a digest of all its entries that does not depend on their order. Ranges that have
//! both in common are equal and are not looked at again; of the others each is loaded alone.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use courant_pipeline::derived::Entry;
use xxhash_rust::xxh3::xxh3_128;

/// A hundred million entries make ranges of some hundred megabytes; files that are open at a time are few.
pub(super) const RANGES: usize = 64;
/// Together some megabytes.
const BUFFER: usize = 32 << 10;

/// How many entries a range has, and a digest of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) count: u64,
    pub(super) digest: u64,
}

impl Summary {
    pub(super) fn add(&mut self, entry: &Entry) {
        self.count += 1;
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&entry.digest.to_le_bytes());
        bytes[8..16].copy_from_slice(&entry.version.to_le_bytes());
        bytes[16..].copy_from_slice(&hash(&entry.key).to_le_bytes()[..8]);
        // A sum and not an exclusive or: an entry that is there twice must not cancel itself out.
        self.digest = self.digest.wrapping_add(xxhash_rust::xxh3::xxh3_64(&bytes));
    }

    pub(super) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

fn hash(key: &str) -> u128 {
    xxh3_128(key.as_bytes())
}

pub(super) fn range_of(key: &str) -> usize {
    usize::try_from(hash(key) >> 122).unwrap_or(0) % RANGES
}

/// Takes entries, from several lanes at a time.
pub(super) struct Spill {
    folder: PathBuf,
    ranges: Mutex<Vec<Range>>,
}

struct Range {
    file: BufWriter<File>,
    summary: Summary,
}

impl Spill {
    /// Blocks.
    pub(super) fn create(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let range = |number| {
            let file = BufWriter::with_capacity(BUFFER, File::create(path_of(folder, number))?);
            Ok(Range { file, summary: Summary::default() })
        };
        let ranges = (0..RANGES).map(range).collect::<std::io::Result<_>>()?;
        Ok(Self { folder: folder.to_owned(), ranges: Mutex::new(ranges) })
    }

    /// Blocks.
    pub(super) fn add(&self, entries: impl IntoIterator<Item = Entry>) -> std::io::Result<()> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            let range = &mut ranges[range_of(&entry.key)];
            range.summary.add(&entry);
            let length = u32::try_from(entry.key.len()).unwrap_or(u32::MAX);
            range.file.write_all(&length.to_le_bytes())?;
            range.file.write_all(entry.key.as_bytes())?;
            for number in [entry.digest, entry.version, entry.at] {
                range.file.write_all(&number.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Blocks.
    pub(super) fn finish(&self) -> std::io::Result<Spilled> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let flush = |range: &mut Range| range.file.flush().map(|()| range.summary);
        let summaries = ranges.iter_mut().map(flush).collect::<std::io::Result<_>>()?;
        Ok(Spilled { folder: self.folder.clone(), summaries })
    }
}

/// A range in memory.
#[derive(Default)]
pub(super) struct Loaded {
    /// The newest entry of each key.
    pub(super) newest: HashMap<Box<str>, Entry>,
    /// Those of which there was the same before.
    pub(super) doubles: Vec<Entry>,
}

/// Entries that can be loaded, range by range.
pub(super) struct Spilled {
    folder: PathBuf,
    pub(super) summaries: Vec<Summary>,
}

impl Spilled {
    /// Blocks.
    pub(super) fn load(&self, range: usize) -> std::io::Result<Loaded> {
        let mut file = BufReader::with_capacity(BUFFER, File::open(path_of(&self.folder, range))?);
        let mut loaded = Loaded::default();
        while let Some(entry) = read(&mut file)? {
            match loaded.newest.get_mut(&entry.key) {
                Some(other) if other.version > entry.version => {}
                Some(other) if (other.version, other.digest) == (entry.version, entry.digest) => {
                    loaded.doubles.push(entry);
                }
                Some(other) => *other = entry,
                None => drop(loaded.newest.insert(entry.key.clone(), entry)),
            }
        }
        Ok(loaded)
    }
}

fn path_of(folder: &Path, range: usize) -> PathBuf {
    folder.join(format!("range-{range}"))
}

fn read(file: &mut impl Read) -> std::io::Result<Option<Entry>> {
    let mut length = [0; 4];
    match file.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut key = vec![0; u32::from_le_bytes(length) as usize];
    file.read_exact(&mut key)?;
    let mut number = || {
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let (digest, version, at) = (number()?, number()?, number()?);
    let key = String::from_utf8_lossy(&key).into_owned().into_boxed_str();
    Ok(Some(Entry { key, digest, version, at }))
}
