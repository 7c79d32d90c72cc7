//! Ends that somebody chose: what was built is what was published before them, and what comes later is counted once.

use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::clock;
use tokio_util::sync::CancellationToken;

use super::bad::refused;
use super::world::{COUNTED, PIPELINE, World, request};
use crate::rebuild::{At, Engine, Error, From, Receipt, State, To};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// What was sent so long ago, each time.
async fn sent(world: &World, ago: impl IntoIterator<Item = u64>) -> Vec<Vec<Message>> {
    let mut sent = Vec::new();
    for ago in ago {
        sent.push(world.sent_ago(Duration::from_millis(ago), 60).await);
    }
    world.go_back(Duration::ZERO).await;
    sent
}

fn ago(ago: u64) -> Timestamp {
    Timestamp::from_unix_millis(clock::unix_millis() - ago)
}

/// Where partitions were.
async fn offsets_at(world: &World, time: Timestamp) -> At {
    let found = world.connected.log.offsets_at(&messages_persisted::NAME.into(), time.into()).await.unwrap();
    At::Named(found.into_iter().map(|(partition, offset)| (partition.to_string(), offset)).collect())
}

async fn counting() -> World {
    World::with(&[PIPELINE, COUNTED].concat()).await
}

/// It holds these; and once it is live, and has read what came later, all of them, each counted once.
async fn assert_ends(world: &World, receipt: &Receipt, before: &[Vec<Message>], later: &[Vec<Message>]) {
    let request = &receipt.request;
    assert_eq!(receipt.state, State::Equal, "{} {}: {:?}", request.from, request.to, receipt.comparison);
    world.assert_holds(&receipt.generation, &before.concat());
    world.assert_counted_once(&receipt.generation, &before.concat());
    assert_goes_on(world, receipt, &[before, later].concat().concat()).await;
}

/// The live pipeline has never run.
async fn assert_goes_on(world: &World, receipt: &Receipt, messages: &[Message]) {
    let live = world.engine(None).approve("p").await.unwrap();
    assert_eq!((live.state, &live.generation), (State::Live, &receipt.generation));
    let runtime = world.live().await;
    world.settled(&runtime).await;
    runtime.drain().await;
    world.assert_holds(&receipt.generation, messages);
    world.assert_counted_once(&receipt.generation, messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_alone_ends_where_it_is_told() {
    for by_offset in [false, true] {
        let world = counting().await;
        let sent = sent(&world, [3 * HOUR, 2 * HOUR, HOUR]).await;
        let end = ago(90 * MINUTE);
        let to = if by_offset { To::Offset(offsets_at(&world, end).await) } else { To::Time(end) };
        let receipt = world.rebuild(From::Oldest, to).await.unwrap();
        assert!(!receipt.scanned);
        assert_ends(&world, &receipt, &sent[..2], &sent[2..]).await;
    }
}

/// The log has lost its beginning, so the store is scanned, which has everything up to now.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_gives_nothing_from_behind_the_end() {
    for (from, by_offset) in [
        (From::Oldest, false),
        (From::Oldest, true),
        (From::Scan, false),
        (From::Time(ago(150 * MINUTE)), false),
        (From::Time(ago(95 * MINUTE)), true),
    ] {
        let world = counting().await;
        let sent = sent(&world, [8 * DAY, 3 * HOUR, 2 * HOUR, 95 * MINUTE, 85 * MINUTE, 0]).await;
        let end = ago(90 * MINUTE);
        let to = if by_offset { To::Offset(offsets_at(&world, end).await) } else { To::Time(end) };
        let receipt = world.rebuild(from, to).await.unwrap();
        assert!(receipt.scanned);
        assert_ends(&world, &receipt, &sent[..4], &sent[4..]).await;
    }
}

/// The end is nearer to the start than the clocks are to each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_shortly_before_the_end_is_no_excuse() {
    let world = counting().await;
    let sent = sent(&world, [5 * HOUR, 95 * MINUTE, 88 * MINUTE, HOUR]).await;
    let from = From::Offset(offsets_at(&world, ago(96 * MINUTE)).await);
    let to = To::Offset(offsets_at(&world, ago(90 * MINUTE)).await);
    let receipt = world.rebuild(from, to).await.unwrap();
    assert!(receipt.scanned);
    assert_ends(&world, &receipt, &sent[..2], &sent[2..]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_log_does_not_reach_back_from_is_refused() {
    let world = counting().await;
    let sent = sent(&world, [8 * DAY, HOUR, 0]).await;
    for from in [From::Oldest, From::Scan, From::Time(ago(2 * HOUR))] {
        let said = refused(&world, request(from, To::Time(ago(50 * MINUTE)))).await;
        assert!(said.contains("choose an end") && said.contains("`--to now`"), "{said}");
    }
    let receipt = world.rebuild(From::Oldest, To::Time(ago(35 * MINUTE))).await.unwrap();
    assert_ends(&world, &receipt, &sent[..2], &sent[2..]).await;
}

/// Stopped before the store was looked at, and the log has lost meanwhile what was to tell what was before the end.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_the_log_no_longer_reaches_back_from_is_not_built() {
    let world = counting().await;
    for days in [16, 8] {
        world.sent_ago(Duration::from_millis(days * DAY), 60).await;
    }
    world.stop.cancel();
    let end = To::Time(ago(8 * DAY - 30 * MINUTE));
    let stopped = world.rebuild(From::Oldest, end).await.unwrap_err();
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
    world.sent_ago(Duration::ZERO, 60).await;
    let stop = CancellationToken::new();
    let engine = Engine { stop: &stop, ..world.engine(None) };
    let said = format!("{:?}", engine.resume("p").await.unwrap_err());
    assert!(said.contains("a later end"), "{said}");
}

/// What is published while it is built comes from the log, by whoever reads that later.
#[tokio::test(flavor = "multi_thread")]
async fn a_scan_gives_nothing_that_the_live_pipeline_reads_later() {
    // The log's beginning is lost, or long ago, or now.
    for ago in [vec![8 * DAY, 3 * HOUR], vec![3 * HOUR], vec![0]] {
        let world = counting().await;
        let mut messages = sent(&world, ago).await.concat();
        world.stop.cancel();
        let stopped = world.rebuild(From::Scan, To::Now).await.unwrap_err();
        assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
        messages.extend(world.send(30).await);
        let stop = CancellationToken::new();
        let engine = Engine { stop: &stop, ..world.engine(None) };
        let receipt = engine.resume("p").await.unwrap();
        assert_eq!(receipt.state, State::Equal, "{:?}", receipt.comparison);
        assert_goes_on(&world, &receipt, &messages).await;
    }
}
