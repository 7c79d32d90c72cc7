//! What is stored against what is published. Knows no store and no log: it is told of both, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::store::ShardId;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::remembered::Remembered;

/// Messages that may wait for their event at a time: some seconds of a busy system. Full: no more of the stream is read.
const MAX_WAITING: usize = 100_000;
/// How far our clock may be from the store's.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// A message, by what consumers know it by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    pub(super) chat: Arc<str>,
    pub(super) sequence: u64,
}

#[derive(Default)]
pub(super) struct Matching {
    /// Stored and not seen in the log yet, in the order they were seen.
    waiting: BTreeMap<u64, Waiting>,
    by_name: FxHashMap<Name, u64>,
    /// Handed on, and not known to be published yet.
    handed_on: BTreeMap<u64, Place>,
    /// Published lately: what is in the stream later, or comes again from there.
    remembered: Remembered,
    shards: BTreeMap<ShardId, Seen>,
    next: u64,
}

struct Waiting {
    name: Name,
    since: Instant,
    event: Bytes,
    place: Place,
}

/// A change, by its number in its shard.
struct Place {
    shard: ShardId,
    number: u64,
}

/// What was seen of a shard.
#[derive(Default)]
struct Seen {
    through: u64,
    /// Changes whose messages are not published.
    open: BTreeSet<u64>,
}

impl Matching {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + self.handed_on.len() < MAX_WAITING
    }

    #[cfg(test)]
    pub(super) fn is_published(&self, name: &Name) -> bool {
        self.remembered.contains(name)
    }

    /// Since when the one that has waited longest does.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting.values().next().map(|waiting| waiting.since)
    }

    pub(super) fn knows(&self, shard: &ShardId) -> bool {
        self.shards.contains_key(shard)
    }

    /// Whether every event that was seen is remembered whose message was stored so long ago.
    pub(super) fn remembers(&self, ago: Duration, now: Instant) -> bool {
        self.remembered.covers(ago + CLOCKS_APART, now)
    }

    /// Of a shard everything up to this number was seen, and among it messages that were stored. Of nearly all the event
    /// is in the log by now, so it is made only for those that have to wait for theirs.
    pub(super) fn stored<E: FnOnce() -> Option<Bytes>>(
        &mut self,
        shard: &ShardId,
        through: u64,
        messages: impl Iterator<Item = (u64, Name, E)>,
        now: Instant,
    ) {
        let seen = self.shards.entry(shard.clone()).or_default();
        seen.through = through;
        for (number, name, event) in messages {
            if self.remembered.contains(&name) || self.by_name.contains_key(&name) {
                continue;
            }
            let Some(event) = event() else { continue };
            seen.open.insert(number);
            self.next += 1;
            self.by_name.insert(name.clone(), self.next);
            let place = Place { shard: shard.clone(), number };
            self.waiting.insert(self.next, Waiting { name, since: now, event, place });
        }
    }

    /// An event was seen in the log.
    pub(super) fn published(&mut self, name: Name, now: Instant) {
        if let Some(number) = self.by_name.remove(&name)
            && let Some(waiting) = self.waiting.remove(&number)
        {
            self.done(&waiting.place);
        }
        self.remembered.add(name, now);
    }

    /// Those that have waited since then or longer, at most so many: numbered, to be told of when they are published.
    pub(super) fn take_missing(&mut self, waited_since: Instant, max: usize) -> Vec<(u64, Name, Bytes)> {
        let mut missing = Vec::new();
        while missing.len() < max
            && let Some(entry) = self.waiting.first_entry()
            && entry.get().since <= waited_since
        {
            let (number, Waiting { name, event, place, .. }) = entry.remove_entry();
            self.by_name.remove(&name);
            self.handed_on.insert(number, place);
            missing.push((number, name, event));
        }
        missing
    }

    /// Everything handed on up to this number is published.
    pub(super) fn published_through(&mut self, number: u64) {
        let later = self.handed_on.split_off(&(number + 1));
        for place in std::mem::replace(&mut self.handed_on, later).into_values() {
            self.done(&place);
        }
    }

    fn done(&mut self, place: &Place) {
        if let Some(seen) = self.shards.get_mut(&place.shard) {
            seen.open.remove(&place.number);
        }
    }

    /// Of each shard the number up to which everything is published.
    pub(super) fn published_to(&self) -> impl Iterator<Item = (ShardId, u64)> {
        let through = |seen: &Seen| seen.open.first().map_or(seen.through, |open| open - 1);
        self.shards.iter().map(move |(shard, seen)| (shard.clone(), through(seen)))
    }

    /// A shard is another's, and so are its messages. Of those that were handed on nobody needs to hear any more.
    pub(super) fn forget(&mut self, shard: &ShardId) {
        let Some(seen) = self.shards.remove(shard) else { return };
        if seen.open.is_empty() {
            return;
        }
        self.waiting.retain(|_, waiting| waiting.place.shard != *shard);
        self.by_name.retain(|_, number| self.waiting.contains_key(number));
        self.handed_on.retain(|_, place| place.shard != *shard);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::super::remembered::REMEMBERED;
    use super::*;
    use proptest::prelude::*;

    fn shard(name: &str) -> ShardId {
        ShardId(name.into())
    }

    fn name(sequence: u64) -> Name {
        Name { chat: "chat".into(), sequence }
    }

    /// Messages that have the numbers of their changes, which are the last of their shard.
    fn stored(matching: &mut Matching, shard: &str, sequences: &[u64], now: Instant) {
        let shard = ShardId(shard.into());
        let messages = sequences.iter().map(|&number| (number, name(number), || Some(Bytes::new())));
        matching.stored(&shard, *sequences.last().unwrap(), messages, now);
    }

    fn places(matching: &Matching) -> Vec<(ShardId, u64)> {
        matching.published_to().collect()
    }

    fn sequences(missing: &[(u64, Name, Bytes)]) -> Vec<u64> {
        missing.iter().map(|(_, name, _)| name.sequence).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_published_before_or_after_it_is_seen_is_not_missing() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        matching.published(name(6), now);
        stored(&mut matching, "s", &[6, 7, 8], now);
        assert_eq!(places(&matching), [(shard("s"), 6)]);
        matching.published(name(8), now);
        assert_eq!(places(&matching), [(shard("s"), 6)], "7 is not published");
        matching.published(name(7), now);
        assert_eq!(places(&matching), [(shard("s"), 8)]);
        assert!(matching.oldest().is_none() && matching.take_missing(now, 9).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_is_handed_on_and_holds_the_place_until_it_is_published() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        stored(&mut matching, "s", &[1, 2], now);
        stored(&mut matching, "s", &[3], now + Duration::from_secs(1));
        stored(&mut matching, "t", &[4], now + Duration::from_secs(1));
        let missing = matching.take_missing(now, 9);
        assert_eq!(sequences(&missing), [1, 2]);
        matching.published(name(3), now);
        matching.published(name(4), now);
        matching.published_through(missing[0].0);
        let places_then = [(shard("s"), 1), (shard("t"), 4)];
        assert_eq!(places(&matching), places_then, "2 is still under way, and 3 is behind it");
        matching.published_through(missing[1].0);
        assert_eq!(places(&matching), [(shard("s"), 3), (shard("t"), 4)]);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_of_a_shard_that_is_gone_are_not_ours() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        stored(&mut matching, "s", &[1, 2], now);
        stored(&mut matching, "t", &[3], now);
        let first = matching.take_missing(now, 1);
        assert_eq!(sequences(&first), [1]);
        matching.forget(&shard("s"));
        assert!(!matching.knows(&shard("s")));
        assert_eq!(sequences(&matching.take_missing(now, 9)), [3]);
        matching.published_through(first[0].0);
        assert_eq!(places(&matching), [(shard("t"), 2)], "nobody waits for what was under way");
        stored(&mut matching, "s", &[1, 2], now);
        assert_eq!(places(&matching), [(shard("s"), 0), (shard("t"), 2)], "it begins anew");
        assert_eq!(sequences(&matching.take_missing(now, 9)), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_again_from_the_stream_is_known_to_be_published() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        matching.published(name(1), now);
        for _ in 0..2 {
            stored(&mut matching, "s", &[1, 2], now);
            matching.published(name(2), now);
            assert_eq!(places(&matching), [(shard("s"), 2)]);
            matching.forget(&shard("s"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_is_known_to_be() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        matching.published(name(1), now);
        assert!(matching.remembers(Duration::MAX / 4, now), "nothing is forgotten yet");
        let later = now + REMEMBERED + Duration::from_secs(1);
        matching.published(Name { chat: "other".into(), sequence: 1 }, later);
        assert!(matching.remembers(Duration::from_secs(30), later));
        assert!(!matching.remembers(REMEMBERED, later), "1 may have been of then");
    }

    proptest! {
        /// Whatever the order of stream and log: a message is handed on if and only if its event never came, and the
        /// place in its shard is before the first that is open.
        #[test]
        fn only_what_was_never_published_is_handed_on(
            order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle(),
            published in proptest::collection::hash_set(1..=20u64, 0..20),
        ) {
            let (mut matching, now) = (Matching::default(), Instant::now());
            let shard_of = |number: u64| if number.is_multiple_of(3) { "s" } else { "t" };
            // What is stored comes in order within its shard, and events whenever.
            let mut to_come: BTreeMap<&str, VecDeque<u64>> = BTreeMap::new();
            (1..=20).for_each(|number| to_come.entry(shard_of(number)).or_default().push_back(number));
            let mut seen = HashSet::new();
            for step in order {
                let number = step % 20 + 1;
                if step >= 20 && published.contains(&number) {
                    seen.insert(number);
                    matching.published(name(number), now);
                } else if step < 20 && let Some(next) = to_come.get_mut(shard_of(number)).and_then(VecDeque::pop_front) {
                    stored(&mut matching, shard_of(next), &[next], now);
                }
                for (shard, to) in places(&matching) {
                    let passed = (1..=to).filter(|number| shard_of(*number) == shard.0.as_str());
                    prop_assert!(passed.clone().all(|number| seen.contains(&number)), "{shard:?} at {to}");
                }
            }
            let missing: HashSet<u64> = sequences(&matching.take_missing(now, 99)).into_iter().collect();
            let expected: HashSet<u64> = (1..=20).filter(|number| !published.contains(number)).collect();
            prop_assert_eq!(missing, expected);
            matching.published_through(u64::MAX - 1);
            prop_assert_eq!(places(&matching), [(shard("s"), 18), (shard("t"), 20)]);
        }
    }
}
