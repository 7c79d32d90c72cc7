//! What a receipt tells of a rebuild: how its records ended, also after a kill, and what it was made by and from.

use std::sync::Mutex;
use std::time::Duration;

use courant_connectors::log::Topic;
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::Tally;

use super::world::{PIPELINE, World, request};
use crate::rebuild::{At, Engine, From, Named, Pace, Phase, Progress, Request, State, To};

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

#[tokio::test(flavor = "multi_thread")]
async fn the_receipt_names_what_it_was_made_by_and_from() {
    let world = World::new().await;
    world.send(90).await;
    let topic = Topic::from(messages_persisted::NAME);
    let ends = world.connected.log.watermarks(&topic).await.unwrap();
    let all = |at: u64| -> Named {
        let each = ends.iter().zip(0..).map(|(marks, n)| (format!("{topic}/{n}"), at.min(marks.high)));
        each.collect()
    };
    let mut configs = Vec::new();
    for (from, scanned) in [(From::Oldest, false), (From::Offset(At::Each(3)), true), (From::Scan, true)] {
        let receipt = world.rebuild(from.clone(), To::Now).await.unwrap();
        // With a scan the log is read from twenty minutes before its end, when it had not begun.
        assert_eq!((&receipt.start, &receipt.fence), (&all(0), &all(u64::MAX)), "from {from}");
        assert_eq!((receipt.scanned, receipt.join.is_some()), (scanned, scanned), "from {from}");
        let (version, build) = receipt.code.split_once('+').expect("a version and a build");
        assert_eq!((version, build.len()), (env!("CARGO_PKG_VERSION"), 16), "{}", receipt.code);
        configs.push(receipt.config);
    }
    assert_eq!((configs[0].len(), &configs[0]), (16, &configs[1]));
    let other = World::with(&PIPELINE.replace("\"poison\"", "\"poisoned\"")).await;
    let other = other.rebuild(From::Oldest, To::Now).await.unwrap();
    assert_ne!(other.config, configs[0], "the pipeline is another one");
}
