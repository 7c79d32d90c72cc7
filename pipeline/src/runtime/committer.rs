//! Makes settled positions last.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Host;
use super::backoff::Retries;
use super::supervisor::Shared;
use crate::ack::ReadAcks;
use crate::error::{Class, StageError};
use crate::ledger::Ledger;
use crate::positions::{PositionStore, SavedPositions};
use crate::stage::{Partition, PositionKeeping, Positions, Source};
use crate::units::Span;

/// Commits are durable writes or network calls; more often than this they only cost.
const COMMIT_EVERY: Duration = Duration::from_millis(100);

/// What has been read of a source, how far it is settled, and how far that is committed.
pub(crate) struct Committer {
    store: Arc<dyn PositionStore>,
    shared: Arc<Shared>,
    ledger: Ledger,
    /// What was read so far, by the source's name for it. Positions are saved under this, since the source may be on
    /// something else by then.
    identity: String,
    unsaved: Positions,
    saved: Positions,
    due: Option<Instant>,
    retries: Retries,
}

impl Committer {
    pub(crate) fn new(host: &Host, shared: Arc<Shared>) -> Self {
        Self {
            store: Arc::clone(&host.positions),
            shared,
            ledger: Ledger::default(),
            identity: String::new(),
            unsaved: Positions::new(),
            saved: Positions::new(),
            due: None,
            retries: Retries::new(Span::millis(100), Span::secs(10)),
        }
    }

    /// Where the source was left, if the runtime keeps that.
    pub(crate) async fn resume_at(&mut self, source: &mut dyn Source) -> Result<Positions, StageError> {
        self.identity = source.identity();
        if source.keeps_positions() == PositionKeeping::Runtime
            && let Some(saved) = self.store.load(&self.shared.name).await?
        {
            if saved.source == self.identity {
                self.saved = saved.positions;
            } else {
                tracing::warn!(
                    pipeline = %self.shared.name, was = %saved.source, now = %self.identity,
                    "the source has changed, kept positions are not used"
                );
            }
        }
        Ok(self.saved.clone())
    }

    pub(crate) fn read(&mut self, partition: Partition, acks: Arc<ReadAcks>) {
        self.ledger.push(partition, acks);
    }

    /// The source goes on with something else, such as the next file: no position so far is one of that.
    pub(crate) fn start_over(&mut self, source: &dyn Source) {
        self.identity = source.identity();
        self.ledger = Ledger::default();
        self.unsaved.clear();
        self.saved.clear();
    }

    /// Partitions that are read elsewhere now: nothing more is committed for them.
    pub(crate) fn forget(&mut self, partitions: &[Partition]) {
        for partition in partitions {
            self.ledger.forget(partition);
            self.unsaved.remove(partition);
        }
    }

    /// See [`Ledger::settled`].
    pub(crate) fn settled(&self, partition: &Partition) -> Option<u64> {
        self.ledger.settled(partition)
    }

    /// Records read and not yet committed, or committed behind one that is not settled.
    pub(crate) fn outstanding(&self) -> usize {
        self.ledger.outstanding()
    }

    /// When there is something to commit.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes settled batches off the ledger and plans a commit if positions moved.
    pub(crate) fn settle(&mut self, source: &dyn Source) {
        self.take_settled(source);
        if !self.unsaved.is_empty() && self.due.is_none() {
            self.due = Some(Instant::now() + COMMIT_EVERY);
        }
    }

    fn take_settled(&mut self, source: &dyn Source) {
        let moved = self.ledger.settle();
        self.shared.observe(self.ledger.outstanding(), source.lag());
        if source.keeps_positions() != PositionKeeping::None {
            self.unsaved.extend(moved);
        }
    }

    /// Commits what is settled. If that fails for a while it is tried again: nothing is lost meanwhile, only read
    /// again after a crash.
    pub(crate) async fn commit(&mut self, source: &mut dyn Source) -> Result<(), StageError> {
        self.due = None;
        self.settle(source);
        match self.save(source).await {
            Err(error) if error.class == Class::Retry => {
                let wait = self.retries.next();
                tracing::warn!(pipeline = %self.shared.name, %error, ?wait, "commit failed, will retry");
                self.shared.note_error(&error);
                self.due = Some(Instant::now() + wait);
                Ok(())
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.retries.reset();
                self.due = None;
                Ok(())
            }
        }
    }

    /// Commits at the end of a run, trying until it works; the caller bounds how long.
    pub(crate) async fn finish(&mut self, source: &mut dyn Source) -> Result<(), StageError> {
        loop {
            self.take_settled(source);
            match self.save(source).await {
                Err(error) if error.class == Class::Retry => {
                    let wait = self.retries.next();
                    tracing::warn!(pipeline = %self.shared.name, %error, ?wait, "last commit failed, will retry");
                    tokio::time::sleep(wait).await;
                }
                done => return done,
            }
        }
    }

    async fn save(&mut self, source: &mut dyn Source) -> Result<(), StageError> {
        if self.unsaved.is_empty() {
            return Ok(());
        }
        match source.keeps_positions() {
            PositionKeeping::None => {}
            PositionKeeping::Source => source.commit(&self.unsaved).await?,
            PositionKeeping::Runtime => {
                let mut positions = self.saved.clone();
                positions.extend(self.unsaved.clone());
                let saved = SavedPositions { source: self.identity.clone(), positions };
                self.store.save(&self.shared.name, &saved).await?;
                self.saved = saved.positions;
            }
        }
        self.unsaved.clear();
        Ok(())
    }
}
