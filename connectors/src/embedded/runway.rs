//! Ground laid out in front of the journal's end, so that a sync has only data to write.
//!
//! A file gets its blocks when they are first written, and the sync after that has to put down which blocks those are,
//! in a journal of the file system's own. Over blocks that were written before, the same sync takes half of the
//! time and two thirds of the processor. So zeros are written ahead, in steps, and what follows goes over them.
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
    journal: Option<Journal>,
    /// What is left of what was laid out, roughly.
    left: usize,
    /// What is there before zeros are written.
    found: Vec<u8>,
}

/// The newest one, when it was looked for last.
struct Journal {
    number: u64,
    /// Absent where nothing can be laid out.
    file: Option<File>,
    /// How far it was laid out.
    end: u64,
}

impl Runway {
    pub(super) fn new(folder: &Path, database: Database) -> Self {
        Self { folder: folder.to_owned(), database, journal: None, left: 0, found: vec![0; STEP] }
    }

    /// To be called before so many bytes are written, by the thread that writes them.
    pub(super) fn lay_out(&mut self, bytes: usize) {
        if bytes <= self.left {
            self.left -= bytes;
            return;
        }
        let is_large = bytes >= LARGE;
        self.left = if is_large { 0 } else { STEP - bytes };
        // also before large writes: a file that was removed would be kept on disk for as long as it is open here
        let laid_out = self.follow().and_then(|()| if is_large { Ok(()) } else { self.extend() });
        if let Err(error) = laid_out {
            // the writes themselves will tell whether it is the disk
            tracing::debug!(folder = %self.folder.display(), %error, "the journal is not laid out ahead");
            self.journal.iter_mut().for_each(|journal| journal.file = None);
        }
    }

    /// Turns to the newest journal.
    fn follow(&mut self) -> io::Result<()> {
        let newest = journal_numbers(&self.folder)?.pop();
        if let Some(number) = newest
            && self.journal.as_ref().is_none_or(|journal| journal.number != number)
        {
            self.journal = Some(Journal { number, file: None, end: 0 });
            let file = OpenOptions::new().read(true).write(true).open(journal_path(&self.folder, number))?;
            let file = is_made_with_room(&file)?.then_some(file);
            self.journal = Some(Journal { number, file, end: 0 });
        }
        Ok(())
    }

    fn extend(&mut self) -> io::Result<()> {
        let Some(Journal { file: Some(file), end, .. }) = &mut self.journal else { return Ok(()) };
        // what stands in a buffer could be written by any thread, and now
        self.database.persist(PersistMode::Buffer).map_err(io::Error::other)?;
        let written = hole(file, *end)?.unwrap_or(*end);
        write_zeros(file, written, &mut self.found)?;
        *end = written + STEP as u64;
        Ok(())
    }
}

/// Whether a journal that nobody laid out was made longer than what it holds, as new ones are: they are written where they
/// were left off. One that was found at opening was cut to what it holds and is written at its end, wherever that is, so
/// nothing can be put in front of it. Where the file system knows no holes, nobody can tell.
fn is_made_with_room(journal: &File) -> io::Result<bool> {
    let length = journal.metadata()?.len();
    Ok(hole(journal, 0)?.is_some_and(|hole| hole < length))
}

/// Where nothing was written, from there on; none behind the end.
fn hole(file: &File, from: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Hole(from)) {
        Ok(hole) => Ok(Some(hole)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
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
    use std::time::Duration;

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
        let mut runway = Runway::new(folder.path(), database.clone());
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
            let database = open(folder.path());
            assert_eq!(count(&database), 10 * opening as usize);
            let mut runway = Runway::new(folder.path(), database.clone());
            write(&database, &mut runway, 10 * opening..10 * (opening + 1), 1000);
            let length = std::fs::metadata(journal_path(folder.path(), 0)).unwrap().len();
            assert!(opening == 0 || length < STEP as u64, "{length} after opening {opening}");
        }
    }

    /// Journals come and go while only large writes are made, which nothing is laid out for.
    #[tokio::test]
    async fn a_journal_that_was_removed_is_not_held_on_to() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(folder.path());
        let mut runway = Runway::new(folder.path(), database.clone());
        write(&database, &mut runway, 0..1, 5000);
        for round in 0..2 {
            write(&database, &mut runway, 70 * round..70 * (round + 1), 1 << 20);
            rows(&database).rotate_memtable_and_wait().unwrap();
        }
        let journals = || journal_numbers(folder.path()).unwrap();
        let removed = async {
            while journals() != [2] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), removed).await.unwrap();
        write(&database, &mut runway, 140..141, 1 << 20);
        let held = runway.journal.as_ref().and_then(|journal| journal.file.as_ref()).unwrap();
        assert_eq!(held.metadata().unwrap().nlink(), 1, "the other would stay on disk");
        write(&database, &mut runway, 141..145, 5000);
        let laid_out = blocks(folder.path(), 2);
        assert!(laid_out >= (1 << 20) + STEP as u64, "{laid_out}");
        drop((runway, database));
        assert_eq!(count(&open(folder.path())), 145);
    }

    #[test]
    fn the_next_journal_is_laid_out_too() {
        let folder = tempfile::tempdir().unwrap();
        let database = open(folder.path());
        let mut runway = Runway::new(folder.path(), database.clone());
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
        assert!(write_zeros(&file, 0, &mut vec![1; STEP]).is_err());
        let mut found = [0; 4];
        file.read_exact_at(&mut found, STEP as u64 / 2).unwrap();
        assert_eq!(&found, b"data");
        assert_eq!(file.metadata().unwrap().len(), STEP as u64 / 2 + 4);
        write_zeros(&file, STEP as u64, &mut vec![1; STEP]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * STEP as u64);
    }
}
