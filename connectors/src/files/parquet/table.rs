//! Writing a table: adding rows, replacing those of the same key, merging small files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::file::{Reader, Writer};
use super::merge;
use super::schema::{Row, Schema};
use super::snapshot::{EXTENSION, Snapshot};
use crate::files::{FileError, create_private_folder};

/// A table that is open for writing. There is one writer of a folder at a time; calls block.
///
/// With a key, eight bytes a row are kept in memory, by which a file that may hold an earlier row is found.
pub struct Table {
    folder: PathBuf,
    schema: Arc<Schema>,
    state: State,
}

/// What the current snapshot holds.
#[derive(Default)]
struct State {
    snapshot: Option<Snapshot>,
    files: Vec<LiveFile>,
    note: Vec<u8>,
}

#[derive(Clone)]
struct LiveFile {
    name: String,
    bytes: u64,
    /// Fingerprints of its rows' keys, sorted; empty if the table has no key.
    keys: Arc<Vec<u64>>,
}

impl LiveFile {
    fn may_hold(&self, fingerprint: u64) -> bool {
        self.keys.binary_search(&fingerprint).is_ok()
    }
}

impl Table {
    /// Opens the table in `folder`, which may be empty.
    pub fn open(folder: &Path, schema: Arc<Schema>) -> Result<Self, FileError> {
        create_private_folder(folder)?;
        let mut table = Self { folder: folder.to_owned(), schema, state: State::default() };
        table.reload()?;
        if let Some(current) = &table.state.snapshot {
            current.tidy()?;
        }
        Ok(table)
    }

    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// What was given with the last write; empty before the first.
    pub fn note(&self) -> &[u8] {
        &self.state.note
    }

    /// Looks at the disk again. To be called after a write failed, which may have happened all the same.
    pub fn reload(&mut self) -> Result<(), FileError> {
        let Some(snapshot) = Snapshot::current(&self.folder)? else {
            self.state = State::default();
            return Ok(());
        };
        let note = snapshot.note()?;
        let files = snapshot.files()?.into_iter().map(|name| self.look_at(&snapshot, name));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        self.state = State { snapshot: Some(snapshot), files, note };
        Ok(())
    }

    fn look_at(&self, snapshot: &Snapshot, name: String) -> Result<LiveFile, FileError> {
        let path = snapshot.folder().join(&name);
        let found = std::fs::metadata(&path).map_err(FileError::doing("look at", &path))?;
        let reader = Reader::open(&path, &self.schema)?;
        let mut keys = Vec::new();
        if self.schema.has_key() {
            keys.reserve(usize::try_from(reader.rows()).unwrap_or(0));
            reader.each(&self.schema.telling(), &mut |row| {
                keys.push(Schema::fingerprint(&self.schema.key_of(&row)));
                Ok(())
            })?;
            keys.sort_unstable();
        }
        Ok(LiveFile { name, bytes: found.len(), keys: Arc::new(keys) })
    }

    /// Adds rows and replaces the note, in one step. With a key, rows replace earlier ones of theirs, unless those have
    /// a greater version. Returns once it is on disk.
    pub fn write(&mut self, rows: Vec<Row>, note: Vec<u8>) -> Result<(), FileError> {
        let (rows, superseded) =
            if self.schema.has_key() { self.settle_keys(rows)? } else { (rows, Vec::new()) };
        let next = self.begin()?;
        let mut files = Vec::new();
        for (index, file) in self.state.files.iter().enumerate() {
            match superseded.iter().find(|(rewritten, _)| *rewritten == index) {
                None => files.push(self.keep(&next, file)?),
                Some((_, gone)) => {
                    let name = new_name(&next, files.len());
                    let without = |row: &Row| !gone.contains(&self.schema.key_of(row));
                    files.extend(self.rewrite(&next, &[file], name, &without)?);
                }
            }
        }
        if !rows.is_empty() {
            let mut writer = self.create(&next, new_name(&next, files.len()))?;
            for row in rows {
                writer.push(row)?;
            }
            files.extend(writer.finish()?);
        }
        self.publish(next, files, note)
    }

    /// Merges small files until there are few. What it shows stays the same.
    pub fn tidy(&mut self) -> Result<(), FileError> {
        loop {
            let sizes: Vec<u64> = self.state.files.iter().map(|file| file.bytes).collect();
            let Some(chosen) = merge::choose(&sizes) else { return Ok(()) };
            let next = self.begin()?;
            let mut files = Vec::new();
            for (index, file) in self.state.files.iter().enumerate() {
                if !chosen.contains(&index) {
                    files.push(self.keep(&next, file)?);
                }
            }
            let merged: Vec<&LiveFile> = chosen.iter().map(|index| &self.state.files[*index]).collect();
            files.extend(self.rewrite(&next, &merged, new_name(&next, files.len()), &|_| true)?);
            self.publish(next, files, self.state.note.clone())?;
        }
    }

    /// The new rows that count, and by file the keys whose rows do not any more.
    #[allow(clippy::type_complexity, reason = "used once, right above")]
    fn settle_keys(
        &self,
        rows: Vec<Row>,
    ) -> Result<(Vec<Row>, Vec<(usize, FxHashSet<Box<str>>)>), FileError> {
        let mut newest: FxHashMap<Box<str>, Row> = FxHashMap::default();
        for row in rows {
            let key = self.schema.key_of(&row);
            let is_newer = newest
                .get(&key)
                .is_none_or(|before| self.schema.version_of(&row) >= self.schema.version_of(before));
            if is_newer {
                newest.insert(key, row);
            }
        }
        let mut superseded = Vec::new();
        for (index, file) in self.state.files.iter().enumerate() {
            let suspects = newest.keys().any(|key| file.may_hold(Schema::fingerprint(key)));
            if !suspects {
                continue;
            }
            let mut gone: FxHashSet<Box<str>> = FxHashSet::default();
            self.reader(file)?.each(&self.schema.telling(), &mut |row| {
                let key = self.schema.key_of(&row);
                if let Some(new) = newest.get(&key) {
                    if self.schema.version_of(&row) > self.schema.version_of(new) {
                        newest.remove(&key);
                    } else {
                        gone.insert(key);
                    }
                }
                Ok(())
            })?;
            if !gone.is_empty() {
                superseded.push((index, gone));
            }
        }
        // by key: neighbours compress well, and the same rows give the same file
        let mut rows: Vec<_> = newest.into_iter().collect();
        rows.sort_unstable_by(|(one, _), (two, _)| one.cmp(two));
        Ok((rows.into_iter().map(|(_, row)| row).collect(), superseded))
    }

    fn reader(&self, file: &LiveFile) -> Result<Reader, FileError> {
        let current = self.state.snapshot.as_ref().expect("a table with files has a snapshot");
        Reader::open(&current.folder().join(&file.name), &self.schema)
    }

    fn begin(&self) -> Result<Snapshot, FileError> {
        Snapshot::begin(&self.folder, self.state.snapshot.as_ref())
    }

    fn keep(&self, next: &Snapshot, file: &LiveFile) -> Result<LiveFile, FileError> {
        let current = self.state.snapshot.as_ref().expect("a table with files has a snapshot");
        next.keep(current, &file.name)?;
        Ok(file.clone())
    }

    fn create(&self, next: &Snapshot, name: String) -> Result<NewFile, FileError> {
        let path = next.folder().join(&name);
        let writer = Writer::create(&path, &self.schema)?;
        Ok(NewFile { name, path, writer, schema: Arc::clone(&self.schema), keys: Vec::new() })
    }

    /// Copies rows into a new file; none if no row is left.
    fn rewrite(
        &self,
        next: &Snapshot,
        files: &[&LiveFile],
        name: String,
        wanted: &dyn Fn(&Row) -> bool,
    ) -> Result<Option<LiveFile>, FileError> {
        let all: Vec<usize> = (0..self.schema.columns().len()).collect();
        let mut new = self.create(next, name)?;
        for file in files {
            self.reader(file)?.each(&all, &mut |row| if wanted(&row) { new.push(row) } else { Ok(()) })?;
        }
        new.finish()
    }

    fn publish(&mut self, next: Snapshot, files: Vec<LiveFile>, note: Vec<u8>) -> Result<(), FileError> {
        next.publish(&note)?;
        self.state = State { snapshot: Some(next), files, note };
        if let Some(current) = &self.state.snapshot
            && let Err(error) = current.tidy()
        {
            // it is only in the way, and the next write tries again
            tracing::warn!(%error, "old files of a table could not be removed");
        }
        Ok(())
    }
}

/// A file of the next snapshot.
struct NewFile {
    name: String,
    path: PathBuf,
    writer: Writer,
    schema: Arc<Schema>,
    keys: Vec<u64>,
}

impl NewFile {
    fn push(&mut self, row: Row) -> Result<(), FileError> {
        if self.schema.has_key() {
            self.keys.push(Schema::fingerprint(&self.schema.key_of(&row)));
        }
        self.writer.push(row)
    }

    /// On disk; none, and no file either, if it holds no row.
    fn finish(mut self) -> Result<Option<LiveFile>, FileError> {
        let rows = self.writer.rows();
        self.writer.finish()?;
        if rows == 0 {
            std::fs::remove_file(&self.path).map_err(FileError::doing("remove", &self.path))?;
            return Ok(None);
        }
        let found = std::fs::metadata(&self.path).map_err(FileError::doing("look at", &self.path))?;
        self.keys.sort_unstable();
        Ok(Some(LiveFile { name: self.name, bytes: found.len(), keys: Arc::new(self.keys) }))
    }
}

/// Unlike any before, since no two snapshots have a number.
fn new_name(snapshot: &Snapshot, index: usize) -> String {
    format!("part-{:010}-{index:05}.{EXTENSION}", snapshot.number)
}

/// Shows every row of the table in `folder`, without opening it for writing.
pub fn walk(folder: &Path, schema: &Arc<Schema>, each: &mut dyn FnMut(Row)) -> Result<(), FileError> {
    let Some(snapshot) = Snapshot::current(folder)? else { return Ok(()) };
    let all: Vec<usize> = (0..schema.columns().len()).collect();
    for name in snapshot.files()? {
        let reader = Reader::open(&snapshot.folder().join(name), schema)?;
        reader.each(&all, &mut |row| {
            each(row);
            Ok(())
        })?;
    }
    Ok(())
}
