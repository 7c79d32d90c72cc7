//! Whatever is written, split, removed, failed, stopped and resumed in whatever order: changes of a key come in order,
//! none is missing, and none comes twice unless it was not done when the follower was stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::timeout;

use super::simulated::{KEYS, Simulated, key_and_version};
use super::tests::follow;
use super::*;

#[derive(Debug, Clone)]
enum Step {
    Write(u32),
    Split(u32),
    /// Takes a batch, if there is one.
    Next,
    /// Counts the oldest batch of some shard as done.
    Checkpoint(usize),
    Fail,
    /// The store forgets shards that the kept positions say are done.
    Expire,
    /// Keeps the positions, and starts anew from what was kept.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..KEYS).prop_map(Step::Write),
        2 => (0..KEYS).prop_map(Step::Split),
        6 => Just(Step::Next),
        4 => (0..16_usize).prop_map(Step::Checkpoint),
        1 => Just(Step::Fail),
        1 => Just(Step::Expire),
        1 => Just(Step::Restart),
    ]
}

/// A batch that is not done yet, with the changes in it.
type HandedOut = (Checkpoint, Vec<(u32, u64)>);

struct World {
    stream: Simulated,
    follower: Follower,
    kept: FollowPositions,
    handed_out: BTreeMap<ShardId, Vec<HandedOut>>,
    /// By key, the version that must come next.
    next: BTreeMap<u32, u64>,
    /// What was counted as done, ever.
    done: BTreeSet<(u32, u64)>,
    /// What was in shards that have expired.
    expired: BTreeSet<(u32, u64)>,
}

impl World {
    fn new() -> Self {
        let stream = Simulated::new(2);
        let follower = follow(&stream, FollowFrom::Oldest);
        Self {
            stream,
            follower,
            kept: FollowPositions::default(),
            handed_out: BTreeMap::new(),
            next: (0..KEYS).map(|key| (key, 1)).collect(),
            done: BTreeSet::new(),
            expired: BTreeSet::new(),
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Write(key) => self.stream.write(key),
            Step::Split(key) => drop(self.stream.split(key)),
            Step::Next => drop(self.next().await),
            Step::Checkpoint(which) => self.checkpoint(which),
            Step::Fail => self.stream.state().failures += 1,
            Step::Expire => self.expire(),
            Step::Restart => self.restart(),
        }
    }

    /// Whether there was something.
    async fn next(&mut self) -> bool {
        let Ok(next) = timeout(Duration::from_secs(15), self.follower.next()).await else { return false };
        let batch = match next {
            Ok(batch) => batch,
            Err(FollowError::Trimmed { shard, .. }) => panic!("nothing was lost in {shard:?}"),
            Err(_told_to) => return true,
        };
        let changes: Vec<_> = batch.changes.iter().map(key_and_version).collect();
        for (key, version) in &changes {
            let next = self.next.get_mut(key).unwrap();
            assert_eq!(version, next, "key {key}");
            *next += 1;
        }
        let of_shard = self.handed_out.entry(batch.checkpoint.shard.clone()).or_default();
        of_shard.push((batch.checkpoint, changes));
        true
    }

    fn checkpoint(&mut self, which: usize) {
        let waiting: Vec<_> = self.handed_out.iter_mut().filter(|(_, batches)| !batches.is_empty()).collect();
        let count = waiting.len().max(1);
        if let Some((_, batches)) = waiting.into_iter().nth(which % count) {
            let (checkpoint, changes) = batches.remove(0);
            self.follower.checkpoint(&checkpoint);
            self.done.extend(changes);
        }
    }

    fn expire(&mut self) {
        for (shard, position) in &self.kept.0 {
            if *position != ShardPosition::Ended || !self.stream.state().shards.contains_key(shard) {
                continue;
            }
            let changes =
                self.stream.state().shards[shard].changes.iter().map(key_and_version).collect::<Vec<_>>();
            self.expired.extend(changes);
            self.stream.expire(shard);
        }
    }

    fn restart(&mut self) {
        let text = serde_json::to_string(&self.follower.positions()).unwrap();
        self.kept = serde_json::from_str(&text).unwrap();
        let covered = self.covered();
        for key in 0..KEYS {
            let versions = covered.range((key, 0)..(key + 1, 0)).map(|(_, version)| *version);
            let versions: Vec<_> = versions.collect();
            let count = versions.len() as u64;
            assert_eq!(versions, (1..=count).collect::<Vec<_>>(), "key {key}: a gap in what is done");
            self.next.insert(key, count + 1);
        }
        assert!(covered.is_subset(&self.done), "more than was said to be done");
        self.handed_out.clear();
        // what was done and does not count comes again
        self.done = covered;
        self.follower = follow(&self.stream, FollowFrom::Positions(self.kept.clone()));
    }

    /// What the kept positions say is done.
    fn covered(&self) -> BTreeSet<(u32, u64)> {
        let state = self.stream.state();
        let of_shard = |(id, position): (&ShardId, &ShardPosition)| {
            let changes = state.shards.get(id).map_or(&[][..], |shard| &shard.changes);
            let is_covered = |change: &&Change| match position {
                ShardPosition::Oldest | ShardPosition::Latest => false,
                ShardPosition::After(sequence) => change.sequence <= *sequence,
                ShardPosition::Ended => true,
            };
            changes.iter().filter(is_covered).map(key_and_version).collect::<Vec<_>>()
        };
        self.kept.0.iter().flat_map(of_shard).chain(self.expired.iter().copied()).collect()
    }

    async fn finish(mut self) {
        self.stream.state().failures = 0;
        while self.next().await {}
        while self.handed_out.values().any(|batches| !batches.is_empty()) {
            self.checkpoint(0);
        }
        for key in 0..KEYS {
            let written = self.stream.state().versions(key);
            assert_eq!(self.next[&key], written + 1, "key {key}: everything came");
        }
        self.restart();
        assert!(!self.next().await, "everything was done");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_out_of_order(steps in proptest::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for step in steps {
                world.take(step).await;
            }
            world.finish().await;
        });
    }
}
