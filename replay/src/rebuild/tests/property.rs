//! Rebuilt = live, whatever happened: random histories with events that come late, twice or not in order, crashes while
//! it is rebuilt, and messages that keep coming.

use std::time::Duration;

use courant_connectors::model::tables::messages::Message;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::world::{COUNTED, PIPELINE, World, request};
use crate::rebuild::{At, Engine, Error, From, State, To};

/// Sends some messages: some are published late, or twice.
async fn history(world: &World, random: &mut SmallRng, late: &mut Vec<Message>) -> Vec<Message> {
    let mut messages = Vec::new();
    for _ in 0..random.random_range(1..6) {
        let count = random.random_range(1..40);
        let some: Vec<_> =
            (0..count).map(|n| world.message(random.random_range(0..9), &format!("m{n}"))).collect();
        world.store(&some).await;
        let (now, later): (Vec<_>, Vec<_>) = some.iter().cloned().partition(|_| random.random_bool(0.9));
        world.publish(&now).await;
        late.extend(later);
        if random.random_bool(0.3) && !messages.is_empty() {
            let again: &Message = &messages[random.random_range(0..messages.len())];
            world.publish(std::slice::from_ref(again)).await;
        }
        if random.random_bool(0.3) {
            world.publish(&std::mem::take(late)).await;
        }
        messages.extend(some);
    }
    messages
}

/// Runs it again and again, each time for a little longer, until it is done.
async fn with_crashes(world: &World, from: From, random: &mut SmallRng) -> crate::rebuild::Receipt {
    let mut begun = false;
    for attempt in 0u64.. {
        let stop = CancellationToken::new();
        let engine = Engine { stop: &stop, ..world.engine(None) };
        let patience = Duration::from_millis(random.random_range(0..=5 + attempt * 20));
        let work = async {
            if begun { engine.resume("p").await } else { engine.start(request(from.clone(), To::Now)).await }
        };
        let done = if random.random_bool(0.5) {
            // Like a process that is killed: whatever is under way is gone.
            tokio::time::timeout(patience, work).await.ok()
        } else {
            let later = async {
                tokio::time::sleep(patience).await;
                stop.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! { done = work => Some(done), () = later => None }
        };
        match done {
            Some(Ok(receipt)) => return receipt,
            None | Some(Err(Error::Stopped { .. } | Error::Nothing { .. })) => {}
            Some(Err(error)) if is_in_the_way(&error) => {}
            Some(Err(error)) => panic!("{error}"),
        }
        begun = world.engine(None).show("p", None).await.is_ok();
    }
    unreachable!("it ends when it is done")
}

/// A process that is killed lets go of its files at once; here a write of the one before may still be under way.
fn is_in_the_way(error: &Error) -> bool {
    let error = error.to_string();
    error.contains("somebody else has it open") || error.contains("cannot replace")
}

/// Sends for a while, some at a time; what it sent.
async fn tail(world: &World, mut random: SmallRng, late: &mut Vec<Message>) -> Vec<Message> {
    let mut messages = Vec::new();
    for _ in 0..random.random_range(3..9) {
        messages.extend(history(world, &mut random, late).await);
        tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await;
    }
    messages
}

/// Approves again and again, as one does with a process that dies over it.
async fn approved_at_last(world: &World, random: &mut SmallRng) -> crate::rebuild::Receipt {
    for attempt in 0u64.. {
        let patience = Duration::from_micros(random.random_range(0..=500 + attempt * 5000));
        match tokio::time::timeout(patience, world.engine(None).approve("p")).await {
            Ok(Ok(receipt)) => return receipt,
            Ok(Err(error)) if is_in_the_way(&error) => {}
            // It was done, and nobody was told.
            Ok(Err(Error::Nothing { .. })) => return world.engine(None).show("p", None).await.unwrap(),
            Ok(Err(error)) => panic!("{error}"),
            Err(_) => {}
        }
    }
    unreachable!("it ends when it is done")
}

/// The same pipeline twice: one is rebuilt, and the other has been live all the time. It counts by windows, which take a
/// message that was published twice once, and how often each message came.
fn twice() -> String {
    let minutes = r#"
[[pipeline.stage]]
kind = "window"
input = "map"
params = { size = "1m", lateness = "1d", time = ".created_at", id = ".message_id", emit = "updates", group_by = { chat_id = ".chat_id" }, aggregates = { messages = "count", sum = { sum = ".sequence" } } }
[[pipeline.stage]]
kind = "table"
name = "minutes"
params = { key = '"\(.chat_id)/\(.window_start)"', at = '.window_start' }
"#;
    let rebuilt = [PIPELINE, minutes, COUNTED].concat();
    [
        &rebuilt.replace("[\"messages.persisted\"]", "[\"messages.persisted\"], start = 'latest'"),
        &*rebuilt.replace("name = \"p\"", "name = \"live\""),
    ]
    .concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilt_is_live_over_random_histories_and_crashes() {
    let soak = std::env::var("COURANT_SOAK_CASES").ok().and_then(|cases| cases.parse().ok());
    for seed in 0..soak.unwrap_or(4) {
        let mut random = SmallRng::seed_from_u64(seed);
        let (world, mut late) = (World::with(&twice()).await, Vec::new());
        // Of the first the scan gives all, of the last the log, and of those between both have some.
        let mut old = Vec::new();
        for minutes in [60, 25, 15, 5] {
            old.extend(world.sent_ago(Duration::from_secs(minutes * 60), random.random_range(10..40)).await);
        }
        world.go_back(Duration::ZERO).await;
        let live = world.live_only("live").await;
        let mut messages = history(&world, &mut random, &mut late).await;
        let from = match seed % 4 {
            0 => From::Scan,
            1 => From::Oldest,
            2 => From::Offset(At::Each(random.random_range(0..3))),
            _ => From::Time(messages[messages.len() / 2].created_at),
        };
        // Messages keep coming while it is rebuilt and goes live, and those that were late come at last.
        let chance = SmallRng::seed_from_u64(seed + 1000);
        let (receipt, sent) = tokio::join!(
            async {
                with_crashes(&world, from.clone(), &mut random).await;
                approved_at_last(&world, &mut random).await
            },
            tail(&world, chance, &mut late)
        );
        messages.extend(old.into_iter().chain(sent));
        let runtime = world.live_only("p").await;
        world.publish(&late).await;
        for (pipeline, runtime) in [("p", &runtime), ("live", &live)] {
            world.settled_of(pipeline, runtime).await;
            runtime.drain().await;
        }
        assert_eq!((receipt.state, &receipt.replaced), (State::Live, &None), "seed {seed}");
        world.assert_holds(&receipt.generation, &messages);
        world.assert_counted_once(&receipt.generation, &messages);
        let beside = world.engine(None).list(Some("live")).await.unwrap().remove(0).generation;
        for stage in ["all", "last", "minutes"] {
            let of = |pipeline, generation| World::rows_in(&world.folder_of(pipeline, generation, stage));
            assert_eq!(of("p", &receipt.generation), of("live", &beside), "{stage}, seed {seed} from {from}");
        }
    }
}
