//! A table by key in a folder of its own: one row per key, the newer of two wins.
//!
//! For small stores that a pipeline keeps for itself, larger than memory and gone with their folder. Underneath is the
//! same engine as below the embedded store, without its committer: one writer at a time, synced with each call.
//!
//! Rejected: a snapshot with a journal of JSON lines. Other programs could read it, but knowing the newer of two rows
//! takes an index of all keys in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};

use super::{FileError, blocking, create_private_folder, make_whole};

/// Some megabytes each: a pipeline's table is no database server.
const CACHE_BYTES: u64 = 16 << 20;
const IN_MEMORY_BYTES: u64 = 16 << 20;
/// In front of the value: version and time, eight bytes each.
const HEADER: usize = 16;
const OPENING: &str = "open the table";
/// What the engine below takes a folder for its own by. One that lacks it and has anything else can never be opened.
const MADE_LAST: &str = "version";

/// What the table says about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: String,
    /// Of two rows of a key the higher wins, and of two of the same version the later.
    pub version: u64,
    /// When what it tells happened, in milliseconds since 1970.
    pub at: u64,
    pub value: Bytes,
}

/// An open table; clones share it.
#[derive(Clone)]
pub struct KeyedTable(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    database: Database,
    rows: Keyspace,
    /// Held from looking at what is there until it is replaced.
    writing: Mutex<()>,
}

impl KeyedTable {
    /// Opens the table, creating it if it is missing. One process and one handle at a time.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, FileError> {
        let folder = folder.into();
        blocking(move || Self::open_now(&folder)).await
    }

    /// The same on a thread that may block.
    pub fn open_now(folder: &Path) -> Result<Self, FileError> {
        create_private_folder(folder)?;
        let failed = |error| failed(OPENING, folder, error);
        if !folder.join(MADE_LAST).exists() {
            let make = |beside: &Path| open_in(beside).map(drop).map_err(failed);
            make_whole(folder, make, |source| failed(source.into()))?;
        }
        let (database, rows) = open_in(folder).map_err(failed)?;
        let folder = folder.to_owned();
        Ok(Self(Arc::new(Inner { folder, database, rows, writing: Mutex::new(()) })))
    }

    /// Takes the rows; returns once they are on disk.
    pub async fn put(&self, rows: Vec<Row>) -> Result<(), FileError> {
        let inner = Arc::clone(&self.0);
        blocking(move || inner.put(rows)).await
    }

    pub async fn get(&self, key: &str) -> Result<Option<Row>, FileError> {
        let (inner, key) = (Arc::clone(&self.0), key.to_owned());
        blocking(move || {
            let found = inner.rows.get(key.as_bytes()).map_err(|error| inner.failed("read", error))?;
            found.map(|value| inner.row(key.as_bytes(), &value)).transpose()
        })
        .await
    }

    /// Rows whose key begins with `prefix`, in the order of their keys, from `after` on; at most `limit`.
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Row>, FileError> {
        let (inner, prefix, after) = (Arc::clone(&self.0), prefix.to_owned(), after.map(str::to_owned));
        blocking(move || {
            let is_new = |row: &Result<Row, FileError>| {
                let key = row.as_ref().map(|row| row.key.as_str());
                key.is_ok_and(|key| after.as_deref().is_none_or(|after| key > after)) || key.is_err()
            };
            let rows = inner.rows.prefix(prefix.as_bytes()).map(|guard| inner.guarded(guard));
            rows.filter(is_new).take(limit).collect()
        })
        .await
    }

    /// Shows every row, in the order of their keys. Blocks.
    pub fn each(&self, mut show: impl FnMut(Row)) -> Result<(), FileError> {
        for guard in self.0.rows.iter() {
            show(self.0.guarded(guard)?);
        }
        Ok(())
    }
}

fn open_in(folder: &Path) -> Result<(Database, Keyspace), fjall::Error> {
    let database = Database::builder(folder).cache_size(CACHE_BYTES).worker_threads(1).open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(IN_MEMORY_BYTES);
    let rows = database.keyspace("rows", options)?;
    Ok((database, rows))
}

impl Inner {
    fn put(&self, rows: Vec<Row>) -> Result<(), FileError> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut newest: BTreeMap<String, Row> = BTreeMap::new();
        for row in rows {
            match newest.entry(row.key.clone()) {
                Entry::Occupied(other) if other.get().version > row.version => {}
                Entry::Occupied(mut other) => drop(other.insert(row)),
                Entry::Vacant(free) => drop(free.insert(row)),
            }
        }
        let mut batch = OwnedWriteBatch::with_capacity(self.database.clone(), newest.len());
        for (key, row) in newest {
            let there = self.rows.get(key.as_bytes()).map_err(|error| self.failed("read", error))?;
            let is_newer = |there: &[u8]| version_of(there).is_some_and(|version| version > row.version);
            if !there.is_some_and(|there| is_newer(&there)) {
                batch.insert(&self.rows, key.as_bytes(), encode(&row));
            }
        }
        let written = batch.durability(Some(PersistMode::SyncData)).commit();
        written.map_err(|error| self.failed("write to", error))
    }

    fn guarded(&self, guard: fjall::Guard) -> Result<Row, FileError> {
        let (key, value) = guard.into_inner().map_err(|error| self.failed("read", error))?;
        self.row(&key, &value)
    }

    fn row(&self, key: &[u8], value: &[u8]) -> Result<Row, FileError> {
        let number = |from: usize| Some(u64::from_be_bytes(value.get(from..from + 8)?.try_into().ok()?));
        let parts = (String::from_utf8(key.to_vec()), number(0), number(8));
        let (Ok(key), Some(version), Some(at)) = parts else {
            return Err(FileError::Damaged {
                path: self.folder.clone(),
                reason: "a row has no header".to_owned(),
                advice: "rebuild it with `courant replay`",
            });
        };
        Ok(Row { key, version, at, value: Bytes::copy_from_slice(&value[HEADER..]) })
    }

    fn failed(&self, doing: &'static str, error: fjall::Error) -> FileError {
        failed(doing, &self.folder, error)
    }
}

fn version_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.get(..8)?.try_into().ok()?))
}

fn encode(row: &Row) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEADER + row.value.len());
    value.extend_from_slice(&row.version.to_be_bytes());
    value.extend_from_slice(&row.at.to_be_bytes());
    value.extend_from_slice(&row.value);
    value
}

fn failed(doing: &'static str, folder: &Path, error: fjall::Error) -> FileError {
    let path = folder.to_owned();
    match error {
        fjall::Error::Io(source) => FileError::Io { doing, path, source },
        fjall::Error::Locked => FileError::Damaged {
            path,
            reason: "somebody else has it open".to_owned(),
            advice: "ask the process that runs its pipeline",
        },
        error => {
            FileError::Damaged { path, reason: error.to_string(), advice: "rebuild it with `courant replay`" }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn row(key: &str, version: u64, value: &'static str) -> Row {
        Row { key: key.into(), version, at: version * 10, value: Bytes::from_static(value.as_bytes()) }
    }

    #[tokio::test]
    async fn the_newer_of_two_rows_stays_however_they_come() {
        let folder = tempfile::tempdir().unwrap();
        let table = KeyedTable::open(folder.path().join("new")).await.unwrap();
        table.put(vec![row("b", 2, "two"), row("b", 1, "one"), row("a", 0, "first")]).await.unwrap();
        table.put(vec![row("b", 1, "one again"), row("a", 0, "last"), row("c", 1, "c")]).await.unwrap();
        drop(table);
        let table = KeyedTable::open(folder.path().join("new")).await.unwrap();
        let mut all = Vec::new();
        table.each(|row| all.push(row)).unwrap();
        assert_eq!(all, [row("a", 0, "last"), row("b", 2, "two"), row("c", 1, "c")]);
        assert_eq!(table.get("b").await.unwrap(), Some(row("b", 2, "two")));
        assert_eq!(table.get("d").await.unwrap(), None);
        let listed = table.list("", Some("a"), 1).await.unwrap();
        assert_eq!(listed, [row("b", 2, "two")]);
        assert!(table.list("x", None, 9).await.unwrap().is_empty());
    }

    /// What there is room for at first is not taken for a table.
    #[tokio::test]
    async fn a_table_that_could_not_be_made_is_made_later() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("table");
        let no_room = |_: &Path| Err(io::Error::from(io::ErrorKind::StorageFull));
        let half = |beside: &Path| std::fs::write(beside.join("lock"), "").and_then(|()| no_room(beside));
        super::super::make_whole(&table, half, |error| error).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        for _ in 0..2 {
            KeyedTable::open(&table).await.unwrap().put(vec![row("a", 1, "a")]).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_table_is_opened_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let _open = KeyedTable::open(folder.path()).await.unwrap();
        let error = KeyedTable::open(folder.path()).await.err().expect("it is open").to_string();
        assert!(error.contains("somebody else has it open"), "{error}");
    }
}
