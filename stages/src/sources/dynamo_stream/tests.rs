//! On the embedded engine: messages stored, followed by one worker or several, some of which die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::Transaction;
use courant_pipeline::{Services, clock};
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::testing::{problem, source};

const LIMIT: Duration = Duration::from_secs(30);

struct World {
    connected: Arc<Connected>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        Self { connected: Arc::new(connections.open().await.unwrap()), _folder: folder }
    }

    /// Another worker of the group.
    async fn worker(&self) -> Box<dyn Source> {
        let services = Services::default().with(Arc::clone(&self.connected));
        let params = json!({"table": "messages", "group": "g", "lease": "500ms"});
        let mut source = source(&SPEC, params, &services);
        source.open(&Positions::new()).await.unwrap();
        source
    }

    async fn store(&self, chat: u32, sequences: std::ops::RangeInclusive<u64>) {
        let writes = sequences.map(|sequence| messages::put_write(&message(chat, sequence))).collect();
        self.connected.store.transact(Transaction { writes, token: None }).await.unwrap();
    }
}

fn message(chat: u32, sequence: u64) -> Message {
    Message {
        chat_id: format!("chat_{chat}").into(),
        sequence,
        message_id: format!("msg_{chat}_{sequence}").into(),
        sender_id: "user_1".into(),
        client_message_id: format!("c-{sequence}").into(),
        content: "hello".into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(clock::unix_millis()),
    }
}

/// What was read: chat and sequence, and where to commit.
async fn next(source: &mut dyn Source) -> (Vec<(String, u64)>, Positions) {
    loop {
        let read = timeout(LIMIT, source.read(10)).await.expect("something comes").unwrap();
        let Read::Batch(batch) = read else { continue };
        let named = |record: &Record| {
            let change = record.payload.decode::<TableChange>().unwrap();
            assert_eq!((change.kind, &change.old), (ChangeKind::Inserted, &None));
            let item = change.new.as_ref().unwrap();
            (item.text("chat_id").unwrap().to_owned(), item.u64("sequence").unwrap())
        };
        let through = *batch.resume_at().last().unwrap();
        let at = Positions::from([(batch.partition().clone(), through)]);
        return (batch.records().records().map(named).collect(), at);
    }
}

/// Reads until everything up to `last` of each chat has come, in order; committing as it goes.
async fn read_all(source: &mut dyn Source, chats: u32, last: u64) {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    while seen.len() < chats as usize || seen.values().any(|at| *at < last) {
        let (changes, at) = next(source).await;
        for (chat, sequence) in changes {
            let before = seen.insert(chat.clone(), sequence);
            assert!(
                before.is_none_or(|before| sequence == before + 1),
                "{chat}: {sequence} after {before:?}"
            );
        }
        source.commit(&at).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_come_in_order_and_a_restart_goes_on() {
    let world = World::new().await;
    for chat in 0..8 {
        world.store(chat, 1..=20).await;
    }
    let mut source = world.worker().await;
    read_all(&mut *source, 8, 20).await;
    source.close().await.unwrap();
    let mut source = world.worker().await;
    world.store(3, 21..=21).await;
    assert_eq!(next(&mut *source).await.0, [("chat_3".to_owned(), 21)], "and nothing again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_left_undone_comes_again_elsewhere() {
    let world = World::new().await;
    world.store(1, 1..=5).await;
    let mut first = world.worker().await;
    assert_eq!(next(&mut *first).await.0.len(), 5);
    let mut second = world.worker().await;
    assert!(timeout(Duration::from_millis(300), second.read(10)).await.is_err(), "the first has it");
    drop(first); // it dies, and nothing was committed
    assert_eq!(next(&mut *second).await.0.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_heard_of_at_once() {
    let world = World::new().await;
    world.store(1, 1..=1).await;
    let mut source = world.worker().await;
    let (_, at) = next(&mut *source).await;
    source.commit(&at).await.unwrap();
    let mut waits = Vec::new();
    for sequence in 2..=20 {
        world.store(1, sequence..=sequence).await;
        let stored = tokio::time::Instant::now();
        next(&mut *source).await;
        waits.push(stored.elapsed());
    }
    waits.sort();
    assert!(waits[waits.len() / 2] < Duration::from_millis(100), "polling would take 200 ms: {waits:?}");
}

#[test]
fn what_cannot_be_followed_is_said() {
    let message = |params| problem(&SPEC, params).message;
    assert_eq!(message(json!({"table": "users"})), "the table `users` has no change stream");
    assert_eq!(message(json!({"table": "orders"})), "what names an item of `orders` is not known");
    assert!(message(json!({"table": "chats", "lease": "10ms"})).starts_with("a lease of 10ms"));
}
