//! One situation each; `property.rs` mixes them.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::simulated::{KEYS, Simulated, key_and_version};
use super::*;

const BATCH: usize = 2;
/// Longer than any wait of the follower: what did not come by then will not come.
const LONG: Duration = Duration::from_secs(60);

pub(super) fn follow(stream: &Simulated, from: FollowFrom) -> Follower {
    let options = FollowOptions {
        batch: NonZeroUsize::new(BATCH).unwrap(),
        concurrent_reads: NonZeroUsize::new(3).unwrap(),
        ..FollowOptions::default()
    };
    Follower::new(Arc::new(stream.clone()), "t", from, options)
}

/// Hands out everything there is and counts it as done.
async fn drain(follower: &mut Follower) -> Vec<(u32, u64)> {
    let mut seen = Vec::new();
    while let Ok(batch) = timeout(LONG, follower.next()).await {
        let batch = batch.unwrap();
        assert!(batch.changes.len() <= BATCH);
        seen.extend(batch.changes.iter().map(key_and_version));
        follower.checkpoint(&batch.checkpoint);
    }
    seen
}

fn after(shard: &ShardId, sequence: &str) -> FollowFrom {
    let position = ShardPosition::After(SequenceNumber(sequence.into()));
    FollowFrom::Positions(FollowPositions([(shard.clone(), position)].into()))
}

#[tokio::test(start_paused = true)]
async fn parents_come_before_children() {
    let stream = Simulated::new(1);
    for _ in 0..5 {
        stream.write(1);
    }
    stream.split(1);
    stream.write(1);
    stream.split(1);
    stream.write(1);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    assert_eq!(drain(&mut follower).await, (1..=7).map(|version| (1, version)).collect::<Vec<_>>());

    stream.split(1);
    stream.write(1);
    let split = Instant::now();
    assert_eq!(key_and_version(&follower.next().await.unwrap().changes[0]), (1, 8));
    assert!(split.elapsed() < Duration::from_secs(2), "splits are noticed at once: {:?}", split.elapsed());
}

#[tokio::test(start_paused = true)]
async fn several_shards_are_read_at_once_but_not_all() {
    let stream = Simulated::new(KEYS);
    (0..KEYS).for_each(|key| stream.write(key));
    let mut follower = follow(&stream, FollowFrom::Oldest);
    assert_eq!(drain(&mut follower).await.len(), KEYS as usize);
    assert_eq!(stream.state().most_reads_under_way, 3);
}

#[tokio::test(start_paused = true)]
async fn a_busy_shard_does_not_starve_the_others() {
    let stream = Simulated::new(4);
    for _ in 0..200 {
        (2..KEYS).for_each(|key| stream.write(key));
    }
    stream.write(0);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    for turn in 0.. {
        let batch = follower.next().await.unwrap();
        if key_and_version(&batch.changes[0]).0 == 0 {
            assert!(turn < 8, "turn {turn}");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn latest_means_from_the_first_call_on() {
    let stream = Simulated::new(1);
    stream.write(1);
    stream.split(1);
    stream.write(1);
    let mut follower = follow(&stream, FollowFrom::Latest);
    assert_eq!(drain(&mut follower).await, []);
    let positions = follower.positions();
    let kept: Vec<_> = positions.0.values().collect();
    assert_eq!(kept, [&ShardPosition::Latest, &ShardPosition::Latest, &ShardPosition::Ended]);
    assert_eq!(
        drain(&mut follow(&stream, FollowFrom::Positions(positions))).await,
        [],
        "history stays history"
    );
    // both readers stand somewhere, though no sequence number says where
    stream.state().failures = 3; // a listing may be one of them
    for _ in 0..3 {
        assert!(timeout(LONG, follower.next()).await.unwrap().is_err());
    }
    stream.write(1);
    stream.split(1);
    stream.write(1);
    assert_eq!(drain(&mut follower).await, [(1, 3), (1, 4)]);
}

#[tokio::test(start_paused = true)]
async fn latest_does_not_wait_for_history() {
    let stream = Simulated::new(1);
    stream.split(1);
    let mut follower = follow(&stream, FollowFrom::Latest);
    // listing takes three milliseconds, and so would reading the parent
    assert!(timeout(Duration::from_millis(5), follower.next()).await.is_err());
    stream.write(1);
    assert_eq!(drain(&mut follower).await, [(1, 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_any_more_is_an_error_that_names_the_shard() {
    let told = async |stream: &Simulated, from| {
        let error = timeout(LONG, follow(stream, from).next()).await.unwrap().unwrap_err();
        assert_eq!(error.remedy(), Remedy::Stop);
        error.to_string()
    };
    let stream = Simulated::new(1);
    (0..4).for_each(|_| stream.write(1));
    let first = stream.split(1);
    stream.write(1);
    let expected =
        format!("changes in shard '{}' of table 't' are not kept any more; rebuild from a scan", first.0);
    let sequence = stream.state().shards[&first].changes[0].sequence.0.to_string();

    stream.trim(&first, 3);
    assert_eq!(told(&stream, after(&first, &sequence)).await, expected, "a trimmed position");
    stream.expire(&first);
    assert_eq!(told(&stream, after(&first, &sequence)).await, expected, "a shard that is gone");
    let strange = ShardId("another".into());
    let ended = FollowFrom::Positions(FollowPositions([(strange, ShardPosition::Ended)].into()));
    assert_eq!(told(&stream, ended).await, expected, "a shard that came and went unseen");

    let mut anew = follow(&stream, FollowFrom::Oldest);
    assert_eq!(drain(&mut anew).await, [(1, 5)], "a start anew takes what there is");
}

#[tokio::test(start_paused = true)]
async fn progress_in_a_child_counts_once_its_parent_is_done() {
    let stream = Simulated::new(1);
    stream.write(1);
    let parent = stream.split(1);
    stream.write(1);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    let first = follower.next().await.unwrap();
    let second = follower.next().await.unwrap();
    assert_eq!((&first.checkpoint.shard, key_and_version(&second.changes[0])), (&parent, (1, 2)));

    follower.checkpoint(&second.checkpoint);
    let positions = follower.positions();
    assert_eq!(positions, FollowPositions([(parent.clone(), ShardPosition::Oldest)].into()));
    assert_eq!(drain(&mut follow(&stream, FollowFrom::Positions(positions))).await, [(1, 1), (1, 2)]);

    follower.checkpoint(&first.checkpoint);
    let positions = follower.positions();
    assert_eq!(positions.0[&parent], ShardPosition::Ended);
    assert_eq!(positions.0[&second.checkpoint.shard], ShardPosition::After(second.checkpoint.through));
    assert_eq!(drain(&mut follow(&stream, FollowFrom::Positions(positions))).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_ended_shard_is_forgotten_with_the_store() {
    let stream = Simulated::new(1);
    stream.write(1);
    let parent = stream.split(1);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    drain(&mut follower).await;
    assert_eq!(follower.positions().0.len(), 3);
    stream.expire(&parent);
    drain(&mut follower).await;
    assert_eq!(follower.positions().0.len(), 2, "positions do not grow for ever");
}

#[tokio::test(start_paused = true)]
async fn an_idle_shard_is_left_alone_longer_and_longer() {
    let stream = Simulated::new(1);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    assert!(timeout(LONG, follower.next()).await.is_err());
    let reads = stream.state().reads;
    assert!((55..70).contains(&reads), "one a second after the first few: {reads}");

    stream.write(1);
    let written = Instant::now();
    follower.next().await.unwrap();
    assert!(written.elapsed() < Duration::from_millis(1100), "{:?}", written.elapsed());
    assert!(timeout(Duration::from_millis(300), follower.next()).await.is_err());
    stream.write(1);
    let written = Instant::now();
    follower.next().await.unwrap();
    assert!(written.elapsed() < Duration::from_millis(300), "awake again: {:?}", written.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_loses_nothing() {
    let stream = Simulated::new(2);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    (0..KEYS).for_each(|key| stream.write(key));
    let mut seen = 0;
    for _ in 0..1000 {
        // shorter than any read takes
        if let Ok(batch) = timeout(Duration::from_millis(1), follower.next()).await {
            seen += batch.unwrap().changes.len();
        }
    }
    assert_eq!(seen, KEYS as usize);
}

#[tokio::test(start_paused = true)]
async fn an_error_is_told_and_then_it_goes_on() {
    let stream = Simulated::new(1);
    stream.write(1);
    let mut follower = follow(&stream, FollowFrom::Oldest);
    stream.state().failures = 1;
    let error = follower.next().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shards of table 't' cannot be listed: the store is not available: told to fail"
    );
    assert_eq!(error.remedy(), Remedy::Retry);
    let failed = Instant::now();
    assert_eq!(key_and_version(&follower.next().await.unwrap().changes[0]), (1, 1));
    assert!(failed.elapsed() >= Duration::from_secs(1), "not at once again");

    stream.state().failures = 1;
    let error = follower.next().await.unwrap_err().to_string();
    assert!(error.starts_with("shard 'shard-") && error.ends_with("told to fail"), "{error}");
    stream.write(1);
    assert_eq!(drain(&mut follower).await, [(1, 2)]);
}
