//! What is stored against what is published. Knows no store and no log: it is told of both, in any order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::Checkpoint;
use rustc_hash::FxHashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Messages that may wait for their event at a time: some seconds of a busy system. Full: no more of the stream is read.
const MAX_WAITING: usize = 100_000;
/// How long an event is remembered whose message was not seen in the stream yet. Streams lag by seconds.
const REMEMBERED: Duration = Duration::from_secs(120);
/// Events remembered at the most. Beyond it the oldest are forgotten, and their messages may be published twice.
const MAX_REMEMBERED: usize = 200_000;

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
    handed_on: BTreeMap<u64, HandedOn>,
    /// Published, and not seen in the stream yet.
    remembered: FxHashMap<Name, Instant>,
    forgotten_in_order: VecDeque<(Instant, Name)>,
    batches: VecDeque<OpenBatch>,
    first_batch: u64,
    next: u64,
}

struct Waiting {
    name: Name,
    since: Instant,
    stored_at: u64,
    event: Bytes,
    batch: u64,
}

struct HandedOn {
    stored_at: u64,
    batch: u64,
}

/// Messages that came together from the stream; done with when all of them are.
struct OpenBatch {
    checkpoint: Checkpoint,
    open: usize,
}

impl Matching {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + self.handed_on.len() < MAX_WAITING
    }

    /// Since when the one that has waited longest does.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting.values().next().map(|waiting| waiting.since)
    }

    /// Every message stored before this is published, as far as was seen; nothing waits if none.
    pub(super) fn published_until(&self) -> Option<u64> {
        let waiting = self.waiting.values().map(|waiting| waiting.stored_at);
        waiting.chain(self.handed_on.values().map(|handed_on| handed_on.stored_at)).min()
    }

    /// Messages were stored. Of nearly all the event is in the log by now, so it is made only for those that have to wait
    /// for theirs.
    pub(super) fn stored<E: FnOnce() -> Option<(u64, Bytes)>>(
        &mut self,
        checkpoint: Checkpoint,
        messages: impl Iterator<Item = (Name, E)>,
        now: Instant,
    ) {
        let batch = self.first_batch + self.batches.len() as u64;
        let mut open = 0;
        for (name, event) in messages {
            if self.remembered.remove(&name).is_some() || self.by_name.contains_key(&name) {
                continue;
            }
            let Some((stored_at, event)) = event() else { continue };
            self.next += 1;
            self.by_name.insert(name.clone(), self.next);
            self.waiting.insert(self.next, Waiting { name, since: now, stored_at, event, batch });
            open += 1;
        }
        self.batches.push_back(OpenBatch { checkpoint, open });
    }

    /// An event was seen in the log.
    pub(super) fn published(&mut self, name: Name, now: Instant) {
        match self.by_name.remove(&name) {
            Some(number) => {
                if let Some(waiting) = self.waiting.remove(&number) {
                    self.done(waiting.batch);
                }
            }
            None => self.remember(name, now),
        }
    }

    fn remember(&mut self, name: Name, now: Instant) {
        while let Some((since, _)) = self.forgotten_in_order.front()
            && (*since + REMEMBERED < now || self.forgotten_in_order.len() >= MAX_REMEMBERED)
        {
            let Some((since, name)) = self.forgotten_in_order.pop_front() else { break };
            if self.remembered.get(&name) == Some(&since) {
                self.remembered.remove(&name);
            }
        }
        self.forgotten_in_order.push_back((now, name.clone()));
        self.remembered.insert(name, now);
    }

    /// Those that have waited since then or longer, at most so many: numbered, to be told of when they are published.
    pub(super) fn take_missing(&mut self, waited_since: Instant, max: usize) -> Vec<(u64, Name, Bytes)> {
        let mut missing = Vec::new();
        while missing.len() < max
            && let Some(entry) = self.waiting.first_entry()
            && entry.get().since <= waited_since
        {
            let (number, waiting) = entry.remove_entry();
            self.by_name.remove(&waiting.name);
            let Waiting { name, stored_at, event, batch, .. } = waiting;
            self.handed_on.insert(number, HandedOn { stored_at, batch });
            missing.push((number, name, event));
        }
        missing
    }

    /// Everything handed on up to this number is published.
    pub(super) fn published_through(&mut self, number: u64) {
        let later = self.handed_on.split_off(&(number + 1));
        for handed_on in std::mem::replace(&mut self.handed_on, later).into_values() {
            self.done(handed_on.batch);
        }
    }

    fn done(&mut self, batch: u64) {
        let index = usize::try_from(batch - self.first_batch).unwrap_or(usize::MAX);
        if let Some(batch) = self.batches.get_mut(index) {
            batch.open -= 1;
        }
    }

    /// How far the stream is seen through since the last call.
    pub(super) fn take_checkpoints(&mut self) -> Vec<Checkpoint> {
        let mut done = Vec::new();
        while self.batches.front().is_some_and(|batch| batch.open == 0)
            && let Some(batch) = self.batches.pop_front()
        {
            self.first_batch += 1;
            done.push(batch.checkpoint);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use courant_connectors::store::{SequenceNumber, ShardId};
    use proptest::prelude::*;

    fn checkpoint(number: u64) -> Checkpoint {
        Checkpoint { shard: ShardId("s".into()), through: SequenceNumber(number.to_string().into()) }
    }

    fn name(sequence: u64) -> Name {
        Name { chat: "chat".into(), sequence }
    }

    fn stored(matching: &mut Matching, number: u64, sequences: &[u64], now: Instant) {
        let messages =
            sequences.iter().map(|&sequence| (name(sequence), move || Some((sequence, Bytes::new()))));
        matching.stored(checkpoint(number), messages, now);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_published_before_or_after_it_is_seen_is_not_missing() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        matching.published(name(1), now);
        stored(&mut matching, 7, &[1, 2], now);
        assert!(matching.take_checkpoints().is_empty(), "2 is not published");
        matching.published(name(2), now);
        assert_eq!(matching.take_checkpoints(), [checkpoint(7)]);
        assert!(matching.oldest().is_none() && matching.take_missing(now, 9).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_is_handed_on_and_holds_the_position_until_it_is_published() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        stored(&mut matching, 7, &[1, 2], now);
        stored(&mut matching, 8, &[3], now + Duration::from_secs(1));
        let missing = matching.take_missing(now, 9);
        assert_eq!(missing.iter().map(|(_, name, _)| name.sequence).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(matching.published_until(), Some(1));
        matching.published(name(3), now);
        matching.published_through(missing[0].0);
        assert!(matching.take_checkpoints().is_empty(), "2 is still under way, and 8 is behind it");
        matching.published_through(missing[1].0);
        assert_eq!(matching.take_checkpoints(), [checkpoint(7), checkpoint(8)]);
        assert_eq!(matching.published_until(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_events_is_bounded_in_time() {
        let (mut matching, now) = (Matching::default(), Instant::now());
        matching.published(name(1), now);
        matching.published(name(2), now + REMEMBERED + Duration::from_secs(1));
        assert_eq!(matching.remembered.len(), 1);
    }

    proptest! {
        /// Whatever the order of stream and log: a message is handed on if and only if its event never came, and the
        /// stream's position is passed exactly when nothing before it is open.
        #[test]
        fn only_what_was_never_published_is_handed_on(
            order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle(),
            published in proptest::collection::hash_set(0..20u64, 0..20),
        ) {
            let (mut matching, now) = (Matching::default(), Instant::now());
            let mut passed = 0;
            for step in order {
                if step < 20 {
                    stored(&mut matching, step, &[step], now);
                } else if published.contains(&(step - 20)) {
                    matching.published(name(step - 20), now);
                }
                passed += matching.take_checkpoints().len();
            }
            let missing = matching.take_missing(now, 99);
            let found: std::collections::HashSet<u64> = missing.iter().map(|(_, name, _)| name.sequence).collect();
            let expected: std::collections::HashSet<u64> = (0..20).filter(|n| !published.contains(n)).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert!(expected.is_empty() || passed < 20);
            matching.published_through(u64::MAX - 1);
            passed += matching.take_checkpoints().len();
            prop_assert_eq!(passed, 20);
        }
    }
}
