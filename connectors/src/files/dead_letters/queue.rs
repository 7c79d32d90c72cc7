//! The files of one queue, under its lock. Everything here blocks.
//!
//! `<queue>.jsonl` starts with a line that names its generation, then holds one letter a line in the order they
//! came. `<queue>.settled` holds one id a line. A line counts once its line feed is there: what a crash tore off
//! is cut away by the next write and was never reported as written. `<queue>.lock` is what processes lock; it
//! is never replaced, unlike the letters file, which compaction rewrites without the settled letters.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::letter::StoredLetter;
use crate::files::{FileError, private_file, replace_file, sync_folder};

/// Below this many settled letters a rewrite saves nothing worth the syncs.
const COMPACT_FROM: u64 = 1_000;
/// `dl_`, 26 characters of ULID, line feed: settled marks are counted by the size of their file.
const MARK_LEN: u64 = 30;

/// Who may hold the lock at the same time.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    Shared,
    Exclusive,
}

/// A queue whose lock is held; released when dropped.
pub(super) struct LockedQueue<'a> {
    folder: &'a Path,
    letters: PathBuf,
    settled: PathBuf,
    _lock: File,
}

/// Where a reader stands: a byte of one generation of the letters file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor {
    generation: String,
    offset: u64,
}

/// Letters in a generation up to a byte, so that counting them all happens once.
#[derive(Debug, Clone, Default)]
pub(super) struct Counted {
    upto: Cursor,
    letters: u64,
}

/// The first line of a letters file; a rewritten file has another generation.
#[derive(Serialize, Deserialize)]
struct Heading {
    dead_letters: u32,
    generation: String,
}

const FORMAT: u32 = 1;

impl<'a> LockedQueue<'a> {
    /// Whether the queue has ever had a letter. To be asked before locking to read: locking creates a file.
    pub(super) fn exists(folder: &Path, file_name: &str) -> bool {
        folder.join(format!("{file_name}.jsonl")).exists()
    }

    /// Waits for the lock. `file_name` is the queue's, already made safe.
    pub(super) fn lock(folder: &'a Path, file_name: &str, hold: Hold) -> Result<Self, FileError> {
        let path = folder.join(format!("{file_name}.lock"));
        let lock = private_file()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(FileError::doing("open the lock", &path))?;
        let operation = match hold {
            Hold::Shared => FlockOperation::LockShared,
            Hold::Exclusive => FlockOperation::LockExclusive,
        };
        loop {
            match flock(&lock, operation) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map_err(|errno| FileError::doing("lock", &path)(errno.into()))?,
            }
        }
        Ok(Self {
            folder,
            letters: folder.join(format!("{file_name}.jsonl")),
            settled: folder.join(format!("{file_name}.settled")),
            _lock: lock,
        })
    }

    /// Adds whole lines to the letters, synced. `generation` names the file if this creates it.
    pub(super) fn append_letters(&self, lines: &[u8], generation: &str) -> Result<(), FileError> {
        if !self.letters.exists() {
            replace_file(self.folder, &self.letters, &heading(generation))?;
        }
        append_lines(&self.letters, lines)
    }

    /// Marks letters as done with, synced; rewrites the queue when that pays.
    pub(super) fn settle(
        &self,
        ids: &[String],
        counted: &mut Counted,
        generation: &str,
    ) -> Result<(), FileError> {
        // Ids are typed by people too; one of another shape names no letter and would spoil the marks.
        let ids = ids.iter().filter(|id| id.len() as u64 + 1 == MARK_LEN && !id.contains('\n'));
        let marks: String = ids.flat_map(|id| [id.as_str(), "\n"]).collect();
        if marks.is_empty() {
            return Ok(());
        }
        let is_new = !self.settled.exists();
        append_lines(&self.settled, marks.as_bytes())?;
        if is_new {
            sync_folder(self.folder)?;
        }
        let settled =
            self.settled.metadata().map_err(FileError::doing("read", &self.settled))?.len() / MARK_LEN;
        let letters = self.count(counted)?;
        if settled >= letters || (settled >= COMPACT_FROM && settled * 2 >= letters) {
            self.compact(generation)?;
        }
        Ok(())
    }

    /// Writes the letters anew without the settled ones. The marks go last: should the process die between the
    /// two, they name letters that are no more, which harms nobody.
    fn compact(&self, generation: &str) -> Result<(), FileError> {
        let settled = self.settled_ids()?;
        let mut kept = heading(generation);
        self.each_line(&mut Cursor::default(), |line, _| {
            // A line that is not a letter is kept for whoever repairs it.
            if id_of(line).is_none_or(|id| !settled.contains(id.as_str())) {
                kept.extend_from_slice(line);
                kept.push(b'\n');
            }
            true
        })?;
        replace_file(self.folder, &self.letters, &kept)?;
        std::fs::remove_file(&self.settled).map_err(FileError::doing("remove", &self.settled))?;
        sync_folder(self.folder)
    }

    /// Calls `visit` with the unsettled letters from the cursor on until it returns false, and moves the cursor
    /// behind the last one visited. A cursor of another generation starts over.
    pub(super) fn each_pending(
        &self,
        cursor: &mut Cursor,
        mut visit: impl FnMut(StoredLetter) -> bool,
    ) -> Result<(), FileError> {
        let settled = self.settled_ids()?;
        self.each_line(cursor, |line, offset| match serde_json::from_slice::<StoredLetter>(line) {
            Ok(letter) if settled.contains(&letter.id) => true,
            Ok(letter) => visit(letter),
            Err(error) => {
                tracing::warn!(path = %self.letters.display(), offset, %error, "skipping a damaged dead letter");
                true
            }
        })
    }

    /// Letters in the file, settled or not.
    fn count(&self, counted: &mut Counted) -> Result<u64, FileError> {
        let before = counted.upto.generation.clone();
        let mut lines = 0;
        self.each_line(&mut counted.upto, |_, _| {
            lines += 1;
            true
        })?;
        counted.letters = if counted.upto.generation == before { counted.letters + lines } else { lines };
        Ok(counted.letters)
    }

    fn settled_ids(&self) -> Result<HashSet<String>, FileError> {
        match std::fs::read_to_string(&self.settled) {
            // The last line may be torn: an id that is cut short matches no letter.
            Ok(marks) => Ok(marks.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(HashSet::new()),
            Err(error) => Err(FileError::doing("read", &self.settled)(error)),
        }
    }

    /// Calls `visit` with each whole line after the heading and its offset, from the cursor on.
    fn each_line(
        &self,
        cursor: &mut Cursor,
        mut visit: impl FnMut(&[u8], u64) -> bool,
    ) -> Result<(), FileError> {
        let file = match File::open(&self.letters) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FileError::doing("open", &self.letters)(error)),
        };
        let failed = || FileError::doing("read", &self.letters);
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        let heading_len = reader.read_until(b'\n', &mut line).map_err(failed())?;
        let heading: Heading = serde_json::from_slice(&line).map_err(|error| FileError::Damaged {
            path: self.letters.clone(),
            reason: format!("its first line does not name a dead-letter journal ({error})"),
            advice: "move it away; letters in it can be read by eye, one JSON object a line",
        })?;
        if cursor.generation == heading.generation {
            reader.seek(SeekFrom::Start(cursor.offset)).map_err(failed())?;
        } else {
            *cursor = Cursor { generation: heading.generation, offset: heading_len as u64 };
        }
        loop {
            line.clear();
            let len = reader.read_until(b'\n', &mut line).map_err(failed())? as u64;
            let Some(text) = line.strip_suffix(b"\n") else { return Ok(()) };
            if !visit(text, cursor.offset) {
                return Ok(());
            }
            cursor.offset += len;
        }
    }
}

fn heading(generation: &str) -> Vec<u8> {
    let heading = Heading { dead_letters: FORMAT, generation: generation.to_owned() };
    let mut line = serde_json::to_vec(&heading).expect("a struct of texts has a JSON form");
    line.push(b'\n');
    line
}

fn id_of(line: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Id {
        id: String,
    }
    serde_json::from_slice::<Id>(line).ok().map(|line| line.id)
}

/// Writes whole lines behind the last whole line and syncs them; on failure nothing of them stays.
fn append_lines(path: &Path, lines: &[u8]) -> Result<(), FileError> {
    let mut file = private_file()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(FileError::doing("open", path))?;
    let end = cut_torn_tail(&mut file).map_err(FileError::doing("read the end of", path))?;
    let written =
        file.seek(SeekFrom::Start(end)).and_then(|_| file.write_all(lines)).and_then(|()| file.sync_data());
    written.map_err(|error| {
        // The caller will try again: what is there of this try would then be there twice.
        let _ = file.set_len(end);
        FileError::doing("write to", path)(error)
    })
}

/// Cuts off what follows the last line feed; the length that remains.
fn cut_torn_tail(file: &mut File) -> io::Result<u64> {
    const CHUNK: u64 = 1 << 12;
    let len = file.seek(SeekFrom::End(0))?;
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file).take(end - start).read_to_end(&mut chunk)?;
        if let Some(last) = chunk.iter().rposition(|byte| *byte == b'\n') {
            end = start + last as u64 + 1;
            break;
        }
        end = start;
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok(end)
}
