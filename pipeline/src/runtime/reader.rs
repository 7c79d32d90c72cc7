//! The task that reads a source, feeds the first segment and commits what is settled.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::lane::{Lane, wait_until};
use super::supervisor::Shared;
use super::{Failure, Host};
use crate::ack::ReadAcks;
use crate::error::Class;
use crate::ledger::{Ledger, Progress};
use crate::positions::SavedPositions;
use crate::stage::{PositionKeeping, Positions, Read, ReadBatch, Source};
use crate::tap::Tap;
use crate::units::Span;

/// Records per read at the most: a batch that is worked through in about a millisecond.
const READ_RECORDS: usize = 512;
/// Records read past the oldest unsettled one. Bounds the ledger when a single record is stuck.
const MAX_OUTSTANDING: usize = 65_536;
/// Settled batches are taken off the ledger at the latest when this many records are in it.
const SETTLE_AT: usize = 8 * READ_RECORDS;
/// Commits are durable writes or network calls; more often than this they only cost.
const COMMIT_EVERY: Duration = Duration::from_millis(100);

/// Reads, feeds and commits. The lane is segment 0: what is fused to the source.
pub(crate) struct Reader {
    pub(crate) host: Host,
    pub(crate) source: Box<dyn Source>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tap: Arc<Tap>,
    name: Arc<str>,
    ledger: Ledger,
    unsaved: Positions,
    saved: Positions,
    commit_due: Option<Instant>,
    backoff: Backoff,
}

impl Reader {
    pub(crate) fn new(
        host: Host,
        source: Box<dyn Source>,
        shared: Arc<Shared>,
        name: Arc<str>,
        tap: Arc<Tap>,
    ) -> Self {
        Self {
            host,
            source,
            shared,
            tap,
            name,
            ledger: Ledger::default(),
            unsaved: Positions::new(),
            saved: Positions::new(),
            commit_due: None,
            backoff: Backoff::new(Span::millis(100), Span::secs(10)),
        }
    }

    fn progress(&self) -> &Arc<Progress> {
        &self.shared.progress
    }

    /// Opens the source where it was left.
    pub(crate) async fn open(&mut self) -> Result<(), Failure> {
        if self.source.keeps_positions() == PositionKeeping::Runtime {
            let saved =
                self.host.positions.load(&self.shared.name).await.map_err(|error| self.failure(error))?;
            if let Some(saved) = saved {
                if saved.source == self.source.identity() {
                    self.saved = saved.positions;
                } else {
                    tracing::warn!(
                        pipeline = %self.shared.name, was = %saved.source, now = %self.source.identity(),
                        "the source has changed, kept positions are not used"
                    );
                }
            }
        }
        let resume = self.saved.clone();
        self.source.open(&resume).await.map_err(|error| self.failure(error))
    }

    /// Reads until told to stop or the source ends, then until the lane has nothing parked.
    pub(crate) async fn run(&mut self, mut lane: Lane, stop: &CancellationToken) -> Result<ReadEnd, Failure> {
        let mut end = None;
        loop {
            let due = lane.due();
            if end.is_some() && due.is_none() {
                return Ok(end.unwrap_or(ReadEnd::Stopped));
            }
            let may_read = end.is_none() && !lane.is_full() && self.ledger.outstanding() < MAX_OUTSTANDING;
            let progress = Arc::clone(self.progress());
            tokio::select! {
                biased;
                () = stop.cancelled(), if end.is_none() => end = Some(ReadEnd::Stopped),
                () = wait_until(self.commit_due), if self.commit_due.is_some() => self.commit().await?,
                () = wait_until(due), if due.is_some() => lane.retry_due().await?,
                () = progress.moved(), if self.wants_news() => self.settle(),
                read = self.source.read(READ_RECORDS), if may_read => match read {
                    Ok(Read::Batch(batch)) => {
                        self.backoff.reset();
                        self.feed(&mut lane, batch).await?;
                    }
                    Ok(Read::End) => end = Some(ReadEnd::Ended),
                    Err(error) if error.class == Class::Retry => {
                        let wait = self.backoff.next();
                        tracing::warn!(pipeline = %self.shared.name, %error, ?wait, "read failed, will retry");
                        self.shared.note_error(&error);
                        self.pause(wait, stop).await?;
                    }
                    Err(error) => return Err(self.failure(error)),
                },
            }
        }
    }

    /// Whether a resolved batch matters right now: there is a commit to plan, or reading waits for room.
    fn wants_news(&self) -> bool {
        self.commit_due.is_none() || self.ledger.outstanding() >= MAX_OUTSTANDING
    }

    async fn pause(&mut self, wait: Duration, stop: &CancellationToken) -> Result<(), Failure> {
        let until = Instant::now() + wait;
        loop {
            let progress = Arc::clone(self.progress());
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = wait_until(Some(until)) => return Ok(()),
                () = wait_until(self.commit_due), if self.commit_due.is_some() => self.commit().await?,
                () = progress.moved(), if self.commit_due.is_none() => self.settle(),
            }
        }
    }

    /// Takes a batch into the ledger and through the lane, committing while the lane is held up.
    async fn feed(&mut self, lane: &mut Lane, read: ReadBatch) -> Result<(), Failure> {
        let batch = self.register(read);
        if self.tap.is_watched() {
            self.tap.show(&self.shared.name, &self.name, batch.records());
        }
        let mut feed = std::pin::pin!(lane.feed(batch));
        loop {
            let progress = Arc::clone(self.progress());
            tokio::select! {
                biased;
                done = &mut feed => {
                    done?;
                    break;
                }
                () = wait_until(self.commit_due), if self.commit_due.is_some() => self.commit().await?,
                () = progress.moved(), if self.commit_due.is_none() => self.settle(),
            }
        }
        if self.ledger.outstanding() >= SETTLE_AT {
            self.settle();
        }
        // A source that always has more, fused to stages that never wait, would keep the thread to itself.
        tokio::task::coop::consume_budget().await;
        Ok(())
    }

    /// Gives every record of a read batch its handle.
    fn register(&mut self, read: ReadBatch) -> crate::batch::Batch {
        let ReadBatch { partition, mut records, resume_at, replies } = read;
        debug_assert_eq!(records.len(), resume_at.len());
        let acks = ReadAcks::new(resume_at, replies, Arc::clone(self.progress()));
        for (index, slot) in (0u32..).zip(records.iter_mut()) {
            slot.record.ack = acks.ack(index);
        }
        self.ledger.push(partition, acks);
        records
    }

    /// Takes settled batches off the ledger and plans a commit if positions moved.
    fn settle(&mut self) {
        let moved = self.ledger.settle();
        self.shared.observe(self.ledger.outstanding(), self.source.lag());
        if moved.is_empty() {
            return;
        }
        self.unsaved.extend(moved);
        if self.commit_due.is_none() && self.source.keeps_positions() != PositionKeeping::None {
            self.commit_due = Some(Instant::now() + COMMIT_EVERY);
        }
    }

    /// Makes the settled positions last. A failed commit is tried again; until then nothing is lost, only read
    /// again after a crash.
    async fn commit(&mut self) -> Result<(), Failure> {
        self.commit_due = None;
        match self.try_commit().await {
            Ok(()) => Ok(()),
            Err(error) if error.class == Class::Retry => {
                tracing::warn!(pipeline = %self.shared.name, %error, "commit failed, will retry");
                self.shared.note_error(&error);
                self.commit_due = Some(Instant::now() + self.backoff.next());
                Ok(())
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    async fn try_commit(&mut self) -> Result<(), crate::error::StageError> {
        let moved = self.ledger.settle();
        self.unsaved.extend(moved);
        self.shared.observe(self.ledger.outstanding(), self.source.lag());
        if self.unsaved.is_empty() {
            return Ok(());
        }
        match self.source.keeps_positions() {
            PositionKeeping::None => {}
            PositionKeeping::Source => self.source.commit(&self.unsaved).await?,
            PositionKeeping::Runtime => {
                let mut positions = self.saved.clone();
                positions.extend(self.unsaved.clone());
                let saved = SavedPositions { source: self.source.identity(), positions };
                self.host.positions.save(&self.shared.name, &saved).await?;
                self.saved = saved.positions;
            }
        }
        self.unsaved.clear();
        Ok(())
    }

    /// Commits while the rest of the pipeline finishes; never returns.
    pub(crate) async fn commit_along(&mut self) -> Result<std::convert::Infallible, Failure> {
        loop {
            let progress = Arc::clone(self.progress());
            tokio::select! {
                () = wait_until(self.commit_due), if self.commit_due.is_some() => self.commit().await?,
                () = progress.moved(), if self.commit_due.is_none() => self.settle(),
            }
        }
    }

    /// The last commit of a run, after everything has its disposition.
    pub(crate) async fn close(&mut self) -> Result<(), Failure> {
        self.try_commit().await.map_err(|error| self.failure(error))?;
        self.source.close().await.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: impl std::fmt::Display) -> Failure {
        Failure::new(&self.name, error)
    }
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// On request.
    Stopped,
    /// The source has no more.
    Ended,
}
