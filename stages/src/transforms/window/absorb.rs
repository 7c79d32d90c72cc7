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

/// What the order of records says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// How far time has come: whatever is behind is late, and what is over can be closed.
    OfTime,
    /// Nothing: it is history that is run again.
    Any,
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
    order: Order,
    partitions: &'a mut Partitions,
    draft: Draft,
    now: Instant,
    wall: u64,
    verdicts: Vec<Verdict>,
    /// Windows whose rows come out as they are at the end of the batch, and the record that they come out with.
    touched: BTreeMap<WindowId, usize>,
}

impl<'a> Absorbing<'a> {
    pub(super) fn new(
        shape: &'a Shape,
        pace: &'a Pace,
        order: Order,
        partitions: &'a mut Partitions,
        draft: Draft,
    ) -> Self {
        let (now, wall) = (Instant::now(), clock::unix_millis());
        let (verdicts, touched) = (Vec::new(), BTreeMap::new());
        Self { shape, pace, order, partitions, draft, now, wall, verdicts, touched }
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
                let (rows, shown) = self.draft.emitted_with(origin)?;
                self.show(shown);
                return Ok(Verdict::Counted(rows));
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
        let (rows, shown) = match self.order {
            Order::OfTime => (self.close(origin.is_some())?, Vec::new()),
            Order::Any => (Vec::new(), self.passed_by(input.time)?),
        };
        if let Some(origin) = origin {
            self.draft.clock.applied.take(origin);
            self.draft.emitted(origin, &rows, &shown)?;
        }
        self.show(shown);
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
            || (self.order == Order::OfTime && mark >= window.end.saturating_add(self.pace.lateness))
    }

    /// Counts the record in its windows; refused if there are too many.
    fn count(&mut self, input: &Input, windows: &[WindowId]) -> Result<Result<(), StageError>, StageError> {
        let mut new = 0;
        for window in windows {
            new += u64::from(self.draft.window(window)?.is_none());
        }
        if self.order == Order::OfTime && self.draft.open() + new > self.pace.max_open {
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
            if self.order == Order::OfTime && window.end <= self.draft.clock.shown_through {
                self.draft.close_with_row(window);
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

    /// The windows of this record that are open and whose rows are out are shown with it.
    fn touch(&mut self, input: &Input) -> Result<(), StageError> {
        let (order, emit) = (self.order, self.pace.emit);
        let mut open = Vec::new();
        for window in self.shape.windows(input) {
            let is_out = order == Order::Any && window.end <= self.draft.clock.shown_through;
            if (is_out || emit == Emit::Updates) && self.draft.window(&window)?.is_some() {
                open.push(window);
            }
        }
        self.show(open);
        Ok(())
    }

    fn show(&mut self, windows: Vec<WindowId>) {
        let at = self.verdicts.len();
        self.touched.extend(windows.into_iter().map(|window| (window, at)));
    }

    /// Windows that history has passed with this time, and had not before. All of them, however many: there may be no
    /// further record. A time that is ahead of the clock would pass what is still to come.
    fn passed_by(&mut self, time: u64) -> Result<Vec<WindowId>, StageError> {
        let through = time.min(self.wall).saturating_sub(self.pace.lateness);
        if through <= self.draft.clock.shown_through {
            return Ok(Vec::new());
        }
        let passed = match self.draft.first_end() {
            Some(end) if end <= through => self.draft.pass(through)?,
            _ => Vec::new(),
        };
        self.draft.clock.shown_through = through;
        Ok(passed)
    }

    fn pass_time(&mut self, partition: &str, mark: u64) {
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
        if settling {
            return Ok(Vec::new());
        }
        let active = self.draft.clock.watermarks.iter().filter(|(partition, _)| {
            !has_partitions || self.partitions.is_active(partition, self.now, self.pace.idle)
        });
        let Some(mark) = active.map(|(_, mark)| *mark).min() else { return Ok(Vec::new()) };
        let through = mark.saturating_sub(self.pace.lateness).max(self.draft.clock.closed_through);
        self.draft.close_through(through);
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
