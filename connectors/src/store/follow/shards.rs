//! The shards a follower knows: which may be read, what was handed out of each, and what is done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{FollowFrom, FollowPositions, ShardPosition};
use crate::store::{SequenceNumber, Shard, ShardId, ShardReader, ShardStart};

pub(super) struct Shards {
    known: BTreeMap<ShardId, Known>,
    first_listing: FirstListing,
    /// Before the first listing nothing is read: which shard is whose parent is not known.
    listed: bool,
}

/// What the first list of shards means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FirstListing {
    /// A start with the oldest changes: whatever there is begins there.
    AllOldest,
    /// A start from now on: what has children is history.
    LeavesLatest,
    /// Not the first, or the first after a stop: new shards are children of known ones.
    GoesOn,
}

struct Known {
    parent: Option<ShardId>,
    /// Where to begin while nothing was handed out.
    begin: ShardStart,
    handed_out: Option<SequenceNumber>,
    done: Option<SequenceNumber>,
    /// The last wait, while there is nothing to read.
    idle: Option<Duration>,
    reading: Reading,
}

enum Reading {
    Ready {
        at: Instant,
        reader: Option<Box<dyn ShardReader>>,
    },
    UnderWay,
    /// All of it was handed out.
    Ended,
}

/// A read that can begin.
pub(super) struct DueRead {
    pub(super) shard: ShardId,
    /// Where to open the shard, if there is no reader.
    pub(super) start: ShardStart,
    pub(super) reader: Option<Box<dyn ShardReader>>,
}

impl Known {
    fn new(parent: Option<ShardId>, begin: ShardStart, now: Instant) -> Self {
        let reading = Reading::Ready { at: now, reader: None };
        Self { parent, begin, handed_out: None, done: None, idle: None, reading }
    }

    fn at(position: ShardPosition, now: Instant) -> Self {
        let mut known = Self::new(None, ShardStart::Oldest, now);
        match position {
            ShardPosition::Oldest => {}
            ShardPosition::Latest => known.begin = ShardStart::Latest,
            ShardPosition::After(sequence) => {
                known.handed_out = Some(sequence.clone());
                known.done = Some(sequence);
            }
            ShardPosition::Ended => known.reading = Reading::Ended,
        }
        known
    }

    fn is_handed_out(&self) -> bool {
        matches!(self.reading, Reading::Ended)
    }

    fn is_done(&self) -> bool {
        self.is_handed_out() && self.handed_out == self.done
    }

    fn start(&self) -> ShardStart {
        self.handed_out.clone().map_or_else(|| self.begin.clone(), ShardStart::After)
    }

    fn position(&self) -> ShardPosition {
        match (&self.done, &self.begin) {
            _ if self.is_done() => ShardPosition::Ended,
            (Some(sequence), _) => ShardPosition::After(sequence.clone()),
            (None, ShardStart::Latest) => ShardPosition::Latest,
            (None, _) => ShardPosition::Oldest,
        }
    }
}

impl Shards {
    pub(super) fn new(from: FollowFrom) -> Self {
        let now = Instant::now();
        let (positions, first_listing) = match from {
            FollowFrom::Oldest => (FollowPositions::default(), FirstListing::AllOldest),
            FollowFrom::Latest => (FollowPositions::default(), FirstListing::LeavesLatest),
            // it was stopped before it knew any shard
            FollowFrom::Positions(positions) if positions.0.is_empty() => {
                (positions, FirstListing::AllOldest)
            }
            FollowFrom::Positions(positions) => (positions, FirstListing::GoesOn),
        };
        let known = positions.0.into_iter().map(|(shard, position)| (shard, Known::at(position, now)));
        Self { known: known.collect(), first_listing, listed: false }
    }

    /// Learns which shards there are. Fails with the shard whose changes are lost, and then learns nothing.
    pub(super) fn update(&mut self, listed: &[Shard], now: Instant) -> Result<(), ShardId> {
        let ids: BTreeSet<&ShardId> = listed.iter().map(|shard| &shard.id).collect();
        let parents: BTreeSet<&ShardId> = listed.iter().filter_map(|shard| shard.parent.as_ref()).collect();
        if let Some(lost) = self.lost(listed, &ids) {
            return Err(lost);
        }
        self.known.retain(|id, known| ids.contains(id) || !known.is_done());
        for shard in listed {
            if let Some(known) = self.known.get_mut(&shard.id) {
                known.parent.clone_from(&shard.parent);
                continue;
            }
            let latest = self.first_listing == FirstListing::LeavesLatest;
            let begin = if latest { ShardStart::Latest } else { ShardStart::Oldest };
            let mut known = Known::new(shard.parent.clone(), begin, now);
            if latest && parents.contains(&shard.id) {
                known.reading = Reading::Ended;
            }
            self.known.insert(shard.id.clone(), known);
        }
        self.first_listing = FirstListing::GoesOn;
        self.listed = true;
        Ok(())
    }

    /// A shard that was not read to its end and is gone, or that came and went unseen: its child is the proof.
    fn lost(&self, listed: &[Shard], ids: &BTreeSet<&ShardId>) -> Option<ShardId> {
        let gone = self.known.iter().find(|(id, known)| {
            let unread = matches!(known.reading, Reading::Ready { reader: None, .. });
            unread && !ids.contains(id)
        });
        if let Some((id, _)) = gone {
            return Some(id.clone());
        }
        if self.first_listing != FirstListing::GoesOn {
            return None;
        }
        let unseen = |shard: &&ShardId| !ids.contains(shard) && !self.known.contains_key(*shard);
        let new = listed.iter().filter(|shard| !self.known.contains_key(&shard.id));
        new.filter_map(|shard| shard.parent.as_ref()).find(unseen).cloned()
    }

    /// Takes the shard that has waited longest of those that are due, to be put back after the read.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<DueRead> {
        let (at, id) = self.readable().min()?;
        if at > now {
            return None;
        }
        let id = id.clone();
        let known = self.known.get_mut(&id)?;
        let reader = match &mut known.reading {
            Reading::Ready { reader, .. } => reader.take(),
            Reading::UnderWay | Reading::Ended => return None,
        };
        known.reading = Reading::UnderWay;
        Some(DueRead { shard: id, start: known.start(), reader })
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.readable().map(|(at, _)| at).min()
    }

    /// Shards that wait for nothing but their time.
    fn readable(&self) -> impl Iterator<Item = (Instant, &ShardId)> {
        self.known.iter().filter(|_| self.listed).filter_map(|(id, known)| {
            let Reading::Ready { at, .. } = known.reading else { return None };
            let parent = known.parent.as_ref().and_then(|parent| self.known.get(parent));
            parent.is_none_or(Known::is_handed_out).then_some((at, id))
        })
    }

    /// After a read that found something, which is on its way to the caller.
    pub(super) fn handed_out(
        &mut self,
        shard: &ShardId,
        through: SequenceNumber,
        reader: Option<Box<dyn ShardReader>>,
        again_at: Instant,
    ) {
        if let Some(known) = self.known.get_mut(shard) {
            known.handed_out = Some(through);
            known.idle = None;
            known.reading = Reading::Ready { at: again_at, reader };
        }
    }

    /// After a read that found nothing: the wait doubles each time, from the first to the longest.
    pub(super) fn idle(
        &mut self,
        shard: &ShardId,
        reader: Option<Box<dyn ShardReader>>,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) {
        if let Some(known) = self.known.get_mut(shard) {
            let wait = known.idle.map_or(first, |last| (last * 2).min(longest));
            known.idle = Some(wait);
            known.reading = Reading::Ready { at: now + wait, reader };
        }
    }

    pub(super) fn ended(&mut self, shard: &ShardId) {
        if let Some(known) = self.known.get_mut(shard) {
            known.reading = Reading::Ended;
        }
    }

    /// After a read that failed. A new reader goes on where the last one was sure to be; only where nothing is known but
    /// "from now on", a new one would begin later than the old one did.
    pub(super) fn failed(
        &mut self,
        shard: &ShardId,
        reader: Option<Box<dyn ShardReader>>,
        again_at: Instant,
    ) {
        if let Some(known) = self.known.get_mut(shard) {
            let reader = reader.filter(|_| known.start() == ShardStart::Latest);
            known.reading = Reading::Ready { at: again_at, reader };
        }
    }

    pub(super) fn done_through(&mut self, shard: &ShardId, through: &SequenceNumber) {
        if let Some(known) = self.known.get_mut(shard)
            && known.done.as_ref().is_none_or(|done| done < through)
        {
            known.done = Some(through.clone());
        }
    }

    /// Of each shard whose ancestors are done. Of others nothing counts yet: read on from there, the ancestor's changes
    /// would come again, and after them those of the child.
    pub(super) fn positions(&self) -> FollowPositions {
        let counted = self.known.iter().filter(|(_, known)| self.ancestors_are_done(known));
        FollowPositions(counted.map(|(id, known)| (id.clone(), known.position())).collect())
    }

    fn ancestors_are_done(&self, known: &Known) -> bool {
        let parent_of = |known: &Known| known.parent.as_ref().and_then(|parent| self.known.get(parent));
        std::iter::successors(parent_of(known), |ancestor| parent_of(ancestor)).all(Known::is_done)
    }
}
