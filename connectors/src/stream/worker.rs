//! A worker of a group: hands out changes of the shards it holds, and lets go of those it does not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::feed::{Feed, Next};
use super::keeper::Keeper;
use super::leases::Leases;
use super::read::{self, Cursor, Found, ReadJob};
use super::shared::Shared;
use super::{Handed, InPlaceOfLost, StreamEvent, StreamOptions, StreamStore, wall_clock};
use crate::model::tables::stream_leases::{At, Place, SCAN};
use crate::store::{Result, ShardId, StoreError};

/// One worker of a group. Dropped without [`close`](Self::close), it is as if it had died.
pub struct StreamWorker {
    store: Arc<dyn StreamStore>,
    options: Arc<StreamOptions>,
    leases: Arc<Leases>,
    shared: Arc<Shared>,
    keeper: Keeper,
    feeds: BTreeMap<ShardId, Feed>,
    /// In turns, so that a busy shard does not starve the others.
    turns: VecDeque<ShardId>,
    gone: Vec<ShardId>,
    /// Reads and releases. They belong to the worker and not to a call of `next`, so that a call can be dropped.
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// Something that was under way, in a term of a shard, and is done.
struct Done {
    shard: ShardId,
    term: u64,
    what: What,
}

enum What {
    Read(Cursor, Result<Found>),
    Released(Result<()>),
    CalledOff,
}

impl StreamWorker {
    /// Joins the group, which begins in the background.
    pub fn join(store: Arc<dyn StreamStore>, options: StreamOptions) -> Self {
        let leases = Arc::new(Leases::new(Arc::clone(&store), &options));
        let (options, shared) = (Arc::new(options), Arc::new(Shared::default()));
        let keeper =
            Keeper::start(Arc::clone(&store), Arc::clone(&leases), Arc::clone(&options), Arc::clone(&shared));
        Self {
            store,
            options,
            leases,
            shared,
            keeper,
            feeds: BTreeMap::new(),
            turns: VecDeque::new(),
            gone: Vec::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    /// Waits for changes and returns at most `max`. Cancel-safe: a dropped call loses nothing. After an error it goes
    /// on with the next call; whether to call again is the caller's decision, see [`StoreError::remedy`].
    pub async fn next(&mut self, max: usize) -> Result<StreamEvent> {
        loop {
            if let Some(error) = self.shared.take_failure() {
                return Err(error);
            }
            self.follow_leases();
            if !self.gone.is_empty() {
                return Ok(StreamEvent::Gone(std::mem::take(&mut self.gone)));
            }
            if let Some(handed) = self.hand_out(max) {
                return Ok(StreamEvent::Changes(handed));
            }
            let wake_at = self.begin_what_is_due();
            tokio::select! {
                Some(done) = self.under_way.next() => self.settle(done)?,
                () = self.shared.changed() => {}
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            }
        }
    }

    /// Everything of these shards up to these numbers is done. Returns once that is written; what could not be is
    /// written with the next call.
    pub async fn done(&mut self, through: impl IntoIterator<Item = (ShardId, u64)>) -> Result<()> {
        for (shard, number) in through {
            if let Some(feed) = self.feeds.get_mut(&shard) {
                feed.done(number);
            }
        }
        self.tell_lag();
        let unwritten = self.feeds.iter_mut().filter(|(_, feed)| feed.is_unwritten());
        let leases = &self.leases;
        let writes = unwritten.map(|(shard, feed)| async move {
            let place = feed.place().clone();
            let written = leases.note(shard, feed.term, &place).await;
            (shard, feed, place, written)
        });
        let mut failed = Ok(());
        for (shard, feed, place, written) in join_all(writes).await {
            match written {
                Ok(()) => feed.wrote(place),
                Err(StoreError::ConditionFailed { .. }) => self.shared.lose(shard, feed.term),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Tells since when this worker is behind: when the oldest change happened that was read and is not done, or since
    /// when a shard cannot be read.
    pub fn behind_since(&self) -> impl Fn() -> Option<SystemTime> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.behind_since()
    }

    /// The shards that this worker has.
    pub fn shards(&self) -> Vec<ShardId> {
        self.shared.parts().into_keys().collect()
    }

    /// Lets go of everything, so that others need not wait.
    pub async fn close(mut self) -> Result<()> {
        self.keeper.stop().await;
        // Whatever was being let go has its chance here: it is asked again, and refused if it was done.
        self.under_way.clear();
        let places: Vec<(ShardId, u64, Place)> = self
            .shared
            .parts()
            .into_iter()
            .map(|(shard, part)| {
                let feed = self.feeds.get(&shard).filter(|feed| feed.term == part.term);
                // An end that is not written yet is found again.
                let place = feed.map(Feed::place).filter(|place| place.at != At::Ended).cloned();
                (shard, part.term, place.unwrap_or(part.place))
            })
            .collect();
        let leases = Arc::clone(&self.leases);
        let releases = places.iter().map(|(shard, term, place)| leases.release(shard, *term, place));
        let mut closed = Ok(());
        for released in join_all(releases).await {
            if let Err(error) = released
                && !matches!(error, StoreError::ConditionFailed { .. })
            {
                closed = Err(error);
            }
        }
        closed
    }

    /// Begins and ends feeds as leases came and went.
    fn follow_leases(&mut self) {
        let parts = self.shared.parts();
        let is_lost =
            |shard: &ShardId, feed: &Feed| parts.get(shard).is_none_or(|part| part.term != feed.term);
        let lost = self.feeds.iter().filter(|(shard, feed)| is_lost(shard, feed));
        let lost: Vec<ShardId> = lost.map(|(shard, _)| shard.clone()).collect();
        self.feeds.retain(|shard, _| !lost.contains(shard));
        self.turns.retain(|shard| !lost.contains(shard));
        if !lost.is_empty() {
            self.tell_lag(); // what was open in them is no more our business
        }
        self.gone.extend(lost);
        for (shard, part) in parts {
            if let Some(feed) = self.feeds.get_mut(&shard) {
                feed.follow(&part);
            } else {
                self.turns.push_back(shard.clone());
                self.feeds.insert(shard, Feed::new(part));
            }
        }
    }

    fn hand_out(&mut self, max: usize) -> Option<Handed> {
        let now = Instant::now();
        for _ in 0..self.turns.len() {
            let shard = self.turns.pop_front()?;
            self.turns.push_back(shard.clone());
            let handed = self.feeds.get_mut(&shard).and_then(|feed| feed.hand_out(max, now));
            if let Some(changes) = handed {
                self.tell_lag();
                let is_scanned = shard.0 == SCAN;
                return Some(Handed { shard, changes, is_scanned });
            }
        }
        None
    }

    fn tell_lag(&self) {
        self.shared.set_behind_since(self.feeds.values().filter_map(Feed::behind_since).min());
    }

    /// Begins what can begin; when something else becomes due.
    fn begin_what_is_due(&mut self) -> Option<Instant> {
        let (now, mut wake_at) = (Instant::now(), None::<Instant>);
        for (shard, feed) in &mut self.feeds {
            let (shard, term) = (shard.clone(), feed.term);
            match feed.next(now) {
                Next::Read(start, cursor) => {
                    let stopped = feed.stopped();
                    let job = ReadJob {
                        store: Arc::clone(&self.store),
                        leases: Arc::clone(&self.leases),
                        options: Arc::clone(&self.options),
                        shard: shard.clone(),
                        term,
                        window: feed.window,
                        start,
                    };
                    self.under_way.push(Box::pin(async move {
                        let what = tokio::select! {
                            (cursor, found) = job.run(cursor) => What::Read(cursor, found),
                            () = stopped.cancelled() => What::CalledOff,
                        };
                        Done { shard, term, what }
                    }));
                }
                Next::Release(place) => {
                    let (leases, scans) = (Arc::clone(&self.leases), self.shared.scans());
                    let options = Arc::clone(&self.options);
                    self.under_way.push(Box::pin(async move {
                        let released = release(&leases, &options, &shard, term, &place, scans).await;
                        let what = What::Released(released);
                        Done { shard, term, what }
                    }));
                }
                Next::At(at) => wake_at = Some(wake_at.map_or(at, |earlier| earlier.min(at))),
                Next::Waits => {}
            }
        }
        wake_at
    }

    fn settle(&mut self, Done { shard, term, what }: Done) -> Result<()> {
        let Some(feed) = self.feeds.get_mut(&shard).filter(|feed| feed.term == term) else { return Ok(()) };
        match what {
            What::CalledOff => feed.called_off(),
            What::Read(cursor, Ok(found)) => {
                feed.found(cursor, found);
                self.tell_lag();
            }
            What::Released(Ok(())) => {
                self.shared.released(&shard, term);
                self.feeds.remove(&shard);
                self.turns.retain(|turn| *turn != shard);
                self.gone.push(shard);
            }
            What::Read(_, Err(StoreError::ConditionFailed { .. }))
            | What::Released(Err(StoreError::ConditionFailed { .. })) => self.shared.lose(&shard, term),
            What::Read(_, Err(StoreError::Trimmed { .. })) => {
                feed.stop();
                self.shared.report_trimmed(shard, term);
            }
            What::Read(_, Err(error)) => {
                feed.read_failed(Instant::now() + self.options.longest_idle_wait);
                self.tell_lag();
                return Err(error);
            }
            What::Released(Err(error)) => {
                feed.release_failed();
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Lets a shard go. At the end of a scan the group goes back to its shards.
async fn release(
    leases: &Leases,
    options: &StreamOptions,
    shard: &ShardId,
    term: u64,
    place: &Place,
    scans: u64,
) -> Result<()> {
    if shard.0 == SCAN && place.at == At::Ended {
        let scanned_until = match options.in_place_of_lost {
            InPlaceOfLost::Scan => wall_clock() + read::CLOCKS_APART,
            InPlaceOfLost::Nothing => UNIX_EPOCH,
        };
        return leases.end_scan(shard, term, scans, scanned_until).await;
    }
    leases.release(shard, term, place).await
}
