//! What time removes from the embedded engine, on a clock that the test moves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use courant_connectors::embedded::{Clock, Engine, Options};
use courant_connectors::log::{
    AdminLog, LogError, NewRecord, ReadLog, Retention, Topic, TopicPartition, TopicSpec, Watermarks, WriteLog,
};
use courant_connectors::store::{
    AdminStore, Capacity, Change, ChangeStream, Durability, IndexSchema, Item, Key, KeyAttribute, Name,
    Projection, Query, ReadStore, Returning, ShardRead, ShardStart, StoreError, Stream, TableSchema,
    Transaction, Update, Write, WriteStore,
};

const START: u64 = 1_800_000_000;
const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

/// A clock and the engine that goes by it.
struct Timed {
    now: Arc<AtomicU64>,
    engine: Arc<Engine>,
}

impl Timed {
    async fn open(folder: &Path) -> Self {
        Self::open_at(folder, Arc::new(AtomicU64::new(START))).await
    }

    async fn open_at(folder: &Path, now: Arc<AtomicU64>) -> Self {
        let seconds = Arc::clone(&now);
        let clock = Clock::from_fn(move || {
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.load(Ordering::Relaxed))
        });
        let engine = Engine::open(folder, Options { clock, ..Options::default() }).await.unwrap();
        Self { now, engine }
    }

    async fn reopened(self, folder: &Path) -> Self {
        let Self { now, engine } = self;
        engine.close().await;
        drop(engine);
        Self::open_at(folder, now).await
    }

    fn pass(&self, seconds: u64) {
        self.now.fetch_add(seconds, Ordering::Relaxed);
    }
}

fn schema() -> TableSchema {
    TableSchema {
        name: Name::new_static("sessions"),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: vec![IndexSchema {
            name: Name::new_static("by-user"),
            partition: KeyAttribute::text("user"),
            sort: None,
            projection: Projection::KeysOnly,
        }]
        .into(),
        ttl: Some(Name::new_static("ends")),
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

fn session(id: &str, ends: Option<u64>) -> Item {
    Item::new().with("id", id).with("user", "ann").with_some("ends", ends)
}

async fn put(engine: &Engine, item: Item) {
    engine.write(Write::put("sessions", item), Returning::Nothing, Durability::Synced).await.unwrap();
}

async fn in_index(engine: &Engine) -> Vec<String> {
    let mut query = Query::new("sessions", "user", "ann");
    query.index = Some("by-user".into());
    let page = engine.query(query).await.unwrap();
    page.items.iter().map(|item| item.text("id").unwrap().to_owned()).collect()
}

async fn changes(engine: &Engine, from: &ShardStart) -> Vec<Change> {
    let table = Name::new_static("sessions");
    let mut all = Vec::new();
    for shard in engine.shards(&table).await.unwrap() {
        let mut reader = engine.open_shard(&table, &shard.id, from.clone()).await.unwrap();
        while let ShardRead::Changes(read) = reader.read(1000).await.unwrap() {
            if read.is_empty() {
                break;
            }
            all.extend(read);
        }
    }
    all
}

/// Hidden at its second, removed by the next sweep with all that belongs to it, and told of as expired.
#[tokio::test]
async fn an_ended_row_is_removed_with_all_that_belongs_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    let engine = &timed.engine;
    engine.create_table(&schema()).await.unwrap();
    // more than a sweep takes at once
    for number in 0..1200 {
        put(engine, session(&format!("short-{number}"), Some(START + MINUTE))).await;
    }
    put(engine, session("longer", Some(START + 2 * MINUTE))).await;
    put(engine, session("kept", Some(START + MINUTE))).await;
    put(engine, session("kept", None)).await; // its end was taken back
    put(engine, session("for ever", None)).await;
    engine.sweep().await;
    assert_eq!(engine.check(|_| ()).await.unwrap().rows, 1203, "nothing has ended yet");

    timed.pass(MINUTE);
    let left = ["for ever", "kept", "longer"];
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(in_index(engine).await), left, "hidden before it is removed");
    assert_eq!(engine.check(|_| ()).await.unwrap().rows, 1203);
    engine.sweep().await;
    let checked = engine.check(|_| ()).await.unwrap();
    assert_eq!((checked.rows, checked.index_rows, checked.findings), (3, 3, Vec::new()));
    assert_eq!(sorted(in_index(engine).await), left);
    let expired: Vec<Change> =
        changes(engine, &ShardStart::Oldest).await.into_iter().filter(|change| change.expired).collect();
    assert_eq!(expired.len(), 1200);
    for change in expired {
        let old = change.old.unwrap();
        assert!(change.new.is_none() && old.text("id").unwrap().starts_with("short-"), "{old:?}");
    }
}

/// A day after they were made changes are gone, and who wants to go on there is told so.
#[tokio::test]
async fn changes_are_kept_for_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    timed.engine.create_table(&schema()).await.unwrap();
    let update = |n: u32| {
        let write =
            Write::update("sessions", Key::new("id", "a"), Update::new().set("user", "ann").set("n", n));
        timed.engine.write(write, Returning::Nothing, Durability::Synced)
    };
    update(1).await.unwrap();
    update(2).await.unwrap();
    timed.pass(DAY / 2);
    update(3).await.unwrap();
    timed.pass(DAY / 2);
    timed.engine.sweep().await;
    let all = changes(&timed.engine, &ShardStart::Oldest).await;
    assert_eq!(all.len(), 3, "a day old, and no older");
    timed.pass(1);
    timed.engine.sweep().await;
    let kept = changes(&timed.engine, &ShardStart::Oldest).await;
    assert_eq!(kept, all[2..]);

    let timed = timed.reopened(folder.path()).await;
    let table = Name::new_static("sessions");
    let mut outcomes = Vec::new();
    for shard in timed.engine.shards(&table).await.unwrap() {
        let first = ShardStart::After(all[0].sequence.clone());
        outcomes.push(timed.engine.open_shard(&table, &shard.id, first).await.map(|_| ()));
    }
    let trimmed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(matches!(trimmed[..], [StoreError::Trimmed { .. }]), "{outcomes:?}");
    let after_the_second = changes(&timed.engine, &ShardStart::After(all[1].sequence.clone())).await;
    assert_eq!(after_the_second, kept, "what was read up to there misses nothing");
}

/// Who reads too slowly is told, instead of going on behind what it has not seen; who begins anew begins with what is kept.
#[tokio::test]
async fn an_open_reader_is_told_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    let (engine, table) = (&timed.engine, Name::new_static("sessions"));
    engine.create_table(&schema()).await.unwrap();
    put(engine, session("a", None)).await;
    let mut shards = engine.shards(&table).await.unwrap();
    for shard in shards.clone() {
        let mut reader = engine.open_shard(&table, &shard.id, ShardStart::Oldest).await.unwrap();
        if reader.read(1).await.unwrap() == ShardRead::Changes(Vec::new()) {
            shards.retain(|other| other.id != shard.id);
        }
    }
    let shard = &shards[0].id;
    let mut slow = engine.open_shard(&table, shard, ShardStart::Oldest).await.unwrap();
    let mut quick = engine.open_shard(&table, shard, ShardStart::Oldest).await.unwrap();
    slow.read(1).await.unwrap();
    put(engine, session("a", Some(START + 9 * DAY))).await;
    quick.read(10).await.unwrap();
    timed.pass(DAY + 1);
    put(engine, session("a", None)).await;
    engine.sweep().await;

    let missed = slow.read(1).await;
    assert!(matches!(missed, Err(StoreError::Trimmed { .. })), "{missed:?}");
    let ShardRead::Changes(read) = quick.read(10).await.unwrap() else { panic!("shards do not end here") };
    assert_eq!(read.len(), 1, "it had read all that is gone");
    let mut anew = engine.open_shard(&table, shard, ShardStart::Oldest).await.unwrap();
    assert_eq!(anew.read(10).await.unwrap(), ShardRead::Changes(read.clone()));
    // who holds a reader holds the folder
    drop((slow, quick, anew));
    let timed = timed.reopened(folder.path()).await;
    let mut anew = timed.engine.open_shard(&table, shard, ShardStart::Oldest).await.unwrap();
    assert_eq!(anew.read(10).await.unwrap(), ShardRead::Changes(read));
}

/// The same transaction under its token is done once within ten minutes, and again after them.
#[tokio::test]
async fn tokens_are_known_for_ten_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    timed.engine.create_table(&schema()).await.unwrap();
    let transaction = |amount: u32| {
        let add = Write::update("sessions", Key::new("id", "a"), Update::new().add("n", amount));
        Transaction { writes: vec![add], token: Some("token".to_owned()) }
    };
    let total = async |engine: &Engine| changes(engine, &ShardStart::Oldest).await.len();
    timed.engine.transact(transaction(1)).await.unwrap();
    timed.pass(10 * MINUTE - 1);
    timed.engine.sweep().await;
    let timed = timed.reopened(folder.path()).await;
    timed.engine.transact(transaction(1)).await.unwrap();
    assert_eq!(total(&timed.engine).await, 1, "it was done before");
    let reused = timed.engine.transact(transaction(2)).await;
    assert!(matches!(reused, Err(StoreError::TokenReused)), "{reused:?}");
    timed.pass(2);
    timed.engine.sweep().await;
    timed.engine.transact(transaction(2)).await.unwrap();
    assert_eq!(total(&timed.engine).await, 2, "the token was forgotten");
}

async fn append(engine: &Engine, topic: &str, bytes: usize) {
    let record = NewRecord { payload: vec![7; bytes].into(), ..NewRecord::default() };
    engine.produce(&Topic::from(topic), vec![record]).await.remove(0).unwrap();
}

async fn create(engine: &Engine, topic: &str, retention: Retention) {
    let spec = TopicSpec { name: topic.into(), partitions: 1, retention, replication: 1 };
    engine.create_topic(&spec).await.unwrap();
}

async fn watermarks(engine: &Engine, topic: &str) -> Watermarks {
    engine.watermarks(&Topic::from(topic)).await.unwrap()[0]
}

/// Too old, and gone; a partition that is empty then goes on counting where it was, also after a restart.
#[tokio::test]
async fn old_records_are_removed_and_their_offsets_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    create(&timed.engine, "events", Retention { age: Some(Duration::from_secs(100)), bytes: None }).await;
    append(&timed.engine, "events", 10).await;
    append(&timed.engine, "events", 10).await;
    timed.pass(60);
    append(&timed.engine, "events", 10).await;
    timed.pass(41);
    timed.engine.sweep().await;
    assert_eq!(watermarks(&timed.engine, "events").await, Watermarks { low: 2, high: 3 });
    let events = TopicPartition::new(&Topic::from("events"), 0);
    let too_old = timed.engine.read_from([(events, 1)].into()).await.err();
    assert!(matches!(too_old, Some(LogError::OutOfRange { offset: 1, low: 2, high: 3, .. })), "{too_old:?}");

    timed.pass(1000);
    timed.engine.sweep().await;
    let empty = Watermarks { low: 3, high: 3 };
    assert_eq!(watermarks(&timed.engine, "events").await, empty);
    let timed = timed.reopened(folder.path()).await;
    assert_eq!(watermarks(&timed.engine, "events").await, empty);
    append(&timed.engine, "events", 10).await;
    let timed = timed.reopened(folder.path()).await;
    assert_eq!(watermarks(&timed.engine, "events").await, Watermarks { low: 3, high: 4 });
    assert_eq!(timed.engine.check(|_| ()).await.unwrap().findings, Vec::<String>::new());
}

/// The oldest go until what is left fits, and the newest stays.
#[tokio::test]
async fn a_partition_is_kept_below_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let timed = Timed::open(folder.path()).await;
    create(&timed.engine, "events", Retention { age: None, bytes: Some(10_500) }).await;
    for _ in 0..30 {
        append(&timed.engine, "events", 1000).await;
    }
    timed.engine.sweep().await;
    let Watermarks { low, high } = watermarks(&timed.engine, "events").await;
    assert_eq!(high, 30);
    assert!(
        (19..=21).contains(&low),
        "about ten records of a thousand bytes are left, and not {}",
        high - low
    );
    timed.engine.sweep().await;
    assert_eq!(watermarks(&timed.engine, "events").await.low, low, "nothing more goes");
    for _ in 0..5 {
        append(&timed.engine, "events", 1000).await;
    }
    timed.engine.sweep().await;
    let (low, high) = (low + 5, high + 5);
    assert_eq!(watermarks(&timed.engine, "events").await, Watermarks { low, high }, "as many as came");
    let timed = timed.reopened(folder.path()).await;
    assert_eq!(watermarks(&timed.engine, "events").await, Watermarks { low, high });
}
