//! What a receipt tells of a rebuild: how its records ended, also after a kill.

use std::sync::Mutex;
use std::time::Duration;

use courant_pipeline::Tally;

use super::world::{World, request};
use crate::rebuild::{Engine, From, Pace, Phase, Progress, Request, State, To};

/// The process dies while it reads: what it did is on the receipt all the same, and what is left is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_run_did_is_counted() {
    const MESSAGES: u64 = 900;
    const RATE: u64 = 200;
    for from in [From::Oldest, From::Scan] {
        let world = World::new().await;
        let messages = world.send(MESSAGES).await;
        let engine = world.engine(None);
        let slowly = Request { rate: Some(RATE as f64), ..request(from.clone(), To::Now) };
        let noted = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                if let Ok(receipt) = engine.show("p", None).await
                    && receipt.records != Tally::default()
                {
                    return receipt.records;
                }
            }
        };
        let noted = tokio::select! {
            done = engine.start(slowly) => panic!("it is killed before: {:?}", done.map(|done| done.records)),
            noted = noted => noted,
        };
        let of = Mutex::new(None);
        let first = |progress: Progress| {
            if progress.phase == Phase::Building {
                of.lock().unwrap().get_or_insert(progress.of);
            }
        };
        let engine = Engine { progress: &first, ..engine };
        let receipt = engine.resume_at("p", Pace { rate: Some(1e6), yield_over: None }).await.unwrap();
        assert_eq!(receipt.state, State::Equal, "from {from}");
        // Noted every second: what was done since is not counted, or counted twice if it had to be done again.
        let around = MESSAGES - 2 * RATE..=MESSAGES + 2 * RATE;
        assert!(
            around.contains(&receipt.records.sum()),
            "from {from}: {:?} after {noted:?}",
            receipt.records
        );
        assert_eq!(of.into_inner().unwrap(), Some(Some(MESSAGES - noted.sum())), "from {from}");
        world.assert_holds(&receipt.generation, &messages);
    }
}
