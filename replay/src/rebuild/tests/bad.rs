//! What cannot be done is refused with the reason, before anything is made.

use std::time::Duration;

use courant_pipeline::clock;
use rand::distr::Alphanumeric;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::world::{World, request};
use crate::rebuild::{At, Engine, From, Pace, Request, State, To};

pub(super) async fn refused(world: &World, request: Request) -> String {
    let refused = world.engine(None).start(request).await.unwrap_err().to_string();
    assert!(world.engine(None).list(None).await.unwrap().is_empty(), "nothing was made: {refused}");
    refused
}

#[tokio::test]
async fn names_and_places_that_are_not_there() {
    let world = World::new().await;
    world.send(10).await;
    let unknown = refused(&world, Request::new("pp", From::Scan, To::Live)).await;
    assert_eq!(unknown, "there is no pipeline `pp`; did you mean `p`?");
    let suppress = Request { suppress: vec!["lst".into()], ..request(From::Scan, To::Live) };
    let stage = refused(&world, suppress).await;
    assert!(stage.contains("no stage `lst`") && stage.contains("did you mean `last`"), "{stage}");
    let late = refused(&world, request(From::Offset(At::Each(1000)), To::Live)).await;
    assert!(late.contains("1000 is not written yet"), "{late}");
    let named = At::Named([("messages.persisted/0".to_owned(), 500)].into());
    let late = refused(&world, request(From::Offset(named.clone()), To::Live)).await;
    assert!(late.contains("and not 500"), "{late}");
    let late = refused(&world, request(From::Oldest, To::Offset(named))).await;
    assert!(late.contains("500 is not written yet"), "{late}");
    let past = refused(&world, request(From::Offset(At::Each(2)), To::Offset(At::Each(1)))).await;
    assert!(past.contains("the end lies before the start in messages.persisted/"), "{past}");
    let other = At::Named([("messages.persisted/77".to_owned(), 0)].into());
    let other = refused(&world, request(From::Offset(other), To::Live)).await;
    assert!(other.contains("no partition `messages.persisted/77`"), "{other}");
    for what in ["resumed", "approved"] {
        let engine = world.engine(None);
        let nothing = if what == "resumed" { engine.resume("p").await } else { engine.approve("p").await };
        assert!(nothing.unwrap_err().to_string().contains(what));
    }
}

#[tokio::test]
async fn pipelines_that_make_nothing_from_history() {
    let kinds = [
        ("stage = [{ kind = 'generate' }, { kind = 'blackhole' }]", "its source is `generate`"),
        (
            "stage = [{ kind = 'kafka-consume', params = { topics = ['messages.persisted'] } }, { kind = 'blackhole' }]",
            "none of its sinks keeps a store",
        ),
    ];
    for (stages, reason) in kinds {
        let world = World::with(&format!("[[pipeline]]\nname = 'p'\n{stages}\n")).await;
        let refused = refused(&world, request(From::Oldest, To::Now)).await;
        assert!(refused.contains(reason), "{refused}");
    }
    let topics = "stage = [{ kind = 'kafka-consume', params = { topics = ['chats.created'] } }, \
                  { kind = 'table', params = { key = '.a' } }]";
    let world = World::with(&format!("[[pipeline]]\nname = 'p'\n{topics}\n")).await;
    let refused = refused(&world, request(From::Scan, To::Now)).await;
    assert!(refused.contains("use --from oldest"), "{refused}");
}

#[tokio::test]
async fn a_rebuild_that_is_not_finished_is_not_forgotten() {
    let world = World::new().await;
    world.send(50).await;
    world.stop.cancel();
    let stopped = world.rebuild(From::Scan, To::Now).await.unwrap_err().to_string();
    assert!(stopped.contains("courant replay p --resume"), "{stopped}");
    let again = world.rebuild(From::Scan, To::Now).await.unwrap_err().to_string();
    assert!(again.contains("is not finished") && again.contains("--discard"), "{again}");
}

/// The log has lost what it had still to read.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_waited_for_too_long_says_so_and_the_live_store_stays() {
    let world = World::new().await;
    let ago = Duration::from_secs(8 * 24 * 3600);
    world.go_back(ago).await;
    let then = clock::unix_millis() - u64::try_from(ago.as_millis()).unwrap();
    let old: Vec<_> = (0..40).map(|n| world.message_of(n % 7, "old", then)).collect();
    world.store(&old).await;
    world.publish(&old).await;
    let live = world.rebuild(From::Oldest, To::Live).await.unwrap();
    assert_eq!(live.state, State::Live);
    world.stop.cancel();
    world.rebuild(From::Oldest, To::Live).await.unwrap_err();
    world.go_back(Duration::ZERO).await;
    let stop = CancellationToken::new();
    let engine = Engine { stop: &stop, ..world.engine(None) };
    let said = format!("{:?}", engine.resume("p").await.unwrap_err());
    assert!(said.contains("begin with a scan of the store"), "{said}");
    assert!(world.engine(None).list(None).await.unwrap()[0].is_live);
    world.assert_holds(&live.generation, &old);
}

/// Standing back needs somebody to stand back for.
#[tokio::test(flavor = "multi_thread")]
async fn a_pace_is_refused_that_cannot_be_kept() {
    let world = World::new().await;
    let messages = world.send(30).await;
    let yields = Request { yield_over: Some(Duration::from_millis(50)), ..request(From::Scan, To::Live) };
    let said = refused(&world, yields.clone()).await;
    assert!(said.contains("could stand back for") && said.contains("--rate"), "{said}");
    assert!(world.engine(None).estimate(&yields).await.is_err());
    let runtime = world.live().await;
    let receipt = world.engine(Some(&runtime)).start(yields).await.unwrap();
    runtime.drain().await;
    assert_eq!(receipt.state, State::Live);
    world.assert_holds(&receipt.generation, &messages);
}

/// The process that it stood back in is gone, and what it was told then is no reason to begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_stood_back_goes_on_where_nothing_is_live() {
    let world = World::new().await;
    let messages = world.send(30).await;
    let over = Some(Duration::from_millis(50));
    let runtime = world.live().await;
    world.settled(&runtime).await;
    world.stop.cancel();
    let yields = Request { yield_over: over, ..request(From::Oldest, To::Now) };
    world.engine(Some(&runtime)).start(yields).await.unwrap_err();
    runtime.drain().await;
    let stop = CancellationToken::new();
    let engine = Engine { stop: &stop, ..world.engine(None) };
    let asked_again = engine.resume_at("p", Pace { yield_over: over, rate: None }).await.unwrap_err();
    assert!(asked_again.to_string().contains("could stand back for"), "{asked_again}");
    let receipt = engine.resume("p").await.unwrap();
    assert_eq!((receipt.state, receipt.request.yield_over), (State::Equal, None));
    world.assert_holds(&receipt.generation, &messages);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_estimate_makes_nothing_and_is_about_right() {
    const RECORDS: u64 = 200;
    const CONTENT: usize = 4000;
    let world = World::new().await;
    let random = SmallRng::seed_from_u64(1);
    let mut letters = random.sample_iter(Alphanumeric).map(char::from);
    let mut content = || letters.by_ref().take(CONTENT).collect::<String>();
    let messages: Vec<_> = (0..RECORDS).map(|n| world.message(n % 7, &content())).collect();
    world.store(&messages).await;
    world.publish(&messages).await;
    let engine = world.engine(None);
    let in_memory = engine.estimate(&request(From::Oldest, To::Live)).await.unwrap();
    assert_eq!((in_memory.bytes, in_memory.read_units), (None, None), "nothing is known, which is not none");

    world.flush().await;
    let bytes = RECORDS * CONTENT as u64;
    let about =
        |told: Option<u64>, really: u64| told.is_some_and(|told| (really..really * 3 / 2).contains(&told));
    for (from, walks) in [(From::Oldest, 1), (From::Scan, 2)] {
        let estimate = engine.estimate(&request(from.clone(), To::Live)).await.unwrap();
        assert_eq!((estimate.records, estimate.scanned), (Some(RECORDS), from == From::Scan));
        assert!(about(estimate.bytes, bytes), "{estimate:?}");
        assert!(about(estimate.read_units, walks * bytes / 4096), "{estimate:?}");
        let (Some(rate), Some(seconds)) = (estimate.records_per_second, estimate.seconds) else {
            panic!("{estimate:?}")
        };
        assert!(rate > 10.0 && (seconds * rate - RECORDS as f64).abs() < 1.0, "{estimate:?}");
    }
    let slowly = Request { rate: Some(10.0), ..request(From::Oldest, To::Live) };
    let slowly = engine.estimate(&slowly).await.unwrap();
    assert!(slowly.seconds.is_some_and(|seconds| (19.0..60.0).contains(&seconds)), "{slowly:?}");
    assert!(engine.list(None).await.unwrap().is_empty());
}
