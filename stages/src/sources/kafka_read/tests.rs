//! Ranges of the embedded log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use courant_connectors::embedded::{Clock, Engine, Options};
use courant_connectors::log::AdminLog as _;
use courant_connectors::model::topics;
use courant_connectors::model::topics::messages_persisted::NAME;
use courant_pipeline::clock;
use courant_pipeline::stage::Partition;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::deliveries::testing::World;
use crate::testing::{problem, source};

async fn opened(world: &World, params: Value, resume: &Positions) -> Result<Box<dyn Source>, StageError> {
    let mut source = source(&SPEC, params, &world.services());
    source.open(resume).await.map(|()| source)
}

/// Sequences by partition, and where reading would resume; and whether it came to an end.
async fn read_all(source: &mut dyn Source) -> (BTreeMap<Partition, Vec<u64>>, Positions, bool) {
    let (mut seen, mut positions) = (BTreeMap::<_, Vec<u64>>::new(), Positions::new());
    loop {
        let read = match timeout(Duration::from_millis(100), source.read(3)).await {
            Ok(read) => read.unwrap(),
            Err(_) => return (seen, positions, false),
        };
        let Read::Batch(batch) = read else { return (seen, positions, true) };
        let partition = batch.partition().clone();
        for (record, at) in batch.records().records().zip(batch.resume_at()) {
            let event: Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
            seen.entry(partition.clone()).or_default().push(event["payload"]["sequence"].as_u64().unwrap());
            positions.insert(partition.clone(), *at);
        }
    }
}

/// Twenty messages of one chat, so all in one partition; its name.
async fn one_chat(world: &World) -> String {
    world.publish("chat_1", 1..=20).await;
    let mut source = opened(world, json!({"topics": [NAME], "to": "now"}), &Positions::new()).await.unwrap();
    let (seen, positions, ended) = read_all(&mut *source).await;
    assert!(ended);
    assert_eq!(seen.values().flatten().copied().collect::<Vec<_>>(), (1..=20).collect::<Vec<_>>());
    assert_eq!(positions.values().collect::<Vec<_>>(), [&20]);
    positions.keys().next().unwrap().to_string()
}

#[tokio::test]
async fn a_range_has_a_start_and_an_end_and_can_be_read_again() {
    let world = World::new().await;
    let partition = one_chat(&world).await;
    let params = json!({
        "topics": [NAME], "from": {"offsets": {&partition: 5}}, "to": {"offsets": {&partition: 12}}
    });
    for _ in 0..2 {
        let mut source = opened(&world, params.clone(), &Positions::new()).await.unwrap();
        let (seen, positions, ended) = read_all(&mut *source).await;
        assert!(ended, "although there is more");
        assert_eq!(seen[&Partition::from(partition.as_str())], (6..=12).collect::<Vec<_>>());
        assert_eq!(positions[&Partition::from(partition.as_str())], 12);
    }
    let resume = Positions::from([(Partition::from(partition.as_str()), 10)]);
    let mut source = opened(&world, params, &resume).await.unwrap();
    let (seen, ..) = read_all(&mut *source).await;
    assert_eq!(
        seen.values().flatten().copied().collect::<Vec<_>>(),
        [11, 12],
        "what was settled is not read"
    );
}

#[tokio::test]
async fn a_partition_without_a_place_begins_where_the_range_does() {
    let world = World::new().await;
    for chat in 1..=20 {
        world.publish(&format!("chat_{chat}"), 1..=3).await;
    }
    let whole = json!({"topics": [NAME], "to": "now"});
    let (_, ends, _) = read_all(&mut *opened(&world, whole, &Positions::new()).await.unwrap()).await;
    assert!(ends.len() > 1, "twenty chats are in several partitions");
    let from: BTreeMap<_, _> = ends.iter().map(|(partition, end)| (partition.to_string(), end - 2)).collect();
    let (first, end) = ends.first_key_value().unwrap();
    let resume = Positions::from([(first.clone(), end - 1)]);
    let params = json!({"topics": [NAME], "from": {"offsets": from}, "to": "now"});
    let (seen, ..) = read_all(&mut *opened(&world, params, &resume).await.unwrap()).await;
    for partition in ends.keys() {
        let expected = if partition == first { 1 } else { 2 };
        assert_eq!(seen[partition].len(), expected, "{partition}");
    }
}

/// A partition that has been read goes on from its place, whatever became of the place where the range began.
#[tokio::test]
async fn what_was_read_and_is_removed_since_is_not_asked_for_again() {
    const LONG_AGO: Duration = Duration::from_secs(8 * 24 * 3600);
    let mut world = World::new().await;
    let behind = Arc::new(AtomicU64::new(LONG_AGO.as_secs()));
    let by = Arc::clone(&behind);
    let reading = move || clock::now() - Duration::from_secs(by.load(Ordering::Relaxed));
    let options = Options { clock: Clock::from_fn(reading), ..Options::default() };
    let engine = Engine::open(world.folder.path().join("log"), options).await.unwrap();
    for topic in topics::all() {
        engine.create_topic(&topic).await.unwrap();
    }
    let mut connected = (*world.connected).clone();
    connected.log = Arc::clone(&engine) as _;
    world.connected = Arc::new(connected);
    let partition = one_chat(&world).await;
    behind.store(0, Ordering::Relaxed);
    engine.sweep().await;
    world.publish("chat_1", 21..=22).await;

    let params = json!({"topics": [NAME], "from": {"offsets": {&partition: 5}}, "to": "now"});
    let resume = Positions::from([(Partition::from(partition.as_str()), 20)]);
    let (seen, ..) = read_all(&mut *opened(&world, params.clone(), &resume).await.unwrap()).await;
    assert_eq!(seen.into_values().collect::<Vec<_>>(), [[21, 22]]);
    let refused = opened(&world, params, &Positions::new()).await.err().expect("it is removed").to_string();
    assert!(refused.contains("holds offsets from 20 up to 22, and not 5"), "{refused}");
}

#[tokio::test]
async fn without_an_end_it_follows_and_with_one_in_the_past_it_reads_nothing() {
    let world = World::new().await;
    let partition = one_chat(&world).await;
    let from_there = json!({"topics": [NAME], "from": {"offsets": {&partition: 18}}});
    let mut source = opened(&world, from_there, &Positions::new()).await.unwrap();
    let (seen, _, ended) = read_all(&mut *source).await;
    assert_eq!((seen.values().flatten().count(), ended), (2, false));
    assert_eq!(source.lag(), Some(0));
    world.publish("chat_1", 21..=22).await;
    let (seen, ..) = read_all(&mut *source).await;
    assert_eq!(seen.values().flatten().copied().collect::<Vec<_>>(), [21, 22]);

    let past =
        json!({"topics": [NAME], "from": {"offsets": {&partition: 9}}, "to": {"offsets": {&partition: 3}}});
    let mut source = opened(&world, past, &Positions::new()).await.unwrap();
    assert!(matches!(source.read(9).await.unwrap(), Read::End));
}

#[tokio::test]
async fn a_moment_is_a_start() {
    let world = World::new().await;
    one_chat(&world).await;
    for (time, expected) in [("2020-01-01T00:00:00Z", 20), ("2100-01-01T00:00:00Z", 0)] {
        let params = json!({"topics": [NAME], "from": {"time": time}, "to": "now"});
        let mut source = opened(&world, params, &Positions::new()).await.unwrap();
        let (seen, _, ended) = read_all(&mut *source).await;
        assert_eq!((seen.values().flatten().count(), ended), (expected, true), "{time}");
    }
}

#[tokio::test]
async fn offsets_that_are_not_there_are_refused_by_name() {
    let world = World::new().await;
    let partition = one_chat(&world).await;
    let refused = async |from: Value| {
        let params = json!({"topics": [NAME], "from": {"offsets": from}});
        opened(&world, params, &Positions::new()).await.err().expect("it is refused").to_string()
    };
    let late = refused(json!({&partition: 21})).await;
    assert!(late.contains(&format!("{partition} holds offsets from 0 up to 20, and not 21")), "{late}");
    let other = refused(json!({"messages.persisted/99": 0})).await;
    assert!(
        other.contains("no partition `messages.persisted/99`; there are messages.persisted/0"),
        "{other}"
    );
}

#[test]
fn wrong_parameters_are_refused() {
    assert_eq!(problem(&SPEC, json!({"topics": []})).key, "topics");
    assert_eq!(problem(&SPEC, json!({"topics": ["a", "a"]})).key, "topics.1");
    assert!(problem(&SPEC, json!({"topics": ["a"], "from": "newest"})).message.contains("newest"));
}
