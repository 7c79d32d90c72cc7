//! Ground laid out in front of the journal's end, so that a sync has only data to write.
//!
//! A file gets its blocks when they are first written, and the sync after that has to put down which blocks those are,
//! in a journal of the file system's own. Over blocks that were written before, the same sync takes two thirds of the
//! time and of the processor. So zeros are written ahead, in steps, and what follows goes over them.
//!
//! The journal is the engine's below, and what is done to it here cannot change what it says: zeros are written only
//! where it reads as zeros, by the thread that alone writes to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use fjall::{Database, PersistMode};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::recovery::{journal_numbers, journal_path};

/// So much is laid out at once: smaller steps cost more in all, larger ones make single syncs longer.
const STEP: usize = 512 * 1024;
/// Writes from this size on cost their own blocks little.
const LARGE: usize = 64 * 1024;
static ZEROS: [u8; STEP] = [0; STEP];

pub(super) struct Runway {
    folder: PathBuf,
    database: Database,
    /// Absent where nothing can be laid out.
    journal: Option<File>,
    /// What the journal after this one will be called.
    next_number: u64,
    /// How far it was laid out.
    end: u64,
    /// What is left of it, roughly.
    left: usize,
    /// What is there before zeros are written.
    found: Vec<u8>,
}

impl Runway {
    /// For a database that has just been opened; `found_number` is the newest journal that was there before.
    ///
    /// That one is written to at the end of its file, wherever that is, so nothing can be put in front of it. Journals
    /// are written where they were left off once they were begun in the same process.
    pub(super) fn new(folder: &Path, database: Database, found_number: Option<u64>) -> io::Result<Self> {
        let newest = journal_numbers(folder)?.pop();
        let begun = newest.filter(|newest| Some(*newest) != found_number);
        let mut runway = Self {
            folder: folder.to_owned(),
            database,
            journal: None,
            next_number: begun.or(newest.map(|newest| newest + 1)).unwrap_or(0),
            end: 0,
            left: 0,
            found: vec![0; STEP],
        };
        runway.follow()?;
        Ok(runway)
    }

    /// To be called before so many bytes are written, by the thread that writes them.
    pub(super) fn lay_out(&mut self, bytes: usize) {
        if bytes <= self.left || bytes >= LARGE {
            self.left = self.left.saturating_sub(bytes);
            return;
        }
        self.left = STEP - bytes;
        if let Err(error) = self.follow().and_then(|()| self.extend()) {
            // the writes themselves will tell whether it is the disk
            tracing::debug!(folder = %self.folder.display(), %error, "the journal is not laid out ahead");
            self.journal = None;
        }
    }

    /// Turns to the newest journal.
    fn follow(&mut self) -> io::Result<()> {
        loop {
            let path = journal_path(&self.folder, self.next_number);
            match OpenOptions::new().read(true).write(true).open(path) {
                Ok(journal) => (self.journal, self.end) = (Some(journal), 0),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            self.next_number += 1;
        }
    }

    fn extend(&mut self) -> io::Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        // what stands in a buffer could be written by any thread, and now
        self.database.persist(PersistMode::Buffer).map_err(io::Error::other)?;
        let written = match seek(journal, SeekFrom::Hole(self.end)) {
            Ok(hole) => hole,
            Err(Errno::NXIO) => self.end,
            Err(error) => return Err(error.into()),
        };
        write_zeros(journal, written, &mut self.found)?;
        self.end = written + STEP as u64;
        Ok(())
    }
}

/// Writes zeros over zeros, or nothing: a file system may be wrong about what was written a moment ago.
fn write_zeros(journal: &File, at: u64, found: &mut [u8]) -> io::Result<()> {
    let found = read_at(journal, found, at)?;
    if found != &ZEROS[..found.len()] {
        return Err(io::Error::other("the file system does not tell where the journal's data ends"));
    }
    journal.write_all_at(&ZEROS, at)
}

/// As much as there is.
fn read_at<'a>(file: &File, buffer: &'a mut [u8], at: u64) -> io::Result<&'a [u8]> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(&buffer[..read])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use fjall::{Keyspace, KeyspaceCreateOptions};

    use super::super::shared::folder_builder;
    use super::*;

    fn open(folder: &Path) -> Database {
        folder_builder(folder).open().unwrap()
    }

    fn rows(database: &Database) -> Keyspace {
        // nothing moves to a file by itself, which would end the journal
        let options = || KeyspaceCreateOptions::default().max_memtable_size(1 << 30);
        database.keyspace("rows", options).unwrap()
    }

    /// Writes rows of this size in batches of their own.
    fn write(database: &Database, runway: &mut Runway, numbers: std::ops::Range<u32>, value: usize) {
        let rows = rows(database);
        for number in numbers {
            runway.lay_out(value);
            let mut batch = database.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&rows, number.to_be_bytes(), vec![0xa5; value]);
            batch.commit().unwrap();
        }
    }

    fn count(database: &Database) -> usize {
        rows(database).iter().count()
    }

    fn blocks(folder: &Path, journal: u64) -> u64 {
        std::fs::metadata(journal_path(folder, journal)).unwrap().blocks() * 512
    }

    #[test]
    fn blocks_are_there_before_they_are_needed() {
        const VALUE: usize = 5000;
        let folder = tempfile::tempdir().unwrap();
        let database = open(folder.path());
        let mut runway = Runway::new(folder.path(), database.clone(), None).unwrap();
        write(&database, &mut runway, 0..1, VALUE);
        let first = blocks(folder.path(), 0);
        assert!(first >= STEP as u64, "{first}");
        write(&database, &mut runway, 1..50, VALUE);
        assert_eq!(blocks(folder.path(), 0), first, "there is room left");
        // past what was laid out, past a large write, and past the end of the file as it was made
        write(&database, &mut runway, 50..200, VALUE);
        write(&database, &mut runway, 200..270, 1 << 20);
        write(&database, &mut runway, 270..500, VALUE);
        let length = std::fs::metadata(journal_path(folder.path(), 0)).unwrap().len();
        assert!(length > 70 << 20, "{length}");
        drop((runway, database));
        assert_eq!(count(&open(folder.path())), 500);
    }

    /// It goes on at the end of its file, which must not be moved.
    #[test]
    fn a_journal_that_was_found_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for opening in 0..4 {
            let found = journal_numbers(folder.path()).unwrap_or_default().pop();
            let database = open(folder.path());
            assert_eq!(count(&database), 10 * opening as usize);
            let mut runway = Runway::new(folder.path(), database.clone(), found).unwrap();
            write(&database, &mut runway, 10 * opening..10 * (opening + 1), 1000);
        }
    }

    #[test]
    fn the_next_journal_is_laid_out_too() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(folder.path());
        let mut runway = Runway::new(folder.path(), database.clone(), None).unwrap();
        write(&database, &mut runway, 0..70, 1 << 20);
        rows(&database).rotate_memtable_and_wait().unwrap();
        assert_eq!(journal_numbers(folder.path()).unwrap().pop(), Some(1));
        write(&database, &mut runway, 70..75, 5000);
        let laid_out = blocks(folder.path(), 1);
        assert!(laid_out >= STEP as u64, "{laid_out}");
        drop((runway, database));
        assert_eq!(count(&open(folder.path())), 75);
    }

    #[test]
    fn nothing_is_written_over_what_is_there() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"data", STEP as u64 / 2).unwrap();
        assert!(write_zeros(&file, 0, &mut [1; STEP]).is_err());
        let mut found = [0; 4];
        file.read_exact_at(&mut found, STEP as u64 / 2).unwrap();
        assert_eq!(&found, b"data");
        assert_eq!(file.metadata().unwrap().len(), STEP as u64 / 2 + 4);
        write_zeros(&file, STEP as u64, &mut [1; STEP]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * STEP as u64);
    }
}
