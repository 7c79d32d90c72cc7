//! Reading the embedded engine's changes across a restart: places that were kept before are good after.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use courant_connectors::embedded::{Engine, Options};
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{
    AdminStore as _, ChangeStream as _, Durability, Returning, ShardId, ShardRead, ShardStart, StoreError,
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

/// Opens the folder, writes this round's messages one by one and the next ones all at once, and reads `count` of all in
/// parts of three. The rest is left to the next round, also where a part ends in the middle of what was written at once.
async fn round(folder: &Path, round: u64, from: ShardStart, count: usize) -> (Vec<u64>, ShardStart) {
    let engine = Engine::open(folder, Options::default()).await.expect("the folder opens");
    let table = &messages::SCHEMA.name;
    engine.create_table(&messages::SCHEMA).await.expect("the table is there");
    let sequences = round * PER_ROUND + 1..=(round + 1) * PER_ROUND;
    let put = |sequence| {
        engine.write(messages::put_write(&message(sequence)), Returning::Nothing, Durability::Synced)
    };
    for sequence in sequences.clone().take(5) {
        put(sequence).await.expect("a new message");
    }
    futures::future::try_join_all(sequences.skip(5).map(put)).await.expect("new messages");
    let shard = shard_of_the_chat(&engine).await;
    let mut reader = engine.open_shard(table, &shard, from).await.expect("the place is known");
    let (mut seen, mut place) = (Vec::new(), ShardStart::Oldest);
    while seen.len() < count {
        let most = 3.min(count - seen.len());
        let ShardRead::Changes(changes) = reader.read(most).await.unwrap() else {
            panic!("shards do not end here")
        };
        assert!(!changes.is_empty() && changes.len() <= most, "{seen:?}");
        for change in changes {
            seen.push(Message::from_item(change.new.as_ref().unwrap()).unwrap().sequence);
            place = ShardStart::After(change.sequence);
        }
    }
    drop(reader);
    engine.close().await;
    (seen, place)
}

/// All messages are of one chat, so all their changes are in one shard.
async fn shard_of_the_chat(engine: &Engine) -> ShardId {
    let table = &messages::SCHEMA.name;
    for shard in engine.shards(table).await.unwrap() {
        let mut reader = engine.open_shard(table, &shard.id, ShardStart::Oldest).await.unwrap();
        if reader.read(1).await.unwrap() != ShardRead::Changes(Vec::new()) {
            return shard.id;
        }
    }
    panic!("something was written");
}

#[tokio::test]
async fn a_place_is_good_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut from, mut seen) = (ShardStart::Oldest, Vec::new());
    for number in 0..ROUNDS {
        // fewer than were written, so that there is always something left from before the restart
        let (passed, place) = round(folder.path(), number, from, 10).await;
        seen.extend(passed);
        from = place;
    }
    let all: Vec<u64> = (1..=(ROUNDS + 1) * PER_ROUND).collect();
    let (rest, _) = round(folder.path(), ROUNDS, from, all.len() - seen.len()).await;
    seen.extend(rest);
    assert_eq!(seen, all, "each once, in the order of their writing");
}

/// As when leases came here from another store: its changes are lost, and that is all that it means.
#[tokio::test]
async fn a_shard_of_another_store_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
    let table = &messages::SCHEMA.name;
    engine.create_table(&messages::SCHEMA).await.unwrap();
    let other = ShardId("shardId-00000001768000000000-01234567".into());
    let opened = engine.open_shard(table, &other, ShardStart::Oldest).await.map(drop);
    assert!(matches!(&opened, Err(StoreError::Trimmed { table: of, .. }) if of == table), "{opened:?}");
    engine.close().await;
}
