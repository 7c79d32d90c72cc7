//! Going live, and back.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use courant_connectors::log::{Log, Topic, TopicPartition};
use courant_connectors::model::Timestamp;
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::clock;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::world::{World, request};
use crate::rebuild::{At, Engine, From, Phase, Progress, State, To};

/// Its store is younger than the rebuild then.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_starts_for_the_first_time_takes_nothing_from_a_rebuild() {
    let world = World::new().await;
    let mut messages = world.send(40).await;
    world.stop.cancel();
    world.rebuild(From::Oldest, To::Live).await.unwrap_err();
    let runtime = world.live().await;
    messages.extend(world.send(20).await);
    world.settled(&runtime).await;
    let stop = CancellationToken::new();
    let engine = Engine { stop: &stop, ..world.engine(Some(&runtime)) };
    let receipt = engine.resume("p").await.unwrap();
    runtime.drain().await;
    assert_eq!(receipt.state, State::Live);
    world.assert_holds(&receipt.generation, &messages);
    let listed = engine.list(Some("p")).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.is_live).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_gives_the_same_store() {
    let world = World::new().await;
    let mut messages = world.send(120).await;
    let halfway = clock::unix_millis();
    while clock::unix_millis() <= halfway {
        tokio::task::yield_now().await; // so that the two halves have different times
    }
    let halfway = Timestamp::from_unix_millis(clock::unix_millis());
    messages.extend(world.send(80).await);
    for from in [From::Oldest, From::Scan, From::Time(halfway), From::Offset(At::Each(9))] {
        let receipt = world.rebuild(from.clone(), To::Now).await.unwrap();
        assert_eq!(receipt.state, State::Equal, "{from}: {:?}", receipt.comparison);
        assert_eq!(receipt.scanned, from != From::Oldest);
        let comparison = receipt.comparison.unwrap();
        assert_eq!((comparison.stages[0].expected, comparison.stages[0].actual), (200, 200));
        assert_eq!((comparison.stages[1].expected, comparison.looks), (7, 1));
        world.assert_holds(&receipt.generation, &messages);
    }
    assert_eq!(world.engine(None).list(None).await.unwrap().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_goes_live_where_the_live_one_stopped_and_can_be_taken_back() {
    let world = World::new().await;
    let mut messages = world.send(100).await;
    let runtime = world.live().await;
    world.settled(&runtime).await;
    let engine = world.engine(Some(&runtime));
    let before = engine.list(Some("p")).await.unwrap()[0].generation.clone();
    let receipt = engine.start(request(From::Scan, To::Live)).await.unwrap();
    assert_eq!((receipt.state, receipt.replaced.as_deref()), (State::Live, Some(&before[..])));
    messages.extend(world.send(50).await);
    world.settled(&runtime).await;
    let listed = engine.list(Some("p")).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.is_live).collect::<Vec<_>>(), [false, true]);

    let back = engine.rollback("p").await.unwrap();
    assert_eq!(back.state, State::Equal, "it waits again");
    messages.extend(world.send(30).await);
    world.settled(&runtime).await;
    let again = engine.approve("p").await.unwrap();
    assert_eq!((again.state, again.replaced.as_deref()), (State::Live, Some(&before[..])));
    messages.extend(world.send(30).await);
    world.settled(&runtime).await;
    runtime.drain().await;
    world.assert_holds(&receipt.generation, &messages);
    let refused = engine.discard("p", &receipt.generation).await.unwrap_err().to_string();
    assert!(refused.contains("it is the live generation"), "{refused}");
    engine.discard("p", &before).await.unwrap();
    let nothing = engine.rollback("p").await.unwrap_err().to_string();
    assert!(nothing.contains(&before), "{nothing}");
}

/// What the log has lost comes from the store, whatever the start.
#[tokio::test(flavor = "multi_thread")]
async fn retention_takes_nothing_from_a_rebuild() {
    let world = World::new().await;
    let week = Duration::from_secs(8 * 24 * 3600);
    world.go_back(week).await;
    let then = clock::unix_millis() - u64::try_from(week.as_millis()).unwrap();
    let old: Vec<_> = (0..60).map(|n| world.message_of(n % 7, "old", then)).collect();
    world.store(&old).await;
    world.publish(&old).await;
    world.go_back(Duration::ZERO).await;
    let mut messages = old;
    messages.extend(world.send(60).await);
    let marks = world.connected.log.watermarks(&"messages.persisted".into()).await.unwrap();
    assert_eq!(marks.iter().map(|marks| marks.low).sum::<u64>(), 60, "the log has lost them");

    let hour_ago = Timestamp::from_unix_millis(clock::unix_millis() - 3_600_000);
    for from in [From::Oldest, From::Scan, From::Time(hour_ago)] {
        let receipt = world.rebuild(from.clone(), To::Now).await.unwrap();
        assert_eq!((receipt.state, receipt.scanned), (State::Equal, true), "{from}");
        world.assert_holds(&receipt.generation, &messages);
    }
    let trimmed = world.rebuild(From::Offset(At::Each(0)), To::Now).await.unwrap_err().to_string();
    assert!(trimmed.contains("begin with a scan of the store"), "{trimmed}");
}

/// The generation before was not written to while another was live.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_back_is_brought_up_to_date() {
    let world = World::new().await;
    let mut messages = world.send(40).await;
    let runtime = world.live().await;
    world.settled(&runtime).await;
    let engine = world.engine(Some(&runtime));
    let before = engine.list(Some("p")).await.unwrap()[0].generation.clone();
    engine.start(request(From::Oldest, To::Live)).await.unwrap();
    messages.extend(world.send(60).await);
    world.settled(&runtime).await;
    engine.rollback("p").await.unwrap();
    runtime.drain().await;
    world.assert_holds(&before, &messages);
}

/// Nothing ever ran: the group begins where the rebuild ended.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_live_pipeline_the_group_follows_the_store() {
    let world = World::new().await;
    let mut messages = world.send(30).await;
    let receipt = world.rebuild(From::Scan, To::Live).await.unwrap();
    assert_eq!((receipt.state, receipt.replaced), (State::Live, None));
    let committed = world.connected.log.committed("p", &"messages.persisted".into()).await.unwrap();
    assert_eq!(committed.values().sum::<u64>(), 30, "it will not read them again");
    messages.extend(world.send(10).await);
    let runtime = world.live().await;
    world.settled(&runtime).await;
    let read: u64 = runtime.health().iter().map(|pipeline| pipeline.read).sum();
    assert_eq!(read, 10);
    runtime.drain().await;
    world.assert_holds(&receipt.generation, &messages);
}

/// Killed anywhere while it is taken back: either generation is live, the other one waits, and whoever asks again gets
/// what they ask for.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_that_was_cut_off_can_be_finished_and_undone() {
    let world = World::new().await;
    let messages = world.send(20).await;
    let older = world.rebuild(From::Oldest, To::Live).await.unwrap().generation;
    let newer = world.rebuild(From::Oldest, To::Live).await.unwrap().generation;
    let engine = world.engine(None);
    for polls in 1.. {
        let mut work = Box::pin(engine.rollback("p"));
        let mut left = polls;
        let done = poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            work.as_mut().poll(cx).map(Some)
        });
        let done = done.await.transpose().unwrap();
        drop(work);
        let listed = engine.list(Some("p")).await.unwrap();
        let [first, second] = &listed[..] else { panic!("{listed:?}") };
        assert_eq!((&first.generation, &second.generation), (&older, &newer));
        assert!(first.is_live != second.is_live);
        let state = second.state.unwrap();
        assert!(second.is_live || state == State::Equal, "it can be approved, and is {state:?}");
        if let Some(receipt) = done {
            assert_eq!((receipt.state, receipt.replaced), (State::Equal, None));
            break;
        }
        if first.is_live || state == State::Equal {
            let approved = engine.approve("p").await.unwrap();
            assert_eq!((approved.state, approved.replaced.as_deref()), (State::Live, Some(&older[..])));
        }
    }
    world.assert_holds(&older, &messages);
}

/// Slower than anybody waits: a record in a thousand seconds.
const SLOW: f64 = 0.001;
const PATIENCE: Duration = Duration::from_secs(30);

/// As if the newest rebuild had been told to go slowly.
async fn slow_down(world: &World) {
    let (mut receipt, generation) = world.engine(None).newest("p", "slowed down", |_| true).await.unwrap();
    receipt.request.rate = Some(SLOW);
    receipt.save(&generation).await.unwrap();
}

/// As if the live pipeline had read everything there is.
async fn move_group(log: &dyn Log) {
    let topic = Topic::from(messages_persisted::NAME);
    let marks = (0..).zip(log.watermarks(&topic).await.unwrap());
    let ends = marks.map(|(number, marks)| (TopicPartition::new(&topic, number), marks.high));
    log.reset_group("p", &ends.collect()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pace_of_a_rebuild_is_not_that_of_its_swap() {
    let world = World::new().await;
    let mut messages = world.send(20).await;
    let rebuilt = world.rebuild(From::Oldest, To::Now).await.unwrap();
    slow_down(&world).await;
    messages.extend(world.send(100).await);
    move_group(&*world.connected.log).await;
    let engine = world.engine(None);
    let live = timeout(PATIENCE, engine.approve("p")).await.expect("nobody has to wait").unwrap();
    assert_eq!((live.state, &live.generation), (State::Live, &rebuilt.generation));
    world.assert_holds(&live.generation, &messages);
}

/// The live pipeline moves on between the approach and the moment at which it is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn the_pace_of_a_rebuild_is_not_that_of_taking_it_back() {
    let world = World::new().await;
    let mut messages = world.send(20).await;
    let older = world.rebuild(From::Oldest, To::Live).await.unwrap().generation;
    world.rebuild(From::Oldest, To::Live).await.unwrap();
    slow_down(&world).await;
    messages.extend(world.send(100).await);
    let move_on = |progress: Progress| {
        if progress.phase == Phase::CatchingUp {
            let log = Arc::clone(&world.connected.log);
            std::thread::spawn(move || futures::executor::block_on(move_group(&*log))).join().unwrap();
        }
    };
    let engine = Engine { progress: &move_on, ..world.engine(None) };
    timeout(PATIENCE, engine.rollback("p")).await.expect("nobody has to wait").unwrap();
    world.assert_holds(&older, &messages);
}
