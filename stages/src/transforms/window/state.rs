//! Open windows on disk, and what is known of how far time has come.
//!
//! | key | value |
//! |---|---|
//! | `c` | the [`Clock`]: what was taken, watermarks, what is closed |
//! | `w` end group | the totals of an open window |
//! | `t` end group | that a window whose row is out has changed since, and closes with another |
//! | `v` end group measure value | that a value, or an id, is in a window |
//! | `e` partition position part number | a row that came out with a record, or the key of a window that is shown with it, until that is settled |
//!
//! Ends are big-endian, so that the next windows to close are the first keys. Nothing here is written before
//! [`Draft::finish`] hands all changes of a batch over, to be committed as one.

use std::collections::{BTreeMap, BTreeSet};
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

    fn changed_key(&self) -> Vec<u8> {
        [b"t", &self.end.to_be_bytes()[..], &self.group].concat()
    }

    /// From either of its keys.
    fn parse(key: &[u8]) -> Option<Self> {
        let (end, group) = key.strip_prefix(b"w").or(key.strip_prefix(b"t"))?.split_first_chunk()?;
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
    /// In a rebuild: the rows of windows that end up to here are out, and come out again when they change.
    #[serde(default)]
    pub(super) shown_through: u64,
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
    /// How many windows are open, and when the first of them ends whose row is not out.
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
            if id.end > clock.shown_through {
                first_end.get_or_insert(id.end);
            }
            open += 1;
        }
        if let Some(changed) = store.range(b"t".to_vec()..=b"u".to_vec()).next() {
            let id = WindowId::parse(&changed.map_err(failed)?.0);
            first_end = first_end.into_iter().chain(id.map(|id| id.end)).min();
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
        if id.end > self.clock.shown_through {
            self.closes_at(id.end);
        }
    }

    /// Its row is out and says too little from now on.
    pub(super) fn close_with_row(&mut self, id: &WindowId) {
        self.changes.insert(id.changed_key(), Some(Vec::new()));
        self.closes_at(id.end);
    }

    fn closes_at(&mut self, end: u64) {
        self.first_end = Some(self.first_end.map_or(end, |first| first.min(end)));
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

    /// From now on windows that end up to here take no more records.
    pub(super) fn close_through(&mut self, through: u64) {
        // what was shown goes without a row
        self.sweep |= self.clock.closed_through < through.min(self.clock.shown_through);
        self.clock.closed_through = through;
    }

    /// The windows that end up to here and whose rows are not out; they stay open.
    pub(super) fn pass(&mut self, through: u64) -> Result<Vec<WindowId>, StageError> {
        self.flush()?;
        let passed = self.scan(self.not_shown()..=up_to(b"w", through), usize::MAX)?;
        self.first_end = self.first_end_behind(through)?;
        let id = |(key, _): &Pair| WindowId::parse(key).ok_or_else(|| damaged(&"a key is cut short"));
        passed.iter().map(id).collect()
    }

    /// Before the first window whose row is not out.
    fn not_shown(&self) -> Vec<u8> {
        up_to(b"w", self.clock.shown_through)
    }

    fn first_end_behind(&self, through: u64) -> Result<Option<u64>, StageError> {
        let mut first = self.scan(up_to(b"w", through)..=b"x".to_vec(), 1)?;
        first.extend(self.scan(b"t".to_vec()..=b"u".to_vec(), 1)?);
        Ok(first.iter().filter_map(|(key, _)| WindowId::parse(key)).map(|id| id.end).min())
    }

    /// Takes out the first windows that end up to where all are closed, `most` of them.
    pub(super) fn close(&mut self, most: usize) -> Result<Vec<(WindowId, Vec<Total>)>, StageError> {
        self.flush()?;
        let mut closed = self.scan(b"t".to_vec()..=up_to(b"t", self.clock.closed_through), most)?;
        let left = most - closed.len();
        closed.extend(self.scan(self.not_shown()..=up_to(b"w", self.clock.closed_through), left)?);
        let mut windows = Vec::with_capacity(closed.len());
        for (key, _) in closed {
            let id = WindowId::parse(&key).ok_or_else(|| damaged(&"a key is cut short"))?;
            if let Some(value) = self.get(&id.key())? {
                windows.push((id.clone(), decode(&value)?));
            }
            self.changes.insert(id.key(), None);
            self.changes.insert(id.changed_key(), None);
            self.windows.insert(id, None);
        }
        self.open = self.open.saturating_sub(windows.len() as u64);
        self.first_end = self.first_end_behind(self.clock.shown_through)?;
        self.sweep = true;
        Ok(windows)
    }

    /// Remembers the rows that came out with a record, and the windows that are shown with it.
    pub(super) fn emitted(
        &mut self,
        origin: &Origin<'_>,
        rows: &[Row],
        shown: &[WindowId],
    ) -> Result<(), StageError> {
        let row = |row| serde_json::to_vec(row).map_err(|error| damaged(&error));
        let values = rows.iter().map(row).chain(shown.iter().map(|window| Ok(window.key())));
        for (number, value) in (0u32..).zip(values) {
            let key = [&emission(origin)[..], &number.to_be_bytes()].concat();
            self.changes.insert(key, Some(value?));
        }
        Ok(())
    }

    /// The rows that came out with a record when it came before, and the windows that were shown with it and are open.
    pub(super) fn emitted_with(
        &mut self,
        origin: &Origin<'_>,
    ) -> Result<(Vec<Row>, Vec<WindowId>), StageError> {
        let first = emission(origin);
        let last = [&first[..], &u32::MAX.to_be_bytes()].concat();
        let (mut rows, mut shown) = (Vec::new(), Vec::new());
        for (_, value) in self.scan(first..=last, usize::MAX)? {
            match WindowId::parse(&value) {
                Some(window) if self.window(&window)?.is_some() => shown.push(window),
                Some(_) => {}
                None => rows.push(serde_json::from_slice(&value).map_err(|error| damaged(&error))?),
            }
        }
        Ok((rows, shown))
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
            let over = self.clock.closed_through.min(self.clock.shown_through);
            let mut shown = self.scan(b"w".to_vec()..=up_to(b"w", over), SWEEP_AT_ONCE)?;
            self.sweep = leftovers.len().max(shown.len()) == SWEEP_AT_ONCE;
            let changed = self.scan(b"t".to_vec()..=up_to(b"t", over), usize::MAX)?;
            let changed: BTreeSet<_> = changed.iter().map(|(key, _)| &key[1..]).collect();
            shown.retain(|(key, _)| !changed.contains(&key[1..]));
            self.open = self.open.saturating_sub(shown.len() as u64);
            self.changes.extend(leftovers.into_iter().chain(shown).map(|(key, _)| (key, None)));
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
        if keys.is_empty() {
            return Ok(Vec::new());
        }
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
