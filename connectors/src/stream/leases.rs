//! The leases of one group as one of its workers writes them.

use std::sync::Arc;
use std::time::SystemTime;

use super::{StreamOptions, StreamStore};
use crate::model::tables::stream_leases::{self, Group, Hold, Lease, Lost, Place};
use crate::model::{Timestamp, WorkerId};
use crate::store::{Durability, Remedy, Result, Returning, ShardId, StoreError, Transaction, Write};

pub(super) struct Leases {
    store: Arc<dyn StreamStore>,
    group: String,
    pub(super) worker: WorkerId,
}

impl Leases {
    pub(super) fn new(store: Arc<dyn StreamStore>, options: &StreamOptions) -> Self {
        // a group reads several tables apart
        let group = format!("{}/{}", options.group, options.table);
        Self { store, group, worker: options.worker.clone() }
    }

    pub(super) async fn look(&self) -> Result<(Option<Group>, Vec<Lease>)> {
        stream_leases::of_group(&*self.store, &self.group).await
    }

    /// Does nothing if somebody else has begun it.
    pub(super) async fn begin(&self, since: Timestamp) -> Result<()> {
        or_was(self.write(stream_leases::begin_write(&self.group, since)).await)
    }

    /// Does nothing if it is known.
    pub(super) async fn add(&self, shard: &ShardId, parent: Option<&ShardId>) -> Result<()> {
        or_was(self.write(stream_leases::add_write(&self.group, shard, parent)).await)
    }

    /// The lease with its new term; `None` if somebody was faster, or its holder has given a sign of life.
    pub(super) async fn take(&self, seen: &Lease) -> Result<Option<Lease>> {
        match self.write(stream_leases::take_write(&self.group, seen, &self.worker)).await {
            Err(StoreError::ConditionFailed { .. }) => Ok(None),
            taken => taken,
        }
    }

    pub(super) async fn want(&self, seen: &Lease) -> Result<()> {
        or_was(self.write(stream_leases::want_write(&self.group, seen, &self.worker)).await)
    }

    pub(super) async fn forget(&self, seen: &Lease) -> Result<()> {
        let forget = stream_leases::forget_write(&self.group, seen);
        or_was(self.store.write(forget, Returning::Nothing, Durability::Ordered).await)
    }

    /// Fails with [`StoreError::ConditionFailed`] if the lease is another's, like all that follow.
    pub(super) async fn renew(&self, shard: &ShardId, term: u64) -> Result<Option<Lease>> {
        self.write(self.hold(shard, term).renew_write()).await
    }

    pub(super) async fn note(&self, shard: &ShardId, term: u64, place: &Place) -> Result<()> {
        self.write(self.hold(shard, term).note_write(place)).await.map(drop)
    }

    pub(super) async fn release(&self, shard: &ShardId, term: u64, place: &Place) -> Result<()> {
        self.write(self.hold(shard, term).release_write(place)).await.map(drop)
    }

    pub(super) async fn end_scan(
        &self,
        shard: &ShardId,
        term: u64,
        scans: u64,
        until: SystemTime,
    ) -> Result<()> {
        let writes = self.hold(shard, term).end_scan_writes(scans, until.into()).into();
        match self.store.transact(Transaction { writes, token: None }).await {
            Err(error @ StoreError::TransactionCanceled { .. }) if error.remedy() == Remedy::GiveUp => {
                Err(StoreError::ConditionFailed { current: None })
            }
            ended => ended,
        }
    }

    /// Whether it has begun; not if the group has changed, as when another has begun one. A store that asks to come
    /// again is an error.
    pub(super) async fn begin_scan(&self, seen: &Group, lost: &[(&Lease, Lost)]) -> Result<bool> {
        let writes = stream_leases::begin_scan_writes(&self.group, seen, lost);
        match self.store.transact(Transaction { writes, token: None }).await {
            Ok(()) => Ok(true),
            Err(error @ StoreError::TransactionCanceled { .. }) if error.remedy() == Remedy::GiveUp => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn hold<'a>(&'a self, shard: &'a ShardId, term: u64) -> Hold<'a> {
        Hold { group: &self.group, shard, worker: &self.worker, term }
    }

    /// Ordered and not synced: what a crash of the machine takes back is only done again.
    async fn write(&self, write: Write) -> Result<Option<Lease>> {
        let returning = match write {
            Write::Update { .. } => Returning::New,
            _ => Returning::Nothing,
        };
        let written = self.store.write(write, returning, Durability::Ordered).await?;
        stream_leases::after_write(written.as_ref())
    }
}

/// Somebody else was faster, which is as good.
fn or_was<T>(answer: Result<T>) -> Result<()> {
    match answer {
        Ok(_) | Err(StoreError::ConditionFailed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
