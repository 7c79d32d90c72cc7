//! The task that reads a source, feeds the first segment and commits what is settled.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Retries;
use super::committer::Committer;
use super::lane::{Lane, wait_until};
use super::supervisor::Shared;
use super::{Failure, Host};
use crate::ack::{Place, ReadAcks};
use crate::batch::Batch;
use crate::error::{Class, StageError};
use crate::stage::{Partition, Read, ReadBatch, Source};
use crate::tap::Tap;
use crate::units::Span;

/// Records per read at the most. Larger batches save less than a nanosecond a record and fall out of the first cache.
const READ_RECORDS: usize = 256;
/// Records read past the oldest unsettled one. Bounds the ledger when a single record is stuck.
const MAX_OUTSTANDING: usize = 65_536;
/// Settled batches are taken off the ledger at the latest when this many records are in it.
const SETTLE_AT: usize = 8 * READ_RECORDS;

/// Reads, feeds and commits.
pub(crate) struct Reader {
    source: Box<dyn Source>,
    committer: Committer,
    shared: Arc<Shared>,
    tap: Arc<Tap>,
    name: Arc<str>,
    /// Whose positions are those of the batch read last.
    origin: Arc<str>,
    retries: Retries,
    /// After a failed read: when to read again.
    read_after: Option<Instant>,
}

impl Reader {
    pub(crate) fn new(
        host: &Host,
        source: Box<dyn Source>,
        shared: Arc<Shared>,
        name: Arc<str>,
        tap: Arc<Tap>,
    ) -> Self {
        Self {
            source,
            committer: Committer::new(host, Arc::clone(&shared)),
            shared,
            tap,
            name,
            origin: Arc::from(""),
            retries: Retries::new(Span::millis(100), Span::secs(10)),
            read_after: None,
        }
    }

    /// Opens the source where it was left.
    pub(crate) async fn open(&mut self) -> Result<(), Failure> {
        let resume =
            self.committer.resume_at(&mut *self.source).await.map_err(|error| self.failure(error))?;
        self.source.open(&resume).await.map_err(|error| self.failure(error))?;
        self.origin = self.source.origin().into();
        Ok(())
    }

    /// Reads until told to stop or the source ends, then until the lane has nothing parked. The lane is segment 0:
    /// what is fused to the source.
    pub(crate) async fn run(&mut self, mut lane: Lane, stop: &CancellationToken) -> Result<ReadEnd, Failure> {
        let mut end = None;
        loop {
            let due = lane.due();
            if let (Some(end), None) = (end, due) {
                return Ok(end);
            }
            let (commit_due, read_after) = (self.committer.due(), self.read_after);
            let room = !lane.is_full() && self.committer.outstanding() < MAX_OUTSTANDING;
            let may_read = end.is_none() && room && read_after.is_none();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                () = stop.cancelled(), if end.is_none() => end = Some(ReadEnd::Stopped),
                () = wait_until(commit_due), if commit_due.is_some() => self.commit().await?,
                () = wait_until(due), if due.is_some() => self.commit_along(lane.retry_due()).await??,
                () = wait_until(read_after), if read_after.is_some() && end.is_none() => self.read_after = None,
                // Nobody asks for more: only news of what is under way can change that.
                () = shared.progress.moved(), if commit_due.is_none() || !room => self.settle(),
                read = self.source.read(READ_RECORDS), if may_read => {
                    if let Some(ended) = self.take(&mut lane, read).await? {
                        end = Some(ended);
                    }
                }
            }
        }
    }

    /// Deals with what a read brought.
    async fn take(
        &mut self,
        lane: &mut Lane,
        read: Result<Read, StageError>,
    ) -> Result<Option<ReadEnd>, Failure> {
        match read {
            Ok(Read::Batch(batch)) => {
                self.retries.reset();
                self.feed(lane, batch).await?;
                Ok(None)
            }
            Ok(Read::Gone(partitions)) => {
                self.committer.forget(&partitions);
                Ok(None)
            }
            Ok(Read::End) => Ok(Some(ReadEnd::Ended)),
            Err(error) if error.class == Class::Retry => {
                let wait = self.retries.next();
                tracing::warn!(pipeline = %self.shared.name, %error, ?wait, "read failed, will retry");
                self.shared.note_error(&error);
                self.read_after = Some(Instant::now() + wait);
                Ok(None)
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Takes a batch into the ledger and through the lane, committing while the lane is held up.
    async fn feed(&mut self, lane: &mut Lane, read: ReadBatch) -> Result<(), Failure> {
        let batch = self.register(read);
        if self.tap.is_watched() {
            self.tap.show(&self.shared.name, &self.name, batch.records());
        }
        self.commit_along(lane.feed(batch)).await??;
        if self.committer.outstanding() >= SETTLE_AT {
            self.settle();
        }
        // A source that always has more, fused to stages that never wait, would keep the thread to itself.
        tokio::task::coop::consume_budget().await;
        Ok(())
    }

    /// Gives every record of a read batch its handle.
    fn register(&mut self, read: ReadBatch) -> Batch {
        let ReadBatch { partition, mut records, resume_at, replies } = read;
        let place = self.place(partition.clone());
        let acks = ReadAcks::new(place, resume_at, replies, Arc::clone(&self.shared.progress));
        records.take_seats(Arc::clone(&acks));
        self.committer.read(partition, acks);
        records
    }

    /// Where a read batch comes from. A source may change what it reads on the way, as when a file is rotated.
    fn place(&mut self, partition: Partition) -> Place {
        let positions_last = self.source.positions_last();
        if positions_last {
            let origin = self.source.origin();
            if *origin != *self.origin {
                self.origin = origin.into();
                self.committer.start_over(&*self.source);
            }
        }
        let settled = self.committer.settled(&partition);
        Place { source: Arc::clone(&self.origin), partition, settled, positions_last }
    }

    /// Waits for `work`, committing what is settled meanwhile. A commit is never broken off for it.
    pub(crate) async fn commit_along<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let mut work = std::pin::pin!(work);
        loop {
            let due = self.committer.due();
            let shared = Arc::clone(&self.shared);
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = wait_until(due), if due.is_some() => self.commit().await?,
                () = shared.progress.moved(), if due.is_none() => self.settle(),
            }
        }
    }

    fn settle(&mut self) {
        self.committer.settle(&*self.source);
    }

    async fn commit(&mut self) -> Result<(), Failure> {
        self.committer.commit(&mut *self.source).await.map_err(|error| self.failure(error))
    }

    /// The last commit of a run, after everything has its disposition, unless what was settled may not have lasted.
    pub(crate) async fn close(&mut self, commit: LastCommit) -> Result<(), Failure> {
        let committed = match commit {
            LastCommit::Make => self.committer.finish(&mut *self.source).await,
            LastCommit::LeaveOut => Ok(()),
        };
        let closed = self.source.close().await;
        committed.and(closed).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: impl fmt::Display) -> Failure {
        Failure::new(&self.name, error)
    }
}

/// Whether a run's last commit may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastCommit {
    Make,
    /// A stage could not close, so what it took may be lost; its source offers it again.
    LeaveOut,
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// On request.
    Stopped,
    /// The source has no more.
    Ended,
}
