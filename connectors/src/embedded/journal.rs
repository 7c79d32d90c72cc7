//! The journal as the engine below writes it, read before it is opened.
//!
//! Opening replays the journal up to the first batch that it does not understand and cuts off the rest. That is right
//! for the end of a process that was killed, and wrong for damage in the middle: what was acknowledged behind it would
//! be gone without a word. Here the two are told apart, so that the one is cut off and said, and the other refused.
//!
//! A batch is `1, count: u32, sequence: u64`, so many items, and `3, checksum: u64, "FJL\x03"`, all little-endian; the
//! checksum is of the items only, so sequences are checked by their order. The rest of the file are zeros. The format
//! is fjall's 3.x, whose files say so in their version; a test reads a journal of the version in use.

use std::hash::Hasher;

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// How a value is written.
const PLAIN: u8 = 0;
/// Only in backups of earlier versions: for the journal it is switched off.
const LZ4: u8 = 1;
/// The last bytes of a batch. None is zero, so the end of what was written is the last byte that is not.
const TRAILER: &[u8] = b"FJL\x03";
/// What a disk writes as a whole, at the least.
const SECTOR: usize = 512;
/// So many zeros up to where a sector ends are there because it was not written, and not by chance.
const TORN_ZEROS: usize = 16;

/// What a journal's bytes turn out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Batches and nothing else, up to this sequence.
    Whole {
        last_sequence: Option<u64>,
    },
    /// Whole batches up to `at`, and then the beginning of one whose writer was stopped.
    Incomplete {
        at: usize,
        last_sequence: Option<u64>,
    },
    Damaged {
        at: usize,
    },
}

/// Reads a journal, without the zeros behind what was written. Sequences go on from `before`.
pub(super) fn read(written: &[u8], before: Option<u64>) -> Reading {
    let mut at = 0;
    let mut last_sequence = before;
    while at < written.len() {
        match batch(&written[at..]) {
            Some(batch) if follows(batch.sequence, last_sequence) => {
                at += batch.length;
                if batch.content == Content::Rows {
                    last_sequence = Some(batch.sequence);
                }
            }
            None if is_unfinished(&written[at..], at) => return Reading::Incomplete { at, last_sequence },
            Some(_) | None => return Reading::Damaged { at },
        }
    }
    Reading::Whole { last_sequence }
}

/// Whether a sequence can come after another. They only grow, and no engine lives to make them grow that far at once.
fn follows(sequence: u64, last: Option<u64>) -> bool {
    const FAR: u64 = 1 << 40;
    let last = last.map_or(0, |last| last + 1);
    (last..last + FAR).contains(&sequence)
}

/// Whether the writer of these bytes, which are no whole batch, was stopped before it had finished and synced.
///
/// A killed process leaves the beginning of a batch. After a loss of power any sectors written since the last sync may be
/// missing, also in front of others that are there. A batch with its end and without such a hole was once whole; holes
/// in what comes behind it say nothing of it, and may be zeros that somebody wrote.
fn is_unfinished(rest: &[u8], starts_at: usize) -> bool {
    if let Some((_, _, trailer)) = without_trailer(rest) {
        return is_missing_trailer(trailer, starts_at + rest.len() - trailer.len());
    }
    let next = next_whole_batch(rest);
    let is_over = next.is_some() || rest.ends_with(TRAILER);
    has_missing_sector(&rest[..next.unwrap_or(rest.len())], starts_at) || !is_over
}

/// Zeros up to where a sector ends.
fn has_missing_sector(rest: &[u8], starts_at: usize) -> bool {
    let first = SECTOR - starts_at % SECTOR;
    (first..rest.len()).step_by(SECTOR).any(|end| {
        let zeros = rest[..end].iter().rev().take_while(|byte| **byte == 0).count();
        zeros >= TORN_ZEROS.min(end)
    })
}

/// Whether what stands where a trailer should be is the beginning of one, and then nothing or a sector that is missing.
fn is_missing_trailer(found: &[u8], at: usize) -> bool {
    let written = found.iter().zip(TRAILER).take_while(|(found, wanted)| found == wanted).count();
    let sector_ends = (at + written + 1).next_multiple_of(SECTOR) - at;
    found[written..sector_ends.clamp(written, found.len())].iter().all(|byte| *byte == 0)
}

/// Where the first batch begins that can be read and stands behind the end of another.
fn next_whole_batch(rest: &[u8]) -> Option<usize> {
    let ends = rest.windows(TRAILER.len()).enumerate().filter(|(_, bytes)| *bytes == TRAILER);
    let mut starts = ends.map(|(at, _)| at + TRAILER.len());
    starts.find(|start| batch(&rest[*start..]).is_some())
}

struct Batch {
    length: usize,
    sequence: u64,
    content: Content,
}

/// What a batch does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Rows,
    /// Empties a tree. No row has its sequence, so that it is given again after a restart.
    Clearing,
}

/// The batch at the beginning of these bytes, if it is whole.
fn batch(bytes: &[u8]) -> Option<Batch> {
    let (sequence, content, trailer) = without_trailer(bytes)?;
    let rest = trailer.strip_prefix(TRAILER)?;
    Some(Batch { length: bytes.len() - rest.len(), sequence, content })
}

/// Its sequence, what it does, and what comes behind its checksum.
fn without_trailer(bytes: &[u8]) -> Option<(u64, Content, &[u8])> {
    let mut reader = Bytes(bytes);
    (reader.u8()? == START).then_some(())?;
    let (count, sequence) = (reader.u32()?, reader.u64()?);
    let mut checksum = Xxh3::new();
    let mut content = Content::Rows;
    for _ in 0..count {
        let item = reader.0;
        match reader.u8()? {
            ITEM => reader.pass_item()?,
            CLEAR => {
                content = Content::Clearing;
                reader.pass(size_of::<u64>())?;
            }
            _ => return None,
        }
        checksum.update(&item[..item.len() - reader.0.len()]);
    }
    (reader.u8()? == END).then_some(())?;
    (reader.u64()? == checksum.finish()).then_some(())?;
    Some((sequence, content, reader.0))
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn pass(&mut self, count: usize) -> Option<()> {
        self.take(count).map(|_| ())
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// An item behind its tag: kind, compression, keyspace, three lengths, key and value. Whole values of bytes that
    /// mean something are the checksum's concern, except for what the engine below would stumble over before that.
    fn pass_item(&mut self) -> Option<()> {
        // a value or one of two tombstones
        (self.u8()? <= 2).then_some(())?;
        let compression = self.u8()?;
        self.pass(size_of::<u64>())?;
        let (key, value, on_disk) = (self.u16()?, self.u32()?, self.u32()?);
        match compression {
            PLAIN => (value == on_disk).then_some(())?,
            LZ4 => {}
            _ => return None,
        }
        self.pass(usize::from(key))?;
        self.pass(on_disk as usize)
    }
}
