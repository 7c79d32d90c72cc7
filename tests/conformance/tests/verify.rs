//! What is on servers is verified as what is in the embedded engine: DynamoDB's protocol and pages, Kafka's offsets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use courant_conformance::deployment::{publish, seed};
use courant_conformance::log::LogServer as _;
use courant_conformance::model::create_tables;
use courant_conformance::servers::{Dynoxide, MockKafka};
use courant_connectors::embedded::{Engine, Options as EngineOptions};
use courant_connectors::log::{AdminLog as _, Log};
use courant_connectors::model::topics;
use courant_connectors::store::{Durability, Key, Returning, Store, Write};
use courant_replay::verify::{Deployment, Options, Report, verify};
use tokio_util::sync::CancellationToken;

/// More than a page of DynamoDB takes, with room: about 300 bytes each.
const MESSAGES: u32 = 5000;

async fn look(store: &Arc<dyn Store>, log: &Arc<dyn Log>) -> Report {
    let options = Options { grace: Duration::from_millis(100), ..Options::default() };
    verify(Deployment::new(store, log), options, |_| {}, CancellationToken::new()).await.unwrap()
}

fn found(report: &Report) -> BTreeMap<&str, u64> {
    let broken = report.checks.iter().filter(|check| check.found > 0);
    broken.map(|check| (check.id.as_str(), check.found)).collect()
}

async fn store_of(server: &Dynoxide) -> Arc<dyn Store> {
    let store = server.connect().await;
    create_tables(&store).await;
    Arc::new(store)
}

/// In order; then with an event missing, a counter gone and a member too many.
async fn damage_is_found(store: Arc<dyn Store>, log: Arc<dyn Log>, messages: u32) {
    let seeded = seed(&*store, &*log, messages, 1).await;
    let unpublished = seeded.messages.last().unwrap();
    assert_eq!(found(&look(&store, &log).await), [("message-event", 1)].into());
    publish(&*log, unpublished).await;
    let clean = look(&store, &log).await;
    assert_eq!(found(&clean), [].into(), "{clean:#?}");
    assert_eq!(clean.figures.items["messages"], u64::from(messages));
    assert_eq!(clean.figures.events["messages.persisted"], u64::from(messages));

    let counter = Write::delete("chat_counters", Key::new("chat_id", &seeded.chat));
    store.write(counter, Returning::Nothing, Durability::Synced).await.unwrap();
    let first = Key::new("chat_id", &seeded.chat).and("sequence", 1);
    store.write(Write::delete("messages", first), Returning::Nothing, Durability::Synced).await.unwrap();
    let report = look(&store, &log).await;
    assert_eq!(found(&report), [("counter-exists", 1), ("event-message", 1), ("key-message", 1)].into());
    let event = report.checks.iter().find(|check| check.id == "event-message").unwrap();
    let example = &event.examples[0];
    assert_eq!((example.chat_id.as_ref(), example.sequence), (Some(&seeded.chat), Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_and_the_embedded_log() {
    let (server, folder) = (Dynoxide::start(), tempfile::tempdir().unwrap());
    let engine = Engine::open(folder.path(), EngineOptions::default()).await.unwrap();
    for topic in topics::all() {
        engine.create_topic(&topic).await.unwrap();
    }
    damage_is_found(store_of(&server).await, engine, MESSAGES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dynamodb_and_kafka() {
    let (server, kafka) = (Dynoxide::start(), MockKafka::start(1));
    for topic in topics::all() {
        kafka.create(&topic.name, topic.partitions);
    }
    damage_is_found(store_of(&server).await, kafka.log().await, 200).await;
}
