//! On the embedded engine: pages, crashes, and messages that come while the table is being read.

use std::collections::{BTreeMap, BTreeSet};

use courant_connectors::model::tables::messages::{Message, put_write};
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::model::{MessageId, Timestamp};
use courant_connectors::store::Transaction;
use courant_pipeline::stage::Partition;
use courant_pipeline::{Services, clock};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::derived::DerivedHome;
use crate::testing::embedded::Embedded;
use crate::testing::{problem, source};

const HOUR: u64 = 3_600_000;

struct World {
    engine: Embedded,
    folder: TempDir,
}

/// A message as an event names it.
type Name = (String, u64);

impl World {
    async fn new() -> Self {
        Self { engine: Embedded::new().await, folder: tempfile::tempdir().unwrap() }
    }

    fn source(&self, params: Value) -> Box<dyn Source> {
        let services = Services::default()
            .with(Arc::new(self.engine.connected.clone()))
            .with(Arc::new(DerivedHome::new(self.folder.path())));
        source(&SPEC, params, &services)
    }

    async fn open(&self, params: Value, resume: &Positions) -> Box<dyn Source> {
        let mut source = self.source(params);
        source.open(resume).await.unwrap();
        source
    }

    async fn store(&self, messages: &[Message]) {
        for part in messages.chunks(50) {
            let writes = part.iter().map(put_write).collect();
            self.engine.store.transact(Transaction { writes, token: None }).await.unwrap();
        }
    }

    async fn publish(&self, messages: &[Message]) {
        let events = messages.iter().map(|message| MessagePersisted::of(message.clone()).encode()).collect();
        for appended in self.engine.connected.log.produce(&messages_persisted::NAME.into(), events).await {
            appended.unwrap();
        }
    }

    /// Where the log ends, as a fence.
    async fn end(&self) -> BTreeMap<String, u64> {
        let marks = self.engine.connected.log.watermarks(&messages_persisted::NAME.into()).await.unwrap();
        let named = |(number, marks): (u32, &courant_connectors::log::Watermarks)| {
            (format!("{}/{number}", messages_persisted::NAME), marks.high)
        };
        (0..).zip(&marks).map(named).collect()
    }
}

fn message(chat: u64, sequence: u64, age: u64, bytes: usize) -> Message {
    Message {
        chat_id: format!("chat_{chat}").into(),
        sequence,
        message_id: MessageId::generate(),
        sender_id: "user_1".into(),
        client_message_id: format!("c-{sequence}").into(),
        content: "x".repeat(bytes).into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(clock::unix_millis() - age),
    }
}

fn name(message: &Message) -> Name {
    (message.chat_id.to_string(), message.sequence)
}

fn name_in(record: &courant_pipeline::Record) -> Name {
    let event: Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
    assert_eq!(record.key.as_ref().unwrap().as_str(), event["payload"]["chat_id"]);
    (event["payload"]["chat_id"].as_str().unwrap().to_owned(), event["payload"]["sequence"].as_u64().unwrap())
}

/// What was read: each record's place and name.
type Given = Vec<((Partition, u64), Name)>;

/// Reads `reads` times, or to the end.
async fn read(source: &mut dyn Source, reads: usize) -> (Given, bool) {
    let mut given = Given::new();
    for _ in 0..reads {
        match source.read(100).await.unwrap() {
            Read::Batch(batch) => {
                for (record, at) in batch.records().records().zip(batch.resume_at()) {
                    given.push(((batch.partition().clone(), *at), name_in(record)));
                }
            }
            Read::End => return (given, true),
            Read::Gone(_) => panic!("nothing is ever gone"),
        }
    }
    (given, false)
}

fn names(given: &Given) -> BTreeSet<Name> {
    let names: BTreeSet<_> = given.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!(names.len(), given.len(), "each once");
    names
}

#[tokio::test]
async fn every_message_is_given_as_the_event_that_told_of_it() {
    let world = World::new().await;
    let stored: Vec<_> = (1..=30).map(|n| message(n % 7, n, HOUR, 10)).collect();
    world.store(&stored).await;
    let mut source = world.open(json!({"segments": 3}), &Positions::new()).await;
    let mut seen = BTreeMap::new();
    while let Read::Batch(batch) = source.read(7).await.unwrap() {
        assert!(batch.len() <= 7);
        for record in batch.records().records() {
            seen.insert(name_in(record), record.payload.to_json());
        }
    }
    assert_eq!(seen.len(), 30);
    for message in stored {
        let event = MessagePersisted::of(message.clone()).encode();
        assert_eq!(seen[&name(&message)], event.payload);
    }
}

/// Everything at once: old and new, twice published, published late, stored while the table was read.
#[tokio::test]
async fn a_message_that_both_have_is_given_once() {
    let world = World::new().await;
    let old: Vec<_> = (1..=40).map(|n| message(n % 5, n, HOUR, 10)).collect();
    let fresh: Vec<_> = (41..=60).map(|n| message(n % 5, n, 0, 10)).collect();
    let late = message(1, 61, HOUR, 10);
    world.store(&old).await;
    world.store(&fresh[..10]).await;
    world.store(std::slice::from_ref(&late)).await;
    world.publish(&old).await;

    let fence = |end: &BTreeMap<String, u64>| json!({"segments": 2, "then": {"offsets": end}});
    let mut source = world.open(fence(&world.end().await), &Positions::new()).await;
    let (mut given, _) = read(&mut *source, 1).await;
    // Stored before or after the scan came by, published after the log's end was noted; some of them twice.
    world.store(&fresh[10..]).await;
    world.publish(&fresh).await;
    world.publish(&fresh[..3]).await;
    world.publish(&[late.clone(), old[0].clone()]).await;
    drop(source);

    let committed: Positions = given.iter().map(|((partition, at), _)| (partition.clone(), *at)).collect();
    let mut source = world.open(fence(&world.end().await), &committed).await;
    let (rest, ended) = read(&mut *source, 1000).await;
    assert!(ended);
    given.extend(rest);
    let doubles: BTreeSet<_> = fresh[..3].iter().map(name).collect();
    let mut seen = BTreeMap::<Name, u32>::new();
    for (_, name) in &given {
        *seen.entry(name.clone()).or_default() += 1;
    }
    for message in old.iter().chain(&fresh).chain([&late]) {
        let times = seen.remove(&name(message)).unwrap_or(0);
        // What the log itself has twice after the join, and the scan has not, a live reader would see twice, too.
        let most = if doubles.contains(&name(message)) { 2 } else { 1 };
        assert!((1..=most).contains(&times), "{:?} {times} times", name(message));
    }
    assert!(seen.is_empty());
}

/// Whatever was settled when it died and whatever was stored meanwhile: a record that is read again has the same place,
/// no place is given to two, and together with the log nothing is missing and nothing has two places.
#[tokio::test]
async fn a_place_belongs_to_one_record_over_crashes() {
    let world = World::new().await;
    // Of four kilobytes each, so that a segment has more pages than are noted together.
    let stored: Vec<_> = (1..=3400).map(|n| message(n % 23, n, HOUR, 4000)).collect();
    world.store(&stored).await;
    world.publish(&stored).await;
    let params = async || json!({"segments": 2, "then": {"offsets": world.end().await}});
    let mut places: BTreeMap<(Partition, u64), Name> = BTreeMap::new();
    let mut committed = Positions::new();
    let mut added = Vec::new();
    for (round, reads) in [0, 1, 3, 2, 5, 1000].into_iter().enumerate() {
        let mut source = world.open(params().await, &committed).await;
        let (given, ended) = read(&mut *source, reads).await;
        assert_eq!(ended, reads == 1000);
        for (place, name) in &given {
            let known = places.insert(place.clone(), name.clone());
            assert!(known.is_none_or(|known| known == *name), "{place:?} was given to another");
            assert!(
                committed.get(&place.0).is_none_or(|settled| *settled < place.1),
                "{place:?} was settled"
            );
        }
        // All but the last few of each partition were settled.
        let mut last = Positions::new();
        for ((partition, at), _) in given.iter().rev().skip(37) {
            let highest = last.entry(partition.clone()).or_default();
            *highest = (*highest).max(*at);
        }
        committed.extend(last);
        let number = 5000 + round as u64;
        let new: Vec<_> = (0..23).map(|chat| message(chat, number, 0, 10)).collect();
        world.store(&new).await;
        world.publish(&new).await;
        added.extend(new);
    }
    // Each was published once.
    let mut times = BTreeMap::<Name, u32>::new();
    for name in places.into_values() {
        *times.entry(name).or_default() += 1;
    }
    let last_round = added.len() - 23;
    for message in stored.iter().chain(&added[..last_round]) {
        assert_eq!(times.get(&name(message)), Some(&1), "{:?}", name(message));
    }
}

#[tokio::test]
async fn the_log_may_take_over_in_the_past() {
    let mut world = World::new().await;
    let old: Vec<_> = (1..=20).map(|n| message(1, n, 3 * HOUR, 10)).collect();
    let new: Vec<_> = (21..=40).map(|n| message(1, n, 0, 10)).collect();
    world.store(&old).await;
    world.store(&new).await;
    world.publish(&old).await;
    world.publish(&new).await;
    let end = world.end().await;
    let (partition, _) = end.iter().find(|(_, high)| **high == 40).unwrap();
    for offset in [0, 20, 33, 40] {
        world.folder = tempfile::tempdir().unwrap();
        let join = json!({"offsets": {partition: offset}});
        let params = json!({"segments": 1, "then": {"offsets": end}, "join": join});
        let mut source = world.open(params, &Positions::new()).await;
        let (given, ended) = read(&mut *source, 1000).await;
        assert!(ended);
        assert_eq!(names(&given).len(), 40, "joined at {offset}");
    }
}

#[test]
fn wrong_parameters_are_refused() {
    assert_eq!(problem(&SPEC, json!({"join": "oldest"})).key, "join");
    let before = json!({"then": "now", "published_before": "2026-01-30T14:30:00Z"});
    assert_eq!(problem(&SPEC, before).key, "published_before");
    assert!(problem(&SPEC, json!({"table": "users"})).message.contains("users"));
    assert!(problem(&SPEC, json!({"segments": 0})).message.contains("nonzero"));
}
