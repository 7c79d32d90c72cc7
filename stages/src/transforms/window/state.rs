//! Open windows on disk, and what is known of how far time has come.
//!
//! | key | value |
//! |---|---|
//! | `c` | the [`Clock`]: what was taken, watermarks, what is closed |
//! | `w` end group | the totals of an open window |
//! | `v` end group measure value | that a value, or an id, is in a window |
//! | `e` partition position part number | a row that came out with a record, until that is settled |
//!
//! Ends are big-endian, so that the next windows to close are the first keys. Nothing here is written before
//! [`Draft::finish`] hands all changes of a batch over, to be committed as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use courant_connectors::embedded::state::{Pair, StateError, StateStore};
use courant_pipeline::{Origin, StageError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::aggregate::Total;
use crate::applied::Applied;

const CLOCK: &[u8] = b"c";
/// Leftovers of closed windows that are removed with a batch: some milliseconds of work.
const SWEEP_AT_ONCE: usize = 4096;
/// Longer values are kept as their SHA-256.
const LONGEST_VALUE: usize = 64;
/// In place of a measure: the id of a record.
pub(super) const ID: u8 = u8::MAX;

/// One window of one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WindowId {
    /// In milliseconds since 1970; not part of the window any more.
    pub(super) end: u64,
    /// The values it is grouped by, as a JSON array.
    pub(super) group: Arc<[u8]>,
}

impl WindowId {
    fn key(&self) -> Vec<u8> {
        [b"w", &self.end.to_be_bytes()[..], &self.group].concat()
    }

    fn parse(key: &[u8]) -> Option<Self> {
        let (end, group) = key.strip_prefix(b"w")?.split_first_chunk()?;
        Some(Self { end: u64::from_be_bytes(*end), group: group.into() })
    }

    fn member(&self, measure: u8, value: &[u8]) -> Vec<u8> {
        let length = u32::try_from(self.group.len()).unwrap_or(u32::MAX).to_be_bytes();
        let place = [b"v", &self.end.to_be_bytes()[..], &length, &self.group, &[measure]].concat();
        if value.len() <= LONGEST_VALUE {
            [&place[..], b"=", value].concat()
        } else {
            [&place[..], b"#", &Sha256::digest(value)].concat()
        }
    }
}

/// How far time has come, as the records say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Clock {
    pub(super) applied: Applied,
    /// The latest time of each source and partition.
    pub(super) watermarks: BTreeMap<String, u64>,
    /// Windows that end up to here take no more records.
    pub(super) closed_through: u64,
}

/// A row that leaves the stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) payload: String,
}

/// What is on disk, and what is known of it.
pub(super) struct State {
    store: Arc<StateStore>,
    clock: Clock,
    /// How many windows are open, and when the first of them ends.
    open: u64,
    first_end: Option<u64>,
    /// Whether leftovers of closed windows may be there.
    sweep: bool,
}

impl State {
    pub(super) fn load(store: Arc<StateStore>) -> Result<Self, StageError> {
        let failed = |error| state_error("read the windows", error);
        let clock = match store.get(CLOCK).map_err(failed)? {
            None => Clock::default(),
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?,
        };
        let (mut open, mut first_end) = (0, None);
        for pair in store.range(b"w".to_vec()..=b"x".to_vec()) {
            let id =
                WindowId::parse(&pair.map_err(failed)?.0).ok_or_else(|| damaged(&"a key is cut short"))?;
            first_end.get_or_insert(id.end);
            open += 1;
        }
        Ok(Self { store, clock, open, first_end, sweep: true })
    }

    pub(super) fn open(&self) -> u64 {
        self.open
    }

    /// Begins a batch. The state stays as it is until the batch is [taken over](Self::take_over).
    pub(super) fn draft(&self) -> Draft {
        Draft {
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            open: self.open,
            first_end: self.first_end,
            sweep: self.sweep,
            windows: BTreeMap::new(),
            changes: BTreeMap::new(),
        }
    }

    /// The batch is on disk.
    pub(super) fn take_over(&mut self, finished: Finished) {
        let Finished(Draft { clock, open, first_end, sweep, .. }) = finished;
        (self.clock, self.open, self.first_end, self.sweep) = (clock, open, first_end, sweep);
    }
}

pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The state as a batch will leave it.
pub(super) struct Draft {
    store: Arc<StateStore>,
    pub(super) clock: Clock,
    open: u64,
    first_end: Option<u64>,
    sweep: bool,
    /// Windows that were looked at; none for those that are not there.
    windows: BTreeMap<WindowId, Option<Vec<Total>>>,
    changes: Changes,
}

impl Draft {
    pub(super) fn open(&self) -> u64 {
        self.open
    }

    pub(super) fn first_end(&self) -> Option<u64> {
        self.first_end
    }

    /// The totals of a window, if it is open.
    pub(super) fn window(&mut self, id: &WindowId) -> Result<Option<&mut Vec<Total>>, StageError> {
        if !self.windows.contains_key(id) {
            let found = self.get(&id.key())?.map(|bytes| decode(&bytes)).transpose()?;
            self.windows.insert(id.clone(), found);
        }
        Ok(self.windows.get_mut(id).and_then(Option::as_mut))
    }

    pub(super) fn create(&mut self, id: &WindowId, totals: Vec<Total>) {
        self.windows.insert(id.clone(), Some(totals));
        self.open += 1;
        self.first_end = Some(self.first_end.map_or(id.end, |first| first.min(id.end)));
    }

    /// Puts a value into a window; whether it is new there.
    pub(super) fn join(&mut self, id: &WindowId, measure: u8, value: &[u8]) -> Result<bool, StageError> {
        let key = id.member(measure, value);
        let is_new = self.get(&key)?.is_none();
        if is_new {
            self.changes.insert(key, Some(Vec::new()));
        }
        Ok(is_new)
    }

    /// Takes out the first windows that end up to where all are closed, `most` of them.
    pub(super) fn close(&mut self, most: usize) -> Result<Vec<(WindowId, Vec<Total>)>, StageError> {
        self.flush()?;
        let closed = self.scan(b"w".to_vec()..=up_to(b"w", self.clock.closed_through), most)?;
        let mut windows = Vec::with_capacity(closed.len());
        for (key, value) in closed {
            let id = WindowId::parse(&key).ok_or_else(|| damaged(&"a key is cut short"))?;
            self.windows.insert(id.clone(), None);
            self.changes.insert(key, None);
            windows.push((id, decode(&value)?));
        }
        self.open = self.open.saturating_sub(windows.len() as u64);
        self.first_end = self
            .scan(b"w".to_vec()..=b"x".to_vec(), 1)?
            .pop()
            .and_then(|(key, _)| WindowId::parse(&key).map(|id| id.end));
        self.sweep = true;
        Ok(windows)
    }

    /// Remembers the rows that came out with a record.
    pub(super) fn emitted(&mut self, origin: &Origin<'_>, rows: &[Row]) -> Result<(), StageError> {
        for (number, row) in (0u32..).zip(rows) {
            let key = [&emission(origin)[..], &number.to_be_bytes()].concat();
            let value = serde_json::to_vec(row).map_err(|error| damaged(&error))?;
            self.changes.insert(key, Some(value));
        }
        Ok(())
    }

    /// The rows that came out with a record when it came before.
    pub(super) fn emitted_with(&self, origin: &Origin<'_>) -> Result<Vec<Row>, StageError> {
        let first = emission(origin);
        let last = [&first[..], &u32::MAX.to_be_bytes()].concat();
        let rows = self.scan(first..=last, usize::MAX)?;
        rows.iter().map(|(_, row)| serde_json::from_slice(row).map_err(|error| damaged(&error))).collect()
    }

    /// Forgets the rows of records that are settled: nobody reads those again and still needs them.
    pub(super) fn forget_rows(&mut self, origin: &Origin<'_>, settled: u64) -> Result<(), StageError> {
        let last = [&partition(origin)[..], &settled.saturating_add(1).to_be_bytes()].concat();
        for (key, _) in self.scan(partition(origin)..=last, usize::MAX)? {
            self.changes.insert(key, None);
        }
        Ok(())
    }

    /// Everything that is to be committed.
    pub(super) fn finish(mut self) -> Result<(Changes, Finished), StageError> {
        self.flush()?;
        if self.sweep {
            let leftovers =
                self.scan(b"v".to_vec()..=up_to(b"v", self.clock.closed_through), SWEEP_AT_ONCE)?;
            self.sweep = leftovers.len() == SWEEP_AT_ONCE;
            self.changes.extend(leftovers.into_iter().map(|(key, _)| (key, None)));
        }
        let clock = serde_json::to_vec(&self.clock).map_err(|error| damaged(&error))?;
        self.changes.insert(CLOCK.to_vec(), Some(clock));
        Ok((std::mem::take(&mut self.changes), Finished(self)))
    }

    /// Writes what was changed of windows into the changes.
    fn flush(&mut self) -> Result<(), StageError> {
        for (id, totals) in std::mem::take(&mut self.windows) {
            if let Some(totals) = totals {
                self.changes.insert(id.key(), Some(encode(&totals)?));
            }
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StageError> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.store.get(key).map_err(|error| state_error("read the windows", error)),
        }
    }

    /// The first pairs of a range, changes included.
    fn scan(&self, keys: std::ops::RangeInclusive<Vec<u8>>, most: usize) -> Result<Vec<Pair>, StageError> {
        let changed = || self.changes.range(keys.clone());
        // changes may remove all of the first ones
        let enough = most.saturating_add(changed().count());
        let mut found = BTreeMap::new();
        for pair in self.store.range(keys.clone()).take(enough) {
            let (key, value) = pair.map_err(|error| state_error("read the windows", error))?;
            found.insert(key, value);
        }
        for (key, value) in changed() {
            match value {
                Some(value) => drop(found.insert(key.clone(), value.clone())),
                None => drop(found.remove(key)),
            }
        }
        Ok(found.into_iter().take(most).collect())
    }
}

/// A batch whose changes were handed over.
pub(super) struct Finished(Draft);

/// Above every key of this kind that ends up to `end`.
fn up_to(kind: &[u8], end: u64) -> Vec<u8> {
    [kind, &end.saturating_add(1).to_be_bytes()].concat()
}

/// Before the rows of a partition's records.
fn partition(origin: &Origin<'_>) -> Vec<u8> {
    let name = place(origin);
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes();
    [b"e", &length[..], name.as_bytes()].concat()
}

/// Before the rows of a record.
fn emission(origin: &Origin<'_>) -> Vec<u8> {
    [&partition(origin)[..], &origin.resume_at.to_be_bytes(), &origin.part.to_be_bytes()].concat()
}

/// A source and its partition in one name.
pub(super) fn place(origin: &Origin<'_>) -> String {
    format!("{}\n{}", origin.source, origin.partition)
}

fn encode(totals: &[Total]) -> Result<Vec<u8>, StageError> {
    postcard::to_stdvec(totals).map_err(|error| damaged(&error))
}

fn decode(bytes: &[u8]) -> Result<Vec<Total>, StageError> {
    postcard::from_bytes(bytes).map_err(|error| damaged(&error))
}

/// Reading and writing may work again later; what cannot be understood stays so.
pub(super) fn state_error(doing: &'static str, error: StateError) -> StageError {
    StageError::retry(doing, error)
}

fn damaged(error: &dyn std::fmt::Display) -> StageError {
    let reason = format!("they cannot be understood ({error}); rebuild the pipeline");
    StageError::fatal("read the windows", reason)
}
