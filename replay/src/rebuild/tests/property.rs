//! Rebuilt = live, whatever happened: random histories with events that come late, twice or not in order, crashes while
//! it is rebuilt, and messages that keep coming.

use std::time::Duration;

use courant_connectors::model::tables::messages::Message;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::world::{World, request};
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
            // A process that is killed lets go of its files at once; here a write may still be under way.
            Some(Err(error)) if error.to_string().contains("somebody else has it open") => {}
            Some(Err(error)) => panic!("{error}"),
        }
        begun = !world.engine(None).list(None).await.unwrap().is_empty()
            && world.engine(None).show("p", None).await.is_ok();
    }
    unreachable!("it ends when it is done")
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilt_is_live_over_random_histories_and_crashes() {
    for seed in 0..8 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (world, mut late) = (World::new().await, Vec::new());
        let mut messages = history(&world, &mut random, &mut late).await;
        let from = match seed % 4 {
            0 => From::Scan,
            1 => From::Oldest,
            2 => From::Offset(At::Each(random.random_range(0..3))),
            _ => From::Time(messages[messages.len() / 2].created_at),
        };
        let receipt = with_crashes(&world, from.clone(), &mut random).await;
        // Messages keep coming, and those that were late come at last.
        messages.extend(history(&world, &mut random, &mut late).await);
        world.publish(&late).await;
        let receipt = if receipt.state == State::Live {
            receipt
        } else {
            world.engine(None).approve("p").await.unwrap()
        };
        let runtime = world.live().await;
        world.settled(&runtime).await;
        runtime.drain().await;
        assert_eq!(receipt.state, State::Live, "seed {seed}");
        world.assert_holds(&receipt.generation, &messages);
    }
}
