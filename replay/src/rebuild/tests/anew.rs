//! The topic is deleted and made anew: places that were kept are beyond its end.

use std::time::Duration;

use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::{self, messages_persisted};
use courant_pipeline::clock;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::world::{World, request};
use crate::positions::{self, Reset, reset};
use crate::rebuild::{Engine, Error, From, Receipt, Result, State, To};

const HOUR: u64 = 3_600_000;

/// Messages of an hour ago, so that nobody needs the log to know whether they were published.
async fn send(world: &World, count: u64) -> Vec<Message> {
    let then = clock::unix_millis() - HOUR;
    let messages: Vec<_> = (0..count).map(|n| world.message_of(n % 7, "old", then)).collect();
    world.store(&messages).await;
    world.publish(&messages).await;
    messages
}

/// Without anything that was in it.
async fn make_anew(world: &World) {
    let is_it = |spec: &courant_connectors::log::TopicSpec| spec.name.as_str() == messages_persisted::NAME;
    let spec = topics::all().into_iter().find(is_it).unwrap();
    world.connected.log.delete_topic(&spec.name).await.unwrap();
    world.connected.log.create_topic(&spec).await.unwrap();
}

/// It says so, and does not wait for records that never come.
async fn refused(asked: impl Future<Output = Result<Receipt>>) -> Error {
    timeout(Duration::from_secs(30), asked).await.expect("it does not wait").unwrap_err()
}

async fn begin_with_the_oldest(world: &World) {
    let asked = Reset::of(&world.topologies, "p", positions::To::Oldest).unwrap();
    reset(&*world.connected.log, &asked).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_beyond_the_end_is_said_and_not_waited_for() {
    let world = World::new().await;
    let mut messages = send(&world, 60).await;
    let runtime = world.live().await;
    world.settled(&runtime).await;
    runtime.drain().await;
    let live = world.engine(None).list(Some("p")).await.unwrap().remove(0).generation;
    make_anew(&world).await;
    messages.extend(send(&world, 10).await);

    let check = |error: Error| {
        let said = error.to_string();
        let Error::GroupBeyondEnd { group, partition, committed, high, .. } = error else { panic!("{said}") };
        assert!(group == "p" && committed > high && high <= 10, "{said}");
        assert!(said.contains(&format!("{partition} up to {committed}, and {partition} ends at {high}")));
        assert!(said.contains("`courant positions reset p --to oldest`"), "{said}");
    };
    check(refused(world.rebuild(From::Scan, To::Live)).await);
    assert_eq!(world.engine(None).list(None).await.unwrap().len(), 1, "nothing was made");
    let rebuilt = world.rebuild(From::Scan, To::Now).await.unwrap();
    assert_eq!(rebuilt.state, State::Equal, "{:?}", rebuilt.comparison);
    check(refused(world.engine(None).approve("p")).await);
    assert!(world.engine(None).list(None).await.unwrap()[0].is_live, "as before");

    begin_with_the_oldest(&world).await;
    let swapped = world.engine(None).approve("p").await.unwrap();
    assert_eq!((swapped.state, swapped.replaced), (State::Live, Some(live)));
    messages.extend(send(&world, 10).await);
    let runtime = world.live().await;
    world.settled(&runtime).await;
    runtime.drain().await;
    world.assert_holds(&rebuilt.generation, &messages);
}

#[track_caller]
fn is_told_to_discard(error: Error, generation: &str) {
    let said = error.to_string();
    let Error::MadeBeyondEnd { partition, made_to, high, .. } = error else { panic!("{said}") };
    assert!(made_to > high && high <= 10, "{said}");
    assert!(said.contains(&format!("{partition} up to {made_to}, and {partition} ends at {high}")), "{said}");
    assert!(said.contains(&format!("`courant replay p --discard {generation}`")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_of_the_log_before_is_not_gone_on_with() {
    for is_stopped in [true, false] {
        let world = World::new().await;
        send(&world, 60).await;
        let stop = CancellationToken::new();
        if is_stopped {
            stop.cancel();
        }
        let engine = Engine { stop: &stop, ..world.engine(None) };
        let begun = engine.start(request(From::Oldest, To::Now)).await;
        assert_eq!(begun.is_err(), is_stopped, "{begun:?}");
        make_anew(&world).await;
        send(&world, 10).await;
        let engine = world.engine(None);
        let generation = engine.newest("p", "resumed", |_| true).await.unwrap().0.generation;
        is_told_to_discard(refused(engine.resume("p")).await, &generation);
        engine.discard("p", &generation).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_of_the_log_before_is_not_put_in_place() {
    let world = World::new().await;
    send(&world, 60).await;
    let rebuilt = world.rebuild(From::Oldest, To::Now).await.unwrap().generation;
    make_anew(&world).await;
    send(&world, 10).await;
    is_told_to_discard(refused(world.engine(None).approve("p")).await, &rebuilt);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_of_the_log_before_is_not_put_back() {
    let world = World::new().await;
    send(&world, 60).await;
    let older = world.rebuild(From::Oldest, To::Live).await.unwrap().generation;
    let newer = world.rebuild(From::Oldest, To::Live).await.unwrap().generation;
    make_anew(&world).await;
    send(&world, 10).await;
    begin_with_the_oldest(&world).await;
    let engine = world.engine(None);
    is_told_to_discard(refused(engine.rollback("p")).await, &older);
    assert_eq!(engine.list(None).await.unwrap().iter().find(|one| one.is_live).unwrap().generation, newer);
}
