//! On the embedded log: members that come and go, and pipelines that share a topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::topics::messages_persisted::NAME;
use courant_pipeline::config::{Loader, Topology};
use courant_pipeline::runtime::{Host, Runtime};
use courant_pipeline::{Class, Services};
use futures::FutureExt as _;
use serde_json::json;
use tokio::time::{advance, timeout};

use super::*;
use crate::deliveries::testing::{Gateway, World, message};
use crate::host::{DeadLetterStore, PositionFiles};
use crate::testing::{problem, source};

/// A member of the group `g` that has joined.
async fn join(world: &World) -> Box<dyn Source> {
    join_with(world, json!({"topics": [NAME], "group": "g"})).await
}

async fn join_with(world: &World, params: serde_json::Value) -> Box<dyn Source> {
    let mut source = source(&SPEC, params, &world.services());
    source.open(&Positions::new()).await.unwrap();
    source
}

/// What a member has read: sequences by partition, and where reading would resume.
#[derive(Default)]
struct Seen {
    sequences: BTreeMap<Partition, Vec<u64>>,
    positions: Positions,
    gone: Vec<Partition>,
}

impl Seen {
    fn all(&self) -> BTreeSet<u64> {
        self.sequences.values().flatten().copied().collect()
    }
}

/// Reads what is there; several reads, since each is of one partition.
async fn read_all(source: &mut dyn Source) -> Seen {
    let mut seen = Seen::default();
    while let Ok(read) = timeout(Duration::from_millis(50), source.read(100)).await {
        match read.unwrap() {
            Read::Batch(batch) => {
                let sequences = seen.sequences.entry(batch.partition().clone()).or_default();
                sequences.extend(batch.records().records().map(sequence_of));
                seen.positions.insert(batch.partition().clone(), *batch.resume_at().last().unwrap());
            }
            Read::Gone(partitions) => seen.gone.extend(partitions),
            Read::End => panic!("a log has no end"),
        }
    }
    seen
}

fn sequence_of(record: &Record) -> u64 {
    let event: serde_json::Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
    event["payload"]["sequence"].as_u64().unwrap()
}

/// Messages 1 to `count`, each in a chat of its own, so that they are spread over the partitions.
async fn publish_spread(world: &World, numbers: std::ops::RangeInclusive<u64>) {
    world.append(numbers.map(|number| message(&format!("chat_{number}"), number)).collect()).await;
}

#[tokio::test]
async fn a_record_is_what_the_log_has() {
    let world = World::new().await;
    world.publish("chat_1", 7..=8).await;
    let mut source = join(&world).await;
    let Read::Batch(batch) = source.read(100).await.unwrap() else { panic!("no records") };
    assert!(batch.partition().as_str().starts_with("messages.persisted/"), "{}", batch.partition());
    assert_eq!(batch.resume_at(), [1, 2]);
    let record = batch.records().records().next().unwrap();
    assert_eq!(record.key.as_ref().unwrap().as_str(), "chat_1");
    assert_eq!(record.headers.iter().collect::<Vec<_>>(), [("origin", "conn_user_1_phone")]);
    assert_eq!(record.payload.to_json(), message("chat_1", 7).payload);
    assert_eq!(source.lag(), Some(0));
    world.publish("chat_1", 9..=10).await;
    assert_eq!(source.lag(), Some(2));
}

#[tokio::test]
async fn who_comes_back_goes_on_after_the_last_commit() {
    let world = World::new().await;
    world.publish("chat_1", 1..=5).await;
    let mut source = join(&world).await;
    let seen = read_all(&mut *source).await;
    let partition = seen.positions.keys().next().unwrap();
    source.commit(&Positions::from([(partition.clone(), 3)])).await.unwrap();
    source.close().await.unwrap();
    let mut source = join(&world).await;
    assert_eq!(read_all(&mut *source).await.all(), BTreeSet::from([4, 5]));
    assert_eq!(world.committed("g").await, 3);
}

#[tokio::test]
async fn a_read_that_is_dropped_loses_nothing() {
    let world = World::new().await;
    let mut source = join(&world).await;
    let mut sequences = Vec::new();
    for sequence in 1..=20 {
        // Polled once and dropped, as the runtime does to commit.
        while let Some(read) = source.read(1).now_or_never() {
            let Read::Batch(batch) = read.unwrap() else { panic!("no records") };
            sequences.extend(batch.records().records().map(sequence_of));
        }
        world.publish("chat_1", sequence..=sequence).await;
    }
    sequences.extend(read_all(&mut *source).await.all());
    assert_eq!(sequences, (1..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_new_group_may_begin_at_the_end() {
    let world = World::new().await;
    world.publish("chat_1", 1..=5).await;
    let mut source = join_with(&world, json!({"topics": [NAME], "start": "latest"})).await;
    assert!(read_all(&mut *source).await.all().is_empty());
    world.publish("chat_1", 6..=6).await;
    let seen = read_all(&mut *source).await;
    assert_eq!(seen.all(), BTreeSet::from([6]));
    source.commit(&seen.positions).await.unwrap();
    assert_eq!(world.committed("test").await, 6, "the group is named after the pipeline");
}

#[tokio::test]
async fn a_topic_that_is_missing_is_named_with_what_to_do() {
    let world = World::new().await;
    let mut source = source(&SPEC, json!({"topics": ["messages.lost"]}), &world.services());
    let error = source.open(&Positions::new()).await.unwrap_err();
    assert_eq!(error.class, Class::Fatal);
    let said = error.to_string();
    assert!(said.contains("no topic 'messages.lost'") && said.contains("courant topics create"), "{said}");
}

#[test]
fn wrong_parameters_are_found_when_it_is_built() {
    assert_eq!(problem(&SPEC, json!({"topics": []})).key, "topics");
    assert_eq!(problem(&SPEC, json!({"topics": ["a", "a"]})).key, "topics.1");
    assert_eq!(problem(&SPEC, json!({"topics": [""]})).key, "topics.0");
    assert_eq!(problem(&SPEC, json!({"topics": ["a"], "group": ""})).key, "group");
}

#[tokio::test]
async fn partitions_move_when_what_was_read_from_them_is_committed() {
    let world = World::new().await;
    publish_spread(&world, 1..=50).await;
    let mut one = join(&world).await;
    let read_by_one = read_all(&mut *one).await;
    assert_eq!(read_by_one.all().len(), 50);
    let mut two = join(&world).await;
    // Asked to give some up, and not done with them.
    assert!(read_all(&mut *one).await.all().is_empty());
    assert!(read_all(&mut *two).await.all().is_empty());
    publish_spread(&world, 51..=100).await;
    let kept = read_all(&mut *one).await;
    assert!(!kept.all().is_empty() && kept.all().len() < 50, "goes on with those it keeps");
    assert!(read_all(&mut *two).await.all().is_empty(), "nothing is handed over before it is committed");
    one.commit(&read_by_one.positions).await.unwrap();
    let moved = read_all(&mut *two).await;
    let together: BTreeSet<u64> = kept.all().union(&moved.all()).copied().collect();
    assert_eq!(together, (51..=100).collect(), "nothing is lost");
    assert!(kept.all().is_disjoint(&moved.all()), "nothing is read twice");
    let from = |seen: &Seen| seen.sequences.keys().cloned().collect::<BTreeSet<_>>();
    assert!(from(&kept).is_disjoint(&from(&moved)));
    assert!(read_all(&mut *one).await.gone.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_takes_too_long_loses_its_partitions_and_commits_for_them_are_let_be() {
    let world = World::new().await;
    publish_spread(&world, 1..=50).await;
    let mut one = join(&world).await;
    let read_by_one = read_all(&mut *one).await;
    let mut two = join(&world).await;
    assert!(read_all(&mut *one).await.gone.is_empty());
    advance(Duration::from_secs(31)).await;
    tokio::task::yield_now().await; // the log gives up on it
    // Learns of it from the commit, before it hears.
    one.commit(&read_by_one.positions).await.unwrap();
    let gone: BTreeSet<Partition> = read_all(&mut *one).await.gone.into_iter().collect();
    let read_by_two = read_all(&mut *two).await;
    let taken: BTreeSet<Partition> = read_by_two.sequences.keys().cloned().collect();
    assert!(!taken.is_empty() && taken.is_subset(&gone), "{taken:?} of {gone:?}");
    let kept = read_by_one.positions.iter().filter(|(partition, _)| !gone.contains(partition));
    assert_eq!(world.committed("g").await, kept.map(|(_, position)| position).sum::<u64>());
    two.commit(&read_by_two.positions).await.unwrap();
    drop(two);
    // The partitions come back, where the other one left them.
    publish_spread(&world, 51..=100).await;
    let back = read_all(&mut *one).await;
    assert_eq!(back.all(), (51..=100).collect());
    one.commit(&back.positions).await.unwrap();
    assert_eq!(world.committed("g").await, 100);
}

const CHATS: u64 = 30;
const MESSAGES: u64 = 40;

/// Pipelines with the whole way from the log to gateways.
fn pipelines(services: &Services, names: &[&str]) -> Vec<Topology> {
    let pipeline = |name: &&str| {
        format!(
            "[[pipeline]]\nname = \"{name}\"\nplane = \"fanout\"\n\
             [[pipeline.stage]]\nkind = \"kafka-consume\"\nparams = {{ topics = [\"{NAME}\"], group = \"g\" }}\n\
             [[pipeline.stage]]\nkind = \"cache-invalidate\"\n\
             [[pipeline.stage]]\nkind = \"membership-resolve\"\n\
             [[pipeline.stage]]\nkind = \"redis-deliver\"\n"
        )
    };
    let file: String = names.iter().map(pipeline).collect();
    let loader = Loader::new(crate::registry(), services.clone());
    loader.load_str("pipelines.toml", &file, []).unwrap_or_else(|_| panic!("{file}")).topologies
}

async fn host(world: &World) -> Host {
    Host {
        services: world.services(),
        dead_letters: Arc::new(DeadLetterStore::open(world.folder.path().join("letters")).await.unwrap()),
        positions: Arc::new(PositionFiles::open(world.folder.path().join("positions")).await.unwrap()),
        drain_deadline: Duration::from_secs(10),
    }
}

/// Hears until every chat has come to its last message; the sequences in the order they came, by chat.
async fn hear_all(gateway: &mut Gateway) -> BTreeMap<String, Vec<u64>> {
    let mut heard: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let is_complete = |heard: &BTreeMap<String, Vec<u64>>| {
        heard.len() as u64 == CHATS && heard.values().all(|sequences| sequences.contains(&MESSAGES))
    };
    while !is_complete(&heard) {
        for (_, chat, sequence) in gateway.hear().await {
            heard.entry(chat).or_default().push(sequence.unwrap());
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelines_that_come_and_go_deliver_every_message_once_and_in_order() {
    let world = World::new().await;
    let chats: Vec<String> = (0..CHATS).map(|chat| format!("chat_{chat}")).collect();
    for chat in &chats {
        world.join(chat, &["user_2"]).await;
    }
    world.connect("user_2", "phone", "gw_1").await;
    let mut gateway = world.gateway("gw_1").await;
    let runtime = Runtime::new(host(&world).await);
    // One, then two of them share the work, then the other alone.
    let sets: [&[&str]; 4] = [&["one"], &["one", "two"], &["two"], &["two", "three"]];
    for (round, names) in (0..).zip(sets) {
        runtime.apply(pipelines(&world.services(), names)).await;
        let first = round * MESSAGES / 4 + 1;
        for sequence in first..first + MESSAGES / 4 {
            world.append(chats.iter().map(|chat| message(chat, sequence)).collect()).await;
        }
    }
    let heard = hear_all(&mut gateway).await;
    runtime.drain().await;
    for (chat, sequences) in heard {
        assert_eq!(sequences, (1..=MESSAGES).collect::<Vec<_>>(), "{chat}");
    }
    assert_eq!(world.committed("g").await, CHATS * MESSAGES, "everything is committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_past_what_could_not_be_delivered() {
    let world = World::new().await;
    world.join("chat_1", &["user_2"]).await;
    world.connect("user_2", "phone", "gw_1").await;
    let mut gateway = world.gateway("gw_1").await;
    world.live.is_down(true);
    let mut host = host(&world).await;
    host.drain_deadline = Duration::ZERO;
    let runtime = Runtime::new(host);
    runtime.apply(pipelines(&world.services(), &["one"])).await;
    world.publish("chat_1", 1..=10).await;
    while runtime.health()[0].read < 10 {
        tokio::task::yield_now().await;
    }
    runtime.drain().await;
    assert_eq!(world.committed("g").await, 0);
    world.live.is_down(false);
    let runtime = Runtime::new(self::host(&world).await);
    runtime.apply(pipelines(&world.services(), &["one"])).await;
    let mut sequences = Vec::new();
    while sequences.len() < 10 {
        sequences.extend(gateway.hear().await.into_iter().map(|(.., sequence)| sequence.unwrap()));
    }
    assert_eq!(sequences, (1..=10).collect::<Vec<_>>());
    runtime.drain().await;
    assert_eq!(world.committed("g").await, 10);
}
