//! Following the embedded engine's changes across a restart: positions that were kept before are good after.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use courant_conformance::LIMIT;
use courant_connectors::embedded::{Engine, Options};
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{
    AdminStore as _, Durability, FollowFrom, FollowOptions, FollowPositions, Follower, Returning,
    WriteStore as _,
};

const ROUNDS: u64 = 4;
const PER_ROUND: u64 = 20;

fn message(sequence: u64) -> Message {
    Message {
        chat_id: "chat_1".into(),
        sequence,
        message_id: format!("msg_{sequence}").into(),
        sender_id: "user_1".into(),
        client_message_id: format!("c-{sequence}").into(),
        content: "hello".into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(1_769_783_400_000),
    }
}

/// Opens the folder, writes this round's messages, and follows until `count` of all have passed and are done.
/// The rest of them is left to the next round.
async fn round(folder: &Path, round: u64, from: FollowFrom, count: usize) -> (Vec<u64>, FollowPositions) {
    let engine = Engine::open(folder, Options::default()).await.expect("the folder opens");
    engine.create_table(&messages::SCHEMA).await.expect("the table is there");
    for sequence in round * PER_ROUND + 1..=(round + 1) * PER_ROUND {
        let put = messages::put_write(&message(sequence));
        engine.write(put, Returning::Nothing, Durability::Synced).await.expect("a new message");
    }
    let options = FollowOptions { batch: NonZeroUsize::new(3).unwrap(), ..FollowOptions::default() };
    let table = messages::SCHEMA.name.clone();
    let mut follower = Follower::new(Arc::clone(&engine) as Arc<_>, table, from, options);
    let mut seen = Vec::new();
    while seen.len() < count {
        let batch = tokio::time::timeout(LIMIT, follower.next()).await.expect("more to come").unwrap();
        for change in &batch.changes {
            seen.push(Message::from_item(change.new.as_ref().unwrap()).unwrap().sequence);
        }
        follower.checkpoint(&batch.checkpoint);
    }
    let positions = follower.positions();
    drop(follower);
    engine.close().await;
    (seen, positions)
}

#[tokio::test]
async fn a_follower_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut from = FollowFrom::Oldest;
    let mut seen = Vec::new();
    for number in 0..ROUNDS {
        // fewer than were written, so that there is always something left from before the restart
        let (passed, positions) = round(folder.path(), number, from, 10).await;
        seen.extend(passed);
        from = FollowFrom::Positions(positions);
    }
    let all: Vec<u64> = (1..=(ROUNDS + 1) * PER_ROUND).collect();
    let (rest, _) = round(folder.path(), ROUNDS, from, all.len() - seen.len()).await;
    seen.extend(rest);
    assert_eq!(seen, all, "each once, in the order of their writing");
}
