//! On the embedded engine: messages stored, some of their events published, and one or several that look for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::log::{NewRecord, Topic};
use courant_connectors::model::tables::stream_leases::Lease;
use courant_connectors::model::{Timestamp, WorkerId};
use courant_connectors::store::{Change, SequenceNumber, ShardId, Transaction};
use courant_pipeline::Services;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::host::PositionFiles;
use crate::testing::{problem, source};

const LIMIT: Duration = Duration::from_secs(60);

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

    /// A process that has just started, in the folder of the one before.
    async fn open(&self) -> Box<dyn Source> {
        self.open_with(self.services().with(Arc::clone(&self.files)), json!({"after": "200ms"})).await
    }

    /// One of several processes. Its lease is short, so that the dead are found soon, and long enough for signs of life on
    /// a busy machine.
    async fn open_another(&self) -> Box<dyn Source> {
        self.open_with(self.services(), json!({"after": "200ms", "lease": "2s"})).await
    }

    async fn open_with(&self, services: Services, params: Value) -> Box<dyn Source> {
        let mut source = source(&SPEC, params, &services);
        source.open(&Positions::new()).await.unwrap();
        source
    }

    fn services(&self) -> Services {
        Services::default().with(Arc::clone(&self.connected))
    }

    async fn store(&self, sequences: std::ops::RangeInclusive<u64>) {
        self.store_in(1, sequences).await;
    }

    async fn store_in(&self, chat: u32, sequences: std::ops::RangeInclusive<u64>) {
        let writes = sequences.map(|sequence| messages::put_write(&message(chat, sequence))).collect();
        self.connected.store.transact(Transaction { writes, token: None }).await.unwrap();
    }

    async fn publish(&self, sequence: u64) {
        append(&self.connected, vec![MessagePersisted::of(message(1, sequence)).encode()]).await;
    }

    /// How many changes need not be looked at again.
    async fn kept(&self) -> u64 {
        self.leases().await.iter().map(|lease| lease.place.count).sum()
    }

    async fn leases(&self) -> Vec<Lease> {
        let group = "unpublished:test/messages";
        stream_leases::of_group(&*self.connected.store, group).await.unwrap().1
    }
}

async fn append(connected: &Connected, records: Vec<NewRecord>) {
    for answer in connected.log.produce(&Topic::from(messages_persisted::NAME), records).await {
        answer.unwrap();
    }
}

fn message(chat: u32, sequence: u64) -> Message {
    Message {
        chat_id: format!("chat_{chat}").into(),
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
    let read = timeout(LIMIT, source.read(100)).await.expect("something is missing");
    let Read::Batch(batch) = read.unwrap() else { panic!("the source ended") };
    let sequence = |record: &Record| {
        let event: Value = serde_json::from_slice(&record.payload.to_json()).unwrap();
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

/// Of the chat everything comes in order: whatever else was missing would come before the next message.
async fn finds_nothing_but(world: &World, source: &mut dyn Source, next: u64) {
    world.store(next..=next).await;
    let (sequences, through) = found(source).await;
    assert_eq!(sequences, [next]);
    settle(source, through).await;
}

#[tokio::test(flavor = "multi_thread")]
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
    finds_nothing_but(&world, &mut *source, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
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
    finds_nothing_but(&world, &mut *source, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_in_time_is_not_missing() {
    let world = World::new().await;
    let mut source = world.open_with(world.services(), json!({"after": "3s"})).await;
    world.store(1..=1).await;
    // Seen in the stream, and waiting.
    assert!(timeout(Duration::from_millis(500), source.read(100)).await.is_err());
    world.publish(1).await;
    finds_nothing_but(&world, &mut *source, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_is_kept_although_nothing_is_missing() {
    let world = World::new().await;
    world.store(1..=3).await;
    for sequence in 1..=3 {
        world.publish(sequence).await;
    }
    let mut source = world.open().await;
    let kept = async {
        while world.kept().await < 3 {
            let read = timeout(Duration::from_millis(100), source.read(100)).await;
            assert!(read.is_err(), "{read:?}");
        }
    };
    timeout(LIMIT, kept).await.expect("it is kept from time to time");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_process_had_not_finished_is_found_by_another() {
    let world = World::new().await;
    world.store(1..=5).await;
    let mut first = world.open_another().await;
    let (sequences, through) = found(&mut *first).await;
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
    settle(&mut *first, through - 3).await;
    drop(first); // it dies, and three are under way
    let mut second = world.open_another().await;
    let (sequences, through) = found(&mut *second).await;
    assert_eq!(sequences, [3, 4, 5], "and nothing that was done");
    settle(&mut *second, through).await;
    assert_eq!(world.kept().await, 5);
}

/// Which messages were found, and by whom.
type Found = Arc<Mutex<Vec<(&'static str, Name)>>>;

/// A process that publishes what it finds.
async fn runs(world: &World, who: &'static str, found: &Found) -> JoinHandle<()> {
    let (mut source, connected) = (world.open_another().await, Arc::clone(&world.connected));
    let all = Arc::clone(found);
    tokio::spawn(async move {
        loop {
            let Read::Batch(batch) = source.read(100).await.unwrap() else { panic!("the source ended") };
            let events = batch.records().records().map(|record| NewRecord {
                key: None,
                payload: record.payload.to_json(),
                headers: Vec::new(),
            });
            let events: Vec<NewRecord> = events.collect();
            let named = events.iter().map(|event| (who, name_in(&event.payload).unwrap()));
            all.lock().unwrap().extend(named);
            append(&connected, events).await;
            settle(&mut *source, *batch.resume_at().last().unwrap()).await;
        }
    })
}

/// Waits until each of two has as many shards as the other.
async fn shared_evenly(world: &World) {
    loop {
        let mut shares: BTreeMap<WorkerId, usize> = BTreeMap::new();
        let leases = world.leases().await;
        for holder in leases.iter().filter_map(|lease| lease.holder.clone()) {
            *shares.entry(holder).or_default() += 1;
        }
        if shares.len() == 2 && shares.values().all(|share| share * 2 == leases.len()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_live_share_what_is_missing() {
    const CHATS: u32 = 16; // enough for every shard
    let world = World::new().await;
    let all = Found::default();
    let running = [runs(&world, "one", &all).await, runs(&world, "two", &all).await];
    timeout(LIMIT, shared_evenly(&world)).await.expect("who has more lets go");
    for sequence in 1..=3 {
        for chat in 0..CHATS {
            world.store_in(chat, sequence..=sequence).await;
        }
        let found = async {
            while all.lock().unwrap().iter().filter(|(_, name)| name.sequence == sequence).count()
                < CHATS as usize
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, found).await.expect("everything is found");
    }
    let mut by_chat: BTreeMap<Arc<str>, Vec<(&str, u64)>> = BTreeMap::new();
    for (who, name) in all.lock().unwrap().iter() {
        by_chat.entry(Arc::clone(&name.chat)).or_default().push((who, name.sequence));
    }
    let is_ones = |found: &Vec<(&str, u64)>| *found == [1, 2, 3].map(|sequence| (found[0].0, sequence));
    assert!(by_chat.values().all(is_ones), "each message once, and those of a chat by one: {by_chat:?}");
    assert_eq!(by_chat.values().map(|found| found[0].0).collect::<BTreeSet<_>>().len(), 2, "{by_chat:?}");
    for process in running {
        assert!(!process.is_finished());
        process.abort();
    }
}

fn inserted(sequence: u64, at: SystemTime) -> Change {
    let item = message(1, sequence).to_item();
    let key = Key::new("chat_id", "chat_1").and("sequence", sequence);
    Change { sequence: SequenceNumber("1".into()), at, key, old: None, new: Some(item), expired: false }
}

/// A source that is told by hand what is stored.
async fn by_hand(world: &World) -> Open {
    let services = world.services();
    let context = BuildContext { pipeline: "test", stage: SPEC.kind, services: &services };
    let declared = [
        access(Level::Store, Mode::Stream, &messages::SCHEMA.name),
        access(Level::Store, Mode::Keep, &stream_leases::SCHEMA.name),
        access(Level::Log, Mode::Read, messages_persisted::NAME),
    ];
    let backends = Backends::of(&context, &declared);
    let group = StreamGroup::of(&context, None, default_lease());
    let options = group.options("test", "test", messages::SCHEMA.name.clone(), Vec::new()).await.unwrap();
    let (store, log) = (backends.store().unwrap(), backends.log().unwrap());
    Open::new(group.join(store, options), Tail::of(log))
}

/// A shard begins with a message that was stored then; whether the log is read again for its sake, and its event found.
async fn begins(open: &mut Open, shard: &str, sequence: u64, at: SystemTime) {
    let shard = ShardId(shard.into());
    open.stored(&Handed { shard, changes: vec![(1, inserted(sequence, at))], is_scanned: false });
    open.tail.open().await.unwrap();
}

async fn is_found(open: &mut Open, shard: &str) {
    let shard = ShardId(shard.into());
    let found = async {
        while !open.matching.published_to().any(|place| place == (shard.clone(), 1)) {
            let records = open.tail.fetch().await.unwrap();
            open.published(&records);
        }
    };
    timeout(LIMIT, found).await.expect("the event is in the log");
}

#[tokio::test]
async fn the_log_is_read_again_for_a_shard_that_begins_before_what_is_known() {
    const HOUR: Duration = Duration::from_secs(3600);
    let world = World::new().await;
    world.publish(1).await;
    let (mut open, now) = (by_hand(&world).await, clock::now());
    begins(&mut open, "later", 9, now + HOUR).await;
    begins(&mut open, "first", 1, now).await;
    is_found(&mut open, "first").await;

    begins(&mut open, "known", 1, now).await;
    assert!(open.matching.published_to().any(|place| place == (ShardId("known".into()), 1)), "at once");

    open.matching.published(Name { chat: "other".into(), sequence: 1 }, Instant::now() + HOUR);
    begins(&mut open, "forgotten", 1, now).await;
    is_found(&mut open, "forgotten").await;
}

#[tokio::test]
async fn going_back_leaves_out_nothing_that_was_to_be_read() {
    let world = World::new().await;
    world.publish(1).await;
    let (mut open, now) = (by_hand(&world).await, clock::now());
    begins(&mut open, "s", 1, now).await;
    open.tail.go_back_to(now + Duration::from_secs(3600));
    open.tail.open().await.unwrap();
    is_found(&mut open, "s").await;
}

#[tokio::test]
async fn the_log_is_not_read_far_ahead_of_what_is_stored() {
    let world = World::new().await;
    world.publish(1).await;
    let (mut open, now) = (by_hand(&world).await, clock::now());
    begins(&mut open, "s", 2, now - Duration::from_secs(3600)).await;
    is_seen(&mut open, 1).await;
    world.publish(2).await;
    assert!(timeout(Duration::from_millis(300), open.look(LIMIT)).await.is_err(), "it waits for the stream");
    begins(&mut open, "s", 3, now).await;
    is_seen(&mut open, 2).await;
}

/// Whether the event of a message is read.
async fn is_seen(open: &mut Open, sequence: u64) {
    let name = || Name { chat: "chat_1".into(), sequence };
    let seen = async {
        while !open.matching.is_published(&name()) {
            open.look(LIMIT).await.unwrap();
        }
    };
    timeout(LIMIT, seen).await.expect("the event is in the log");
}

#[test]
fn what_cannot_be_shared_is_said() {
    assert_eq!(problem(&SPEC, json!({"group": ""})).message, "a group has a name");
    assert!(problem(&SPEC, json!({"lease": "10ms"})).message.starts_with("a lease of 10ms"));
}
