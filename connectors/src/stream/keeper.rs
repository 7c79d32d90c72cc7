//! The task that keeps a worker's leases: signs of life, new shards, whose turn it is, and what to do about lost changes.
//!
//! It does not depend on the worker being asked for changes: a pipeline that is held up keeps its shards. What it finds
//! out it leaves in [`Shared`], and the worker acts on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::compare::Compared;
use super::leases::Leases;
use super::share::{Plan, Standing};
use super::shared::{Part, Shared};
use super::{InPlaceOfLost, StreamOptions, StreamStart, StreamStore, wall_clock};
use crate::model::Timestamp;
use crate::model::tables::stream_leases::{Group, Lease, Lost, SCAN};
use crate::store::{Remedy, Result, Shard, ShardId, ShardStart, StoreError};

/// Signs of life in the time of a lease: several may be late before anybody takes over.
const BEATS: u32 = 4;
/// While somebody is to let go for us.
const SOON: Duration = Duration::from_millis(100);
/// Stores tell when a change happened in whole seconds: one of this second may look older than it is.
const WHOLE_SECONDS: Duration = Duration::from_secs(1);
/// Shards whose loss is written in one transaction; it holds a hundred writes.
const LOST_AT_ONCE: usize = 90;

/// Stops when it is dropped.
pub(super) struct Keeper(JoinSet<()>);

impl Keeper {
    pub(super) fn start(
        store: Arc<dyn StreamStore>,
        leases: Arc<Leases>,
        options: Arc<StreamOptions>,
        shared: Arc<Shared>,
    ) -> Self {
        let rounds = Rounds { store, leases, options, shared, seen: BTreeMap::new(), listed: None };
        let mut task = JoinSet::new();
        task.spawn(rounds.run());
        Self(task)
    }

    /// Returns once it does nothing any more.
    pub(super) async fn stop(&mut self) {
        self.0.shutdown().await;
    }
}

struct Rounds {
    store: Arc<dyn StreamStore>,
    leases: Arc<Leases>,
    options: Arc<StreamOptions>,
    shared: Arc<Shared>,
    /// Of leases of others, the term and beat seen last, and since when they are the same.
    seen: BTreeMap<ShardId, (u64, u64, Instant)>,
    /// When shards were listed last, and which there were.
    listed: Option<(Instant, Vec<Shard>)>,
}

impl Rounds {
    async fn run(mut self) {
        loop {
            let done = self.round().await;
            if done.is_err() {
                // A store that does not answer us may not answer the others either: nobody is late for that.
                self.seen.clear();
            }
            let pause = match done {
                Ok(pause) => pause,
                Err(error) if error.remedy() == Remedy::Stop => {
                    self.shared.fail(error);
                    self.options.lease
                }
                Err(error) => {
                    tracing::warn!(group = self.options.group, table = %self.options.table, %error, "leases cannot be kept, will retry");
                    self.beat()
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.shared.wanted() => self.listed = None,
            }
        }
    }

    fn beat(&self) -> Duration {
        self.options.lease / BEATS
    }

    /// Looks at the group and does what is to be done; how long to wait for the next time.
    async fn round(&mut self) -> Result<Duration> {
        self.renew().await?;
        let (group, leases) = self.leases.look().await?;
        let Some(group) = group else {
            let since = match self.options.start {
                StreamStart::Oldest => Timestamp::from_unix_millis(0),
                StreamStart::Latest => (wall_clock() - WHOLE_SECONDS).into(),
            };
            self.leases.begin(since).await?;
            return Ok(Duration::ZERO);
        };
        self.shared.set_scans(group.scans);
        if self.learn_shards(&group, &leases).await? {
            return Ok(Duration::ZERO);
        }
        self.drop_what_is_not_ours(&leases);
        let parts = self.shared.parts();
        if group.is_scanning {
            parts.keys().filter(|shard| shard.0 != SCAN).for_each(|shard| self.shared.let_go(shard));
        }
        let (held, expired) = (parts.into_keys().collect(), self.expired(&leases));
        let is_scanning = group.is_scanning;
        let me = &self.leases.worker;
        let plan = Standing { leases: &leases, is_scanning, me, held: &held, expired: &expired }.plan();
        let waits = plan.ask_for.is_some() || leases.iter().any(|lease| lease.wanted_by.as_ref() == Some(me));
        self.carry_out(&plan, &group).await?;
        Ok(if waits || is_scanning { SOON.min(self.beat()) } else { self.beat() })
    }

    /// Writes signs of life, and hears who is to let go.
    async fn renew(&self) -> Result<()> {
        let asked_at = Instant::now();
        let parts = self.shared.parts();
        let renewals = parts.iter().map(|(shard, part)| self.leases.renew(shard, part.term));
        let mut failed = Ok(());
        for ((shard, part), renewed) in parts.iter().zip(join_all(renewals).await) {
            match renewed {
                Ok(lease) => {
                    self.shared.renewed(shard, part.term, self.valid_until(asked_at));
                    if lease.is_some_and(|lease| lease.wanted_by.is_some()) {
                        self.shared.let_go(shard);
                    }
                }
                Err(StoreError::ConditionFailed { .. }) => self.shared.lose(shard, part.term),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Others take over no sooner than a whole lease after they saw this sign of life, which was later than it was
    /// asked for. The last third is for what is still on its way through the pipeline then.
    fn valid_until(&self, asked_at: Instant) -> Instant {
        asked_at + self.options.lease * 2 / 3
    }

    /// Whoever has no lease although we thought we had it.
    fn drop_what_is_not_ours(&self, leases: &[Lease]) {
        for (shard, part) in self.shared.parts() {
            let ours =
                leases.iter().find(|lease| lease.shard == shard).is_some_and(|lease| lease.term == part.term);
            if !ours {
                self.shared.lose(&shard, part.term);
            }
        }
    }

    /// Leases whose holders gave no sign of life for as long as a lease lasts, by our own clock, and those that nobody
    /// has, although somebody asked for them as long ago.
    fn expired(&mut self, leases: &[Lease]) -> BTreeSet<ShardId> {
        let now = Instant::now();
        let mut expired = BTreeSet::new();
        let mut seen = BTreeMap::new();
        for lease in leases.iter().filter(|lease| lease.holder.is_some() || lease.wanted_by.is_some()) {
            let known = self
                .seen
                .get(&lease.shard)
                .filter(|(term, beat, _)| (*term, *beat) == (lease.term, lease.beat));
            let since = known.map_or(now, |(_, _, since)| *since);
            if now - since >= self.options.lease {
                expired.insert(lease.shard.clone());
            }
            seen.insert(lease.shard.clone(), (lease.term, lease.beat, since));
        }
        self.seen = seen;
        expired
    }

    async fn carry_out(&self, plan: &Plan<'_>, group: &Group) -> Result<()> {
        let asked_at = Instant::now();
        let taken = join_all(plan.take.iter().map(|lease| self.leases.take(lease))).await;
        for lease in taken {
            let Some(Lease { shard, term, mut place, .. }) = lease? else { continue };
            tracing::debug!(table = %self.options.table, shard = %shard.0, term, "reads a shard");
            if shard.0 == SCAN {
                // A page that is read again may hold other items: none has the number that another had.
                place.count = term << 32;
            }
            let valid_until = self.valid_until(asked_at);
            let part = Part { term, place, valid_until, is_leaving: false, window: group.into() };
            self.shared.hold(shard, part);
        }
        match plan.ask_for {
            Some(lease) => self.leases.want(lease).await,
            None => Ok(()),
        }
    }

    /// Adds new shards to the group, forgets those that are over, and begins a scan if changes are lost; whether
    /// anything of that was written which others go by.
    async fn learn_shards(&mut self, group: &Group, leases: &[Lease]) -> Result<bool> {
        let trimmed = self.shared.trimmed();
        let is_trimmed = |lease: &&Lease| trimmed.contains(&(lease.shard.clone(), lease.term));
        let trimmed: Vec<&Lease> = leases.iter().filter(is_trimmed).collect();
        let is_settled = |(at, listed): &(Instant, Vec<Shard>)| {
            let is_nothing = || trimmed.is_empty() && Compared::of(listed, leases).is_nothing();
            // While a scan is under way nobody reads a shard, and no other scan begins.
            at.elapsed() < self.options.list_shards_every && (group.is_scanning || is_nothing())
        };
        if self.listed.as_ref().is_some_and(is_settled) {
            return Ok(false);
        }
        // Anything new is looked at anew: a list from before the leases were read does not have the shards that others
        // have added since, and may have some that they have forgotten.
        let listed = self.store.shards(&self.options.table).await?;
        self.listed = Some((Instant::now(), listed.clone()));
        let Compared { new, unseen, gone, over } = Compared::of(&listed, leases);
        let (gone, over) = (self.surely_gone(gone).await?, self.surely_gone(over).await?);
        let is_lost = |lease: &&Lease| !gone.iter().any(|gone| gone.shard == lease.shard);
        let parts = trimmed.into_iter().filter(is_lost).map(|lease| (lease, Lost::Part));
        let lost: Vec<_> = gone.iter().map(|lease| (*lease, Lost::Whole)).chain(parts).collect();
        let missed = self.missed(&unseen).await?;
        let begins = (missed || !lost.is_empty()) && !group.is_scanning;
        if begins && !self.begin_scan(group, &lost).await? {
            // The group has changed. What was missed is found again only as long as nothing new is added.
            return Ok(false);
        }
        for shard in &new {
            self.leases.add(&shard.id, shard.parent.as_ref()).await?;
        }
        join_all(over.iter().map(|lease| self.leases.forget(lease)))
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        Ok(begins || !new.is_empty())
    }

    async fn begin_scan(&self, group: &Group, lost: &[(&Lease, Lost)]) -> Result<bool> {
        // The others are found again after it.
        let begun = self.leases.begin_scan(group, &lost[..lost.len().min(LOST_AT_ONCE)]).await?;
        if begun {
            self.tell_lost(lost.len());
        }
        Ok(begun)
    }

    fn tell_lost(&self, shards: usize) {
        let StreamOptions { group: name, table, in_place_of_lost, .. } = &*self.options;
        match in_place_of_lost {
            InPlaceOfLost::Scan => tracing::warn!(group = name, %table, shards,
                "changes were removed before they were read; the whole table is scanned in their place"),
            InPlaceOfLost::Nothing => tracing::warn!(group = name, %table, shards,
                "changes were removed before they were read; nothing stands in for them"),
        }
    }

    /// Of shards that were not listed, those that cannot be read either: lists can be behind.
    async fn surely_gone<'a>(&self, unlisted: Vec<&'a Lease>) -> Result<Vec<&'a Lease>> {
        let mut gone = Vec::new();
        for lease in unlisted {
            if self.is_gone(&lease.shard).await? {
                gone.push(lease);
            }
        }
        Ok(gone)
    }

    /// Whether any of these parents is gone. One that is only missing in the list is added, so that it is read first.
    async fn missed(&self, unseen: &[&ShardId]) -> Result<bool> {
        let mut missed = false;
        for parent in unseen {
            if self.is_gone(parent).await? {
                missed = true;
            } else {
                self.leases.add(parent, None).await?;
            }
        }
        Ok(missed)
    }

    async fn is_gone(&self, shard: &ShardId) -> Result<bool> {
        match self.store.open_shard(&self.options.table, shard, ShardStart::Oldest).await {
            Ok(_) => Ok(false),
            Err(StoreError::Trimmed { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
