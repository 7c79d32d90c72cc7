//! Following a table's changes across shards, from where it was left.
//!
//! A change stream is a forest of shards that end and go on in their children. The [`Follower`] reads several of them at
//! once, a child only after everything of its parent was handed out, so that changes of one item come in order. It
//! hands out batches, is told what of them is done, and gives its positions as plain data to be kept anywhere.
//!
//! Positions are always a consistent cut: nothing counts as done before everything that happened earlier to the same
//! item is. So a child's progress is not in them while its parent's is not complete, and reading on from them repeats
//! what was not done, in order, and skips nothing. Memory is bounded by the number of reads under way times the size
//! of a batch.
//!
//! Rejected: a task per shard with a channel. Stopping, resuming and the order of parents and children would then be a
//! conversation between tasks; here it is a table that one loop looks at.

mod positions;
#[cfg(test)]
mod property;
mod shards;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

pub use positions::{FollowPositions, ShardPosition};
use shards::{DueRead, Shards};

use super::changes::{Change, ChangeStream, SequenceNumber, Shard, ShardId, ShardRead, ShardReader};
use super::error::{Remedy, StoreError};
use super::value::Name;

/// Where to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the oldest changes that are kept.
    Oldest,
    /// With what happens after the first call of [`Follower::next`].
    Latest,
    /// Where a follower was before.
    Positions(FollowPositions),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowOptions {
    /// Changes handed out at a time.
    pub batch: NonZeroUsize,
    /// Shards read at the same moment; the others take turns.
    pub concurrent_reads: NonZeroUsize,
    /// How long to wait before a shard is read again that had nothing more; doubled while it stays so.
    pub idle_wait: Duration,
    pub longest_idle_wait: Duration,
    /// How often to look for new shards, beside whenever one ends.
    pub list_shards_every: Duration,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            // what one read of DynamoDB returns at most
            batch: NonZeroUsize::new(1000).expect("not zero"),
            concurrent_reads: NonZeroUsize::new(8).expect("not zero"),
            // DynamoDB allows five reads of a shard per second
            idle_wait: Duration::from_millis(200),
            longest_idle_wait: Duration::from_secs(1),
            list_shards_every: Duration::from_secs(10),
        }
    }
}

/// Changes of one shard, in order; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeBatch {
    pub changes: Vec<Change>,
    /// To be given back once all of them are done.
    pub checkpoint: Checkpoint,
}

/// Everything of this shard up to here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub shard: ShardId,
    pub through: SequenceNumber,
}

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Changes are gone that were not handed out. What was derived from them must be built anew.
    #[error("changes in shard '{}' of table '{table}' are not kept any more; rebuild from a scan", .shard.0)]
    Trimmed { table: Name, shard: ShardId },
    #[error("shard '{}' of table '{table}' cannot be read: {source}", .shard.0)]
    Read { table: Name, shard: ShardId, source: StoreError },
    #[error("the shards of table '{table}' cannot be listed: {source}")]
    List { table: Name, source: StoreError },
}

impl FollowError {
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Trimmed { .. } => Remedy::Stop,
            Self::Read { source, .. } | Self::List { source, .. } => source.remedy(),
        }
    }
}

/// Something that was under way and is done.
enum Done {
    Listed(Result<Vec<Shard>, StoreError>),
    /// The reader, unless the shard could not be opened.
    Read(ShardId, Option<Box<dyn ShardReader>>, Result<ShardRead, StoreError>),
}

pub struct Follower {
    stream: Arc<dyn ChangeStream>,
    table: Name,
    options: FollowOptions,
    shards: Shards,
    /// At most one listing and `concurrent_reads` reads. They belong to the follower and not to a call of `next`, so
    /// that a call can be dropped.
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// `None` while a listing is under way.
    list_at: Option<Instant>,
}

impl Follower {
    /// Touches nothing yet.
    pub fn new(
        stream: Arc<dyn ChangeStream>,
        table: impl Into<Name>,
        from: FollowFrom,
        options: FollowOptions,
    ) -> Self {
        Self {
            stream,
            table: table.into(),
            options,
            shards: Shards::new(from),
            under_way: FuturesUnordered::new(),
            list_at: Some(Instant::now()),
        }
    }

    /// Waits for the next changes. Cancel-safe: a dropped call loses nothing. After an error the follower goes on with
    /// the next call, with a pause before what failed; whether to call again is the caller's decision, see
    /// [`FollowError::remedy`].
    pub async fn next(&mut self) -> Result<ChangeBatch, FollowError> {
        loop {
            self.begin_what_is_due();
            let wake_at = self.wake_at();
            tokio::select! {
                Some(done) = self.under_way.next() => {
                    if let Some(batch) = self.settle(done)? {
                        return Ok(batch);
                    }
                }
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// Says that everything of a shard up to there is done. Batches of one shard are done in any order, but their
    /// checkpoints are given in order; an earlier one than before changes nothing.
    pub fn checkpoint(&mut self, checkpoint: &Checkpoint) {
        self.shards.done_through(&checkpoint.shard, &checkpoint.through);
    }

    /// Where to go on after what was checkpointed.
    pub fn positions(&self) -> FollowPositions {
        self.shards.positions()
    }

    fn begin_what_is_due(&mut self) {
        let now = Instant::now();
        if self.list_at.is_some_and(|at| at <= now) {
            self.list_at = None;
            let (stream, table) = (Arc::clone(&self.stream), self.table.clone());
            self.under_way.push(Box::pin(async move { Done::Listed(stream.shards(&table).await) }));
        }
        while self.may_begin_a_read()
            && let Some(DueRead { shard, start, reader }) = self.shards.take_due(now)
        {
            let (stream, table) = (Arc::clone(&self.stream), self.table.clone());
            let batch = self.options.batch.get();
            self.under_way.push(Box::pin(async move {
                let opened = match reader {
                    Some(reader) => Ok(reader),
                    None => stream.open_shard(&table, &shard, start).await,
                };
                match opened {
                    Ok(mut reader) => {
                        let read = reader.read(batch).await;
                        Done::Read(shard, Some(reader), read)
                    }
                    Err(error) => Done::Read(shard, None, Err(error)),
                }
            }));
        }
    }

    fn may_begin_a_read(&self) -> bool {
        let listings = usize::from(self.list_at.is_none());
        self.under_way.len() - listings < self.options.concurrent_reads.get()
    }

    /// When something becomes due. While no read may begin, only a listing can.
    fn wake_at(&self) -> Instant {
        let due = if self.may_begin_a_read() { self.shards.next_due() } else { None };
        let far = Instant::now() + self.options.list_shards_every;
        [due, self.list_at].into_iter().flatten().min().unwrap_or(far)
    }

    fn settle(&mut self, done: Done) -> Result<Option<ChangeBatch>, FollowError> {
        match done {
            Done::Listed(listed) => self.settle_listing(listed).map(|()| None),
            Done::Read(shard, reader, read) => self.settle_read(shard, reader, read),
        }
    }

    fn settle_listing(&mut self, listed: Result<Vec<Shard>, StoreError>) -> Result<(), FollowError> {
        let now = Instant::now();
        // after an error, soon again
        self.list_at = Some(now + self.options.longest_idle_wait);
        let table = || self.table.clone();
        let listed = listed.map_err(|source| FollowError::List { table: table(), source })?;
        self.shards.update(&listed, now).map_err(|shard| FollowError::Trimmed { table: table(), shard })?;
        self.list_at = Some(now + self.options.list_shards_every);
        Ok(())
    }

    fn settle_read(
        &mut self,
        shard: ShardId,
        reader: Option<Box<dyn ShardReader>>,
        read: Result<ShardRead, StoreError>,
    ) -> Result<Option<ChangeBatch>, FollowError> {
        let now = Instant::now();
        let FollowOptions { batch, idle_wait, longest_idle_wait, .. } = self.options;
        match read {
            Ok(ShardRead::Changes(changes)) => {
                let Some(last) = changes.last().map(|change| change.sequence.clone()) else {
                    self.shards.idle(&shard, reader, now, idle_wait, longest_idle_wait);
                    return Ok(None);
                };
                // a full batch means that more is waiting
                let wait = if changes.len() < batch.get() { idle_wait } else { Duration::ZERO };
                self.shards.handed_out(&shard, last.clone(), reader, now + wait);
                Ok(Some(ChangeBatch { changes, checkpoint: Checkpoint { shard, through: last } }))
            }
            Ok(ShardRead::Ended) => {
                self.shards.ended(&shard);
                if self.list_at.is_some() {
                    self.list_at = Some(now);
                }
                Ok(None)
            }
            Err(error) => {
                self.shards.failed(&shard, reader, now + longest_idle_wait);
                let table = self.table.clone();
                Err(match error {
                    StoreError::Trimmed { .. } => FollowError::Trimmed { table, shard },
                    source => FollowError::Read { table, shard, source },
                })
            }
        }
    }
}
