//! Taking records in: which windows they are in, whether they are late, what closes.

use std::collections::BTreeMap;
use std::time::Duration;

use courant_pipeline::{Origin, StageError, clock};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::Emit;
use super::aggregate::Sample;
use super::shape::{Input, Shape};
use super::state::{Draft, ID, Row, WindowId, place};

/// Rows that come out with one record; more come out with the next ones.
const CLOSED_AT_ONCE: usize = 1000;
/// Partitions whose watermarks are kept; of more the one that is furthest behind is forgotten.
const MOST_PARTITIONS: usize = 4096;

/// How time goes on.
pub(super) struct Pace {
    pub(super) lateness: u64,
    pub(super) ahead: u64,
    pub(super) idle: Duration,
    pub(super) emit: Emit,
    pub(super) max_open: u64,
}

/// When partitions were last heard of, in this process.
pub(super) struct Partitions {
    since: Instant,
    heard: FxHashMap<String, Instant>,
    /// Up to where the rows of their records were forgotten.
    swept: FxHashMap<String, u64>,
}

impl Partitions {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), heard: FxHashMap::default(), swept: FxHashMap::default() }
    }

    /// One that was not heard of yet may still be about to be.
    fn is_active(&self, partition: &str, now: Instant, idle: Duration) -> bool {
        now.duration_since(self.heard.get(partition).copied().unwrap_or(self.since)) <= idle
    }
}

/// What becomes of a record.
pub(super) enum Verdict {
    Refused(StageError),
    Late,
    /// It is in its windows, and these rows come out with it.
    Counted(Vec<Row>),
}

/// A batch on its way into the windows.
pub(super) struct Absorbing<'a> {
    shape: &'a Shape,
    pace: &'a Pace,
    in_order: bool,
    partitions: &'a mut Partitions,
    draft: Draft,
    now: Instant,
    wall: u64,
    verdicts: Vec<Verdict>,
    /// With updates: windows that changed, and the last record that was in them.
    touched: BTreeMap<WindowId, usize>,
}

impl<'a> Absorbing<'a> {
    pub(super) fn new(
        shape: &'a Shape,
        pace: &'a Pace,
        in_order: bool,
        partitions: &'a mut Partitions,
        draft: Draft,
    ) -> Self {
        let (now, wall) = (Instant::now(), clock::unix_millis());
        let (verdicts, touched) = (Vec::new(), BTreeMap::new());
        if !in_order {
            partitions.since = now; // what comes after is heard of first
        }
        Self { shape, pace, in_order, partitions, draft, now, wall, verdicts, touched }
    }

    /// Takes the next record in.
    pub(super) fn record(
        &mut self,
        input: Result<Input, StageError>,
        origin: Option<Origin<'_>>,
    ) -> Result<(), StageError> {
        let verdict = match input.and_then(|input| self.check(input)) {
            Ok(input) => self.take(&input, origin.as_ref())?,
            Err(error) => Verdict::Refused(error),
        };
        self.verdicts.push(verdict);
        Ok(())
    }

    fn check(&self, input: Input) -> Result<Input, StageError> {
        if input.time > self.wall.saturating_add(self.pace.ahead) {
            let reason = "it is further ahead of this machine's clock than `ahead` allows";
            return Err(StageError::reject("read the time", reason));
        }
        Ok(input)
    }

    fn take(&mut self, input: &Input, origin: Option<&Origin<'_>>) -> Result<Verdict, StageError> {
        let partition = origin.map(place).unwrap_or_default();
        if let Some(origin) = origin {
            self.sweep(&partition, origin)?;
            if self.draft.clock.applied.contains(origin) {
                self.draft.clock.applied.take(origin); // for what it says of what is settled
                self.touch(input)?;
                return Ok(Verdict::Counted(self.draft.emitted_with(origin)?));
            }
        }
        let mark = self.draft.clock.watermarks.get(&partition).copied().unwrap_or(0);
        let windows: Vec<WindowId> =
            self.shape.windows(input).filter(|window| !self.is_late(window, mark)).collect();
        if windows.is_empty() {
            // it carries no rows, since it may go elsewhere
            self.pass_time(&partition, mark);
            return Ok(Verdict::Late);
        }
        if let Err(refused) = self.count(input, &windows)? {
            return Ok(Verdict::Refused(refused));
        }
        self.pass_time(&partition, input.time.max(mark));
        let rows = self.close(origin.is_some())?;
        if let Some(origin) = origin {
            self.draft.clock.applied.take(origin);
            self.draft.emitted(origin, &rows)?;
        }
        Ok(Verdict::Counted(rows))
    }

    /// Forgets the rows of records of the partition that have been settled since this was last done.
    fn sweep(&mut self, partition: &str, origin: &Origin<'_>) -> Result<(), StageError> {
        let Some(settled) = origin.settled else { return Ok(()) };
        if self.partitions.swept.get(partition) == Some(&settled) {
            return Ok(());
        }
        self.partitions.swept.insert(partition.to_owned(), settled);
        self.draft.forget_rows(origin, settled)
    }

    fn is_late(&self, window: &WindowId, mark: u64) -> bool {
        window.end <= self.draft.clock.closed_through
            || (self.in_order && mark >= window.end.saturating_add(self.pace.lateness))
    }

    /// Counts the record in its windows; refused if there are too many.
    fn count(&mut self, input: &Input, windows: &[WindowId]) -> Result<Result<(), StageError>, StageError> {
        let mut new = 0;
        for window in windows {
            new += u64::from(self.draft.window(window)?.is_none());
        }
        if self.draft.open() + new > self.pace.max_open {
            let reason = format!("{} windows are open, and no more may be (`max_open`)", self.draft.open());
            return Ok(Err(StageError::reject("open a window", reason)));
        }
        for window in windows {
            if self.draft.window(window)?.is_none() {
                self.draft.create(window, self.shape.start());
            }
            if let Some(id) = &input.id
                && !self.draft.join(window, ID, id)?
            {
                continue;
            }
            for (index, sample) in input.samples.iter().enumerate() {
                if let Sample::Member(value) = sample
                    && !self.draft.join(window, u8::try_from(index).unwrap_or(ID), value)?
                {
                    continue;
                }
                if let Some(totals) = self.draft.window(window)? {
                    totals[index].add(sample);
                }
            }
        }
        self.touch(input)?;
        Ok(Ok(()))
    }

    /// The windows of this record that are open are to be shown with it.
    fn touch(&mut self, input: &Input) -> Result<(), StageError> {
        if self.pace.emit == Emit::Updates {
            let at = self.verdicts.len();
            for window in self.shape.windows(input) {
                if self.draft.window(&window)?.is_some() {
                    self.touched.insert(window, at);
                }
            }
        }
        Ok(())
    }

    fn pass_time(&mut self, partition: &str, mark: u64) {
        if !self.in_order {
            return;
        }
        self.partitions.heard.insert(partition.to_owned(), self.now);
        let marks = &mut self.draft.clock.watermarks;
        marks.insert(partition.to_owned(), mark);
        if marks.len() > MOST_PARTITIONS
            && let Some(last) = marks.iter().min_by_key(|(_, mark)| **mark).map(|(name, _)| name.clone())
        {
            marks.remove(&last);
            self.partitions.heard.remove(&last);
            self.partitions.swept.remove(&last);
        }
    }

    /// The rows of windows that every active partition has passed.
    fn close(&mut self, has_partitions: bool) -> Result<Vec<Row>, StageError> {
        let settling = has_partitions && self.now.duration_since(self.partitions.since) < self.pace.idle;
        if !self.in_order || settling {
            return Ok(Vec::new());
        }
        let active = self.draft.clock.watermarks.iter().filter(|(partition, _)| {
            !has_partitions || self.partitions.is_active(partition, self.now, self.pace.idle)
        });
        let Some(mark) = active.map(|(_, mark)| *mark).min() else { return Ok(Vec::new()) };
        let through = mark.saturating_sub(self.pace.lateness).max(self.draft.clock.closed_through);
        self.draft.clock.closed_through = through;
        if self.draft.first_end().is_none_or(|end| end > through) {
            return Ok(Vec::new());
        }
        let closed = self.draft.close(CLOSED_AT_ONCE)?;
        Ok(closed.iter().map(|(window, totals)| self.shape.row(window, totals)).collect())
    }

    /// What becomes of each record, and the state that goes with it.
    pub(super) fn finish(mut self) -> Result<(Vec<Verdict>, Draft), StageError> {
        for (window, at) in std::mem::take(&mut self.touched) {
            let Some(totals) = self.draft.window(&window)? else { continue };
            let row = self.shape.row(&window, totals);
            if let Verdict::Counted(rows) = &mut self.verdicts[at] {
                rows.push(row);
            }
        }
        Ok((self.verdicts, self.draft))
    }
}
