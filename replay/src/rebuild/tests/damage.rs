//! A comparison finds what is wrong with a store, and nothing else.

use courant_connectors::files::keyed::{KeyedTable, Row};
use courant_connectors::model::tables::messages::Message;

use super::world::{PIPELINE, World};
use crate::rebuild::{Comparison, From, Receipt, StageComparison, State, To};

/// Rebuilds, changes something behind its back, and compares again.
async fn after(change: impl AsyncFnOnce(&World, &[Message], &Receipt)) -> (Comparison, World) {
    let world = World::new().await;
    let messages = world.send(60).await;
    let receipt = world.rebuild(From::Scan, To::Now).await.unwrap();
    assert_eq!(receipt.state, State::Equal);
    change(&world, &messages, &receipt).await;
    let receipt = world.engine(None).resume("p").await.unwrap();
    assert_eq!(receipt.state, State::Differs);
    (receipt.comparison.unwrap(), world)
}

async fn put(world: &World, receipt: &Receipt, stage: &str, key: &str, version: u64) {
    let table = KeyedTable::open(world.stage_folder(&receipt.generation, stage)).await.unwrap();
    let row = Row { key: key.to_owned(), version, at: 0, value: "{}".into() };
    table.put(vec![row]).await.unwrap();
}

fn counts(comparison: &Comparison, stage: usize) -> [u64; 4] {
    let found = &comparison.stages[stage];
    [found.missing.count, found.extra.count, found.stale.count, found.different.count]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_nobody_expects_is_extra() {
    let (found, world) =
        after(async |world, _, receipt| put(world, receipt, "all", "chat_x/1", 0).await).await;
    assert_eq!((counts(&found, 0), counts(&found, 1)), ([0, 1, 0, 0], [0; 4]));
    assert_eq!((&found.stages[0].extra.examples[..], found.differences()), (&["chat_x/1".to_owned()][..], 1));
    let live = world.engine(None).approve("p").await.unwrap();
    assert_eq!(live.state, State::Live, "somebody looked at it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_says_something_else_is_different() {
    let (found, _) = after(async |world, messages, receipt| {
        put(world, receipt, "all", &format!("{}/{}", messages[7].chat_id, messages[7].sequence), 0).await;
        put(world, receipt, "last", messages[7].chat_id.as_str(), 1_000_000).await;
    })
    .await;
    assert_eq!((counts(&found, 0), counts(&found, 1)), ([0, 0, 0, 1], [0, 0, 0, 1]));
}

/// Stored, and never published: the rebuilt store lacks it, or has the one before.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_the_log_never_told_of_is_missing_or_stale() {
    let (found, _) = after(async |world, _, _| {
        world.store(&[world.message_of(3, "never published", 1_000_000)]).await;
        world.store(&[world.message_of(99, "in a chat of its own", 1_000_000)]).await;
    })
    .await;
    assert_eq!((counts(&found, 0), counts(&found, 1)), ([2, 0, 0, 0], [1, 0, 1, 0]));
}

/// What came after the fence is not expected before it, and what comes very late is looked at again.
#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_goes_on_is_no_difference() {
    let world = World::with(&PIPELINE.replace(", at = '.created_at'", "")).await;
    world.send(60).await;
    world.rebuild(From::Oldest, To::Now).await.unwrap();
    world.send(20).await;
    let receipt = world.engine(None).resume("p").await.unwrap();
    let comparison = receipt.comparison.unwrap();
    assert_eq!((receipt.state, comparison.looks), (State::Equal, 1), "{:?}", comparison.stages);
    assert_eq!((comparison.stages[0].expected, comparison.stages[0].actual), (60, 60));

    let late = [world.message_of(3, "published at last", 1_000_000)];
    world.store(&late).await;
    world.publish(&late).await;
    let receipt = world.engine(None).resume("p").await.unwrap();
    let comparison = receipt.comparison.unwrap();
    assert_eq!((receipt.state, comparison.looks), (State::Equal, 2), "{:?}", comparison.stages);
    let entries = comparison.stages.iter().map(|stage| (stage.expected, stage.actual));
    assert_eq!(entries.collect::<Vec<_>>(), [(61, 61), (7, 7)]);
    assert_agrees(&comparison);
}

/// What is called equal is equal by its digests too.
#[track_caller]
fn assert_agrees(comparison: &Comparison) {
    for stage in &comparison.stages {
        assert_eq!(stage.actual_digest, stage.expected_digest, "{stage:?}");
    }
}

/// One that is late and one that nobody expects: after the second look only the latter tells the two sides apart.
#[tokio::test(flavor = "multi_thread")]
async fn counts_and_digests_are_those_of_the_last_look() {
    let world = World::new().await;
    world.send(60).await;
    let receipt = world.rebuild(From::Oldest, To::Now).await.unwrap();
    let (stage, digests) = (&receipt.comparison.as_ref().unwrap().stages[0], |stage: &StageComparison| {
        (stage.expected_digest.clone(), stage.actual_digest.clone())
    });
    let first = digests(stage);
    put(&world, &receipt, "all", "chat_x/1", 0).await;
    let late = [world.message_of(3, "published late", 1_000_000)];
    world.store(&late).await;
    world.publish(&late).await;
    let comparison = world.engine(None).resume("p").await.unwrap().comparison.unwrap();
    let [all, last] = &comparison.stages[..] else { panic!("{comparison:?}") };
    assert_eq!((comparison.looks, counts(&comparison, 0), counts(&comparison, 1)), (2, [0, 1, 0, 0], [0; 4]));
    assert_eq!((all.expected, all.actual, last.expected, last.actual), (61, 62, 7, 7), "{comparison:?}");
    assert_eq!(last.actual_digest, last.expected_digest);
    let second = digests(all);
    assert!(second.0 != second.1 && second.0 != first.0 && second.1 != first.1, "{first:?}, {second:?}");

    let at_once = world.engine(None).resume("p").await.unwrap().comparison.unwrap();
    assert_eq!((at_once.looks, at_once.stages), (1, comparison.stages), "as one look at everything finds it");
}

/// A poison record is kept aside by the rebuild, not told to the live queue, and said. Nobody knows what should have come of
/// it, so somebody has to approve: a stage that is wrong makes poison of every record.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_record_is_counted_and_said() {
    let world = World::new().await;
    world.send(10).await;
    let poison = [world.message(1, "poison")];
    world.store(&poison).await;
    world.publish(&poison).await;
    world.send(10).await;
    for from in [From::Oldest, From::Scan] {
        let receipt = world.rebuild(from, To::Live).await.unwrap();
        assert_eq!((receipt.state, receipt.records.dead_lettered), (State::Differs, 1));
        let comparison = receipt.comparison.unwrap();
        assert_eq!((comparison.dead_lettered, comparison.differences()), (1, 0));
        assert!(world.engine(None).list(None).await.unwrap().iter().all(|listed| !listed.is_live));
    }
    assert_eq!(world.engine(None).approve("p").await.unwrap().state, State::Live);
    let live = world.host.services.get::<courant_stages::host::DeadLetterStore>().unwrap();
    assert!(live.journal().list(None, 9).await.unwrap().is_empty());
}

/// More differ at first than are remembered: those are looked at again that are not, too.
#[tokio::test(flavor = "multi_thread")]
async fn of_too_many_keys_to_remember_all_are_looked_at_again() {
    const REMEMBERED: usize = 20;
    let world = World::new().await;
    world.send(60).await;
    world.rebuild(From::Oldest, To::Now).await.unwrap();
    let engine = world.engine(None);
    let (mut receipt, generation) = engine.newest("p", "compared", |_| true).await.unwrap();
    let plan = engine.plan_again(&receipt).unwrap();
    for (extra, state) in [(0, State::Equal), (8, State::Differs)] {
        let late: Vec<_> = (0..200).map(|chat| world.message_of(chat, "published late", 1_000_000)).collect();
        world.store(&late).await;
        world.publish(&late).await;
        for n in 0..extra {
            put(&world, &receipt, "all", &format!("chat_x/{n}"), 0).await;
        }
        engine.prove(&plan, &mut receipt, &generation, REMEMBERED).await.unwrap();
        let comparison = receipt.comparison.clone().unwrap();
        assert_eq!((counts(&comparison, 0), counts(&comparison, 1)), ([0, extra, 0, 0], [0; 4]));
        assert_eq!((receipt.state, comparison.looks), (state, 2));
        let Some(all) = comparison.stages.first() else { panic!("nothing was compared") };
        assert_eq!(all.actual - all.expected, extra);
    }
}
