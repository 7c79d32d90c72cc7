//! On the embedded engine: messages stored, some of their events published.

use std::time::Duration;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::model::Timestamp;
use courant_connectors::store::Transaction;
use courant_pipeline::Services;
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::testing::source;

struct World {
    connected: Arc<Connected>,
    files: Arc<PositionFiles>,
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
        let connected = Arc::new(connections.open().await.unwrap());
        let files = Arc::new(PositionFiles::open(folder.path().join("positions")).await.unwrap());
        Self { connected, files, _folder: folder }
    }

    /// A process that has just started.
    async fn open(&self) -> Box<dyn Source> {
        let services = Services::default().with(Arc::clone(&self.connected)).with(Arc::clone(&self.files));
        let mut source = source(&SPEC, json!({"after": "3s"}), &services);
        source.open(&Positions::new()).await.unwrap();
        source
    }

    async fn store(&self, sequences: std::ops::RangeInclusive<u64>) {
        let writes = sequences.map(|sequence| messages::put_write(&message(sequence))).collect();
        self.connected.store.transact(Transaction { writes, token: None }).await.unwrap();
    }

    async fn publish(&self, sequence: u64) {
        let record = MessagePersisted::of(message(sequence)).encode();
        let topic = Topic::from(messages_persisted::NAME);
        for answer in self.connected.log.produce(&topic, vec![record]).await {
            answer.unwrap();
        }
    }
}

fn message(sequence: u64) -> Message {
    Message {
        chat_id: "chat_1".into(),
        sequence,
        message_id: format!("msg_{sequence}").into(),
        sender_id: "user_1".into(),
        client_message_id: format!("c-{sequence}").into(),
        content: "hello".into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(clock::unix_millis()),
    }
}

/// The sequences that the source finds missing, and the position after them.
async fn found(source: &mut dyn Source) -> (Vec<u64>, u64) {
    let Read::Batch(batch) = source.read(100).await.unwrap() else { panic!("the source ended") };
    let sequence = |record: &Record| {
        let event: serde_json::Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
        assert_eq!(event["event_type"], "MessagePersisted");
        assert_eq!(event["event_id"], format!("evt_{}", event["payload"]["sequence"]));
        event["payload"]["sequence"].as_u64().unwrap()
    };
    let sequences = batch.records().records().map(sequence).collect();
    (sequences, *batch.resume_at().last().unwrap())
}

async fn settle(source: &mut dyn Source, through: u64) {
    source.commit(&Positions::from([(Partition::only(), through)])).await.unwrap();
}

async fn finds_nothing(source: &mut dyn Source) {
    let read = timeout(Duration::from_secs(60), source.read(100)).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn only_messages_without_their_event_are_given() {
    let world = World::new().await;
    world.store(1..=5).await;
    for sequence in [1, 3, 5] {
        world.publish(sequence).await;
    }
    let mut source = world.open().await;
    let (sequences, through) = found(&mut *source).await;
    assert_eq!(sequences, [2, 4]);
    settle(&mut *source, through).await;
    finds_nothing(&mut *source).await;
    world.store(6..=6).await;
    assert_eq!(found(&mut *source).await.0, [6], "it goes on");
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_it_repeats_what_was_not_settled_and_nothing_else() {
    let world = World::new().await;
    world.store(1..=2).await;
    world.publish(1).await;
    let mut source = world.open().await;
    assert_eq!(found(&mut *source).await.0, [2]);
    drop(source); // a crash: nothing was committed
    let mut source = world.open().await;
    let (sequences, through) = found(&mut *source).await;
    assert_eq!(sequences, [2]);
    settle(&mut *source, through).await;
    source.close().await.unwrap();
    let mut source = world.open().await;
    finds_nothing(&mut *source).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_that_comes_in_time_is_not_missing() {
    let world = World::new().await;
    let mut source = world.open().await;
    world.store(1..=1).await;
    // Seen in the stream, and waiting.
    assert!(timeout(Duration::from_secs(2), source.read(100)).await.is_err());
    world.publish(1).await;
    finds_nothing(&mut *source).await;
}
