//! The log loses its beginning while it is rebuilt from.

use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::clock;
use tokio_util::sync::CancellationToken;

use super::world::{World, request};
use crate::rebuild::{Engine, Error, From, Pace, Progress, Request, State, To};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Eight days ago: the log has lost what was sent eight days before, and keeps what was sent then.
async fn eight_days_ago() -> (World, Vec<Message>) {
    let (world, mut messages) = (World::new().await, Vec::new());
    for days in [16, 8] {
        world.go_back(DAY * days).await;
        let then = clock::unix_millis() - u64::try_from((DAY * days).as_millis()).unwrap();
        let sent: Vec<_> = (0..60).map(|n| world.message_of(n % 7, "old", then)).collect();
        world.store(&sent).await;
        world.publish(&sent).await;
        messages.extend(sent);
    }
    assert_eq!(lost(&world).await, 60);
    (world, messages)
}

async fn lost(world: &World) -> u64 {
    let marks = world.connected.log.watermarks(&messages_persisted::NAME.into()).await.unwrap();
    marks.iter().map(|marks| marks.low).sum()
}

/// Before the scan of the store has begun, and in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_log_loses_meanwhile_comes_from_the_store() {
    for scan_has_begun in [false, true] {
        let (world, messages) = eight_days_ago().await;
        let stop = CancellationToken::new();
        if !scan_has_begun {
            stop.cancel();
        }
        let stop_soon = |progress: Progress| {
            if progress.done > 0 {
                stop.cancel();
            }
        };
        let engine = Engine { stop: &stop, progress: &stop_soon, ..world.engine(None) };
        let slowly = Request { rate: Some(50.0), ..request(From::Oldest, To::Now) };
        let stopped = engine.start(slowly).await.unwrap_err();
        assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
        let (receipt, _) = world.engine(None).newest("p", "resumed", |_| true).await.unwrap();
        let read = receipt.records.delivered;
        assert!(receipt.scanned && (read > 0) == scan_has_begun && read < 120, "{receipt:?}");

        world.go_back(Duration::ZERO).await;
        assert_eq!(lost(&world).await, 120);
        let fast = Pace { rate: Some(1e6), yield_over: None };
        let receipt = world.engine(None).resume_at("p", fast).await.unwrap();
        assert_eq!(receipt.state, State::Equal, "{:?}", receipt.comparison);
        world.assert_holds(&receipt.generation, &messages);
    }
}

fn ago(ago: Duration) -> Timestamp {
    Timestamp::from_unix_millis(clock::unix_millis() - u64::try_from(ago.as_millis()).unwrap())
}

/// A start that the log no longer reaches back to: what was sent between it and the log's beginning is in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_the_log_has_lost_loses_nothing() {
    let (world, mut messages) = (World::new().await, Vec::new());
    for sent in [DAY * 9, DAY * 8, DAY * 6] {
        messages.extend(world.sent_ago(sent, 60).await);
    }
    world.go_back(Duration::ZERO).await;
    assert_eq!(lost(&world).await, 120);
    let receipt = world.rebuild(From::Time(ago(DAY * 10)), To::Now).await.unwrap();
    assert_eq!((receipt.state, receipt.scanned), (State::Equal, true), "{:?}", receipt.comparison);
    world.assert_holds(&receipt.generation, &messages);
}

/// The same, where the log lost it before the store was looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_the_log_loses_meanwhile_loses_nothing() {
    for goes_on in [false, true] {
        let (world, mut messages) = (World::new().await, Vec::new());
        for sent in [DAY * 9, DAY * 8] {
            messages.extend(world.sent_ago(sent, 60).await);
        }
        world.stop.cancel();
        let start = From::Time(ago(DAY * 8 + DAY / 2));
        let stopped = world.rebuild(start, To::Now).await.unwrap_err();
        assert!(matches!(stopped, Error::Stopped { .. }), "{stopped}");
        world.go_back(Duration::ZERO).await;
        if goes_on {
            messages.extend(world.send(60).await);
        }
        assert_eq!(lost(&world).await, 120);
        let stop = CancellationToken::new();
        let engine = Engine { stop: &stop, ..world.engine(None) };
        let receipt = engine.resume("p").await.unwrap();
        assert_eq!(receipt.state, State::Equal, "{:?}", receipt.comparison);
        let live = engine.approve("p").await.unwrap();
        assert_eq!((live.state, &live.generation), (State::Live, &receipt.generation));
        let runtime = world.live().await;
        world.settled(&runtime).await;
        runtime.drain().await;
        world.assert_holds(&live.generation, &messages);
    }
}
