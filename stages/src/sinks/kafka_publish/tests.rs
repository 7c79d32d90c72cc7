use std::collections::HashMap;

use async_trait::async_trait;
use courant_connectors::log::{
    AdminLog, Appended, Consumer, Fetch, Log, Offsets, ReadLog, Reader, Result, Subscription, TopicCreated,
    TopicDescription, TopicPartition, TopicSpec, Watermarks, WriteLog,
};
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::{Class, Fate, Payload};
use serde_json::json;
use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::testing::chat::World;
use crate::testing::problem;

fn record(key: &str, payload: &str) -> Record {
    Record::new(Payload::from(payload.to_owned())).with_key(key)
}

/// Everything in a topic, by key.
async fn published(world: &World, topic: &str) -> HashMap<String, Vec<NewRecord>> {
    let topic = Topic::from(topic);
    let marks = world.connected.log.watermarks(&topic).await.unwrap();
    let partitions = (0..).zip(&marks).map(|(at, marks)| (TopicPartition::new(&topic, at), marks.low));
    let mut reader = world.connected.log.read_from(partitions.collect()).await.unwrap();
    let mut left: u64 = marks.iter().map(|marks| marks.high - marks.low).sum();
    let mut published: HashMap<String, Vec<NewRecord>> = HashMap::new();
    while left > 0 {
        let Fetch::Records { records, .. } = reader.fetch(1000).await.unwrap() else { continue };
        for read in records {
            left -= 1;
            let key = read.key.as_deref().map(|key| String::from_utf8_lossy(key).into_owned());
            let record = NewRecord { key: read.key, payload: read.payload, headers: read.headers };
            published.entry(key.unwrap_or_default()).or_default().push(record);
        }
    }
    published
}

#[tokio::test]
async fn records_are_published_with_key_and_headers_in_order() {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({"topic": messages_persisted::NAME})).await;
    let mut first = record("a", "1");
    first.headers.set("origin", "conn_1");
    let decoded = Record::new(Payload::value(json!({"n": 4})));
    let mut batch = Batch::from(vec![first, record("b", "2"), record("a", "3"), decoded]);
    stage.process(&mut batch).await.unwrap();
    assert!(batch.slots().iter().all(|slot| matches!(slot.fate(), Fate::Forward)));
    let published = published(&world, messages_persisted::NAME).await;
    let of = |key| published[key].iter().map(|record| &record.payload[..]).collect::<Vec<_>>();
    assert_eq!(of("a"), [b"1", b"3"]);
    assert_eq!((of("b"), of("")), (vec![&b"2"[..]], vec![&br#"{"n":4}"#[..]]));
    let origin = Header { name: "origin".into(), value: "conn_1".into() };
    assert_eq!((&published["a"][0].headers, &published["a"][1].headers), (&vec![origin], &vec![]));
}

#[tokio::test]
async fn a_topic_that_is_not_there_is_named() {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({"topic": "analytics"})).await;
    let mut batch = Batch::from(vec![record("a", "1")]);
    stage.process(&mut batch).await.unwrap();
    let Fate::Failed(error) = batch.slots()[0].fate() else { panic!("it is not there") };
    assert_eq!(error.class, Class::Fatal);
    assert_eq!(
        error.to_string(),
        "publish: there is no topic 'analytics'; create it with 'courant topics create'"
    );
    let retention = courant_connectors::log::Retention::default();
    let spec = TopicSpec { name: "analytics".into(), partitions: 1, retention, replication: 1 };
    world.connected.log.create_topic(&spec).await.unwrap();
    let mut batch = Batch::from(vec![record("a", "1")]);
    stage.process(&mut batch).await.unwrap();
    assert_eq!(published(&world, "analytics").await["a"].len(), 1, "the product need not know it");
}

#[tokio::test]
async fn a_record_that_is_too_large_is_rejected_and_no_other() {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({"topic": messages_persisted::NAME})).await;
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    let mut batch = Batch::from(vec![record("a", &large), record("b", "1")]);
    stage.process(&mut batch).await.unwrap();
    let fates: Vec<_> = batch.slots().iter().map(courant_pipeline::Slot::fate).collect();
    let Fate::Failed(error) = fates[0] else { panic!("{fates:?}") };
    assert_eq!(error.class, Class::Reject);
    assert!(matches!(fates[1], Fate::Forward), "{fates:?}");
}

/// Answers what a test wants and appends nothing.
struct Answering(fn(&NewRecord) -> Result<Appended>);

#[async_trait]
impl WriteLog for Answering {
    async fn produce(&self, _: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>> {
        records.iter().map(self.0).collect()
    }
}

#[async_trait]
impl ReadLog for Answering {
    async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Consumer>> {
        unreachable!("it only writes")
    }
    async fn read_from(&self, _: Offsets) -> Result<Box<dyn Reader>> {
        unreachable!("it only writes")
    }
    async fn watermarks(&self, _: &Topic) -> Result<Vec<Watermarks>> {
        unreachable!("it only writes")
    }
    async fn offsets_at(&self, _: &Topic, _: SystemTime) -> Result<Offsets> {
        unreachable!("it only writes")
    }
    async fn committed(&self, _: &str, _: &Topic) -> Result<Offsets> {
        unreachable!("it only writes")
    }
    async fn reset_group(&self, _: &str, _: &Offsets) -> Result<()> {
        unreachable!("it only writes")
    }
}

#[async_trait]
impl AdminLog for Answering {
    async fn topics(&self) -> Result<Vec<Topic>> {
        unreachable!("it only writes")
    }
    async fn create_topic(&self, _: &TopicSpec) -> Result<TopicCreated> {
        unreachable!("it only writes")
    }
    async fn describe_topic(&self, _: &Topic) -> Result<Option<TopicDescription>> {
        unreachable!("it only writes")
    }
    async fn delete_topic(&self, _: &Topic) -> Result<()> {
        unreachable!("it only writes")
    }
}

/// The row of the sequencing design about an unavailable log: what failed is tried again, and what comes behind it waits.
#[tokio::test]
async fn what_fails_is_tried_again_in_order() {
    let mut world = World::new().await;
    let mut connected = (*world.connected).clone();
    let answers = |record: &NewRecord| match &record.payload[..] {
        b"down" => Err(LogError::Unavailable("no leader".into())),
        b"unknown" => Err(LogError::UnknownOutcome("timeout".into())),
        b"behind" => Err(LogError::EarlierFailed),
        _ => Ok(Appended { partition: 0, offset: 0 }),
    };
    connected.log = Arc::new(Answering(answers)) as Arc<dyn Log>;
    world.connected = Arc::new(connected);
    let stage = world.stage(&SPEC, json!({"topic": messages_persisted::NAME})).await;
    let records = [("a", "down"), ("a", "behind"), ("b", "fine"), ("c", "unknown")];
    let mut batch = Batch::from(records.map(|(key, payload)| record(key, payload)).to_vec());
    stage.process(&mut batch).await.unwrap();
    let fates: Vec<_> = batch.slots().iter().map(courant_pipeline::Slot::fate).collect();
    assert!(matches!(fates[0], Fate::Failed(error) if error.class == Class::Retry), "{fates:?}");
    assert!(matches!((fates[1], fates[2]), (Fate::Held, Fate::Forward)), "{fates:?}");
    assert!(matches!(fates[3], Fate::Failed(error) if error.class == Class::Retry), "{fates:?}");
}

#[test]
fn the_name_of_a_topic_is_checked() {
    let wrong = problem(&SPEC, json!({"topic": "messages persisted"}));
    assert_eq!((wrong.key.as_str(), wrong.offset), ("topic", Some(8)));
    for name in ["", ".", "..", &"x".repeat(250)] {
        assert_eq!(problem(&SPEC, json!({ "topic": name })).key, "topic", "{name}");
    }
}
