//! Looking after the folder of the embedded engine while it is used: backup, restore, compaction, space.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use courant_connectors::embedded::{CareError, Clock, Engine, Options, restore};
use courant_connectors::log::{
    AdminLog, NewRecord, ReadLog, Retention, Topic, TopicPartition, TopicSpec, WriteLog,
};
use courant_connectors::store::{
    AdminStore, Capacity, Consistency, Durability, Get, IndexSchema, Key, KeyAttribute, Name, Projection,
    ReadStore, Returning, Stream, TableSchema, Transaction, Update, Write, WriteStore,
};

fn schema(name: &'static str) -> TableSchema {
    TableSchema {
        name: Name::new_static(name),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: vec![IndexSchema {
            name: Name::new_static("by-count"),
            partition: KeyAttribute::number("count"),
            sort: None,
            projection: Projection::All,
        }]
        .into(),
        ttl: None,
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

async fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(folder, Options::default()).await.unwrap()
}

async fn prepare(folder: &Path) -> Arc<Engine> {
    let engine = open(folder).await;
    for table in ["left", "right"] {
        engine.create_table(&schema(table)).await.unwrap();
    }
    let retention = Retention::default();
    let spec = TopicSpec { name: "events".into(), partitions: 2, retention, replication: 1 };
    engine.create_topic(&spec).await.unwrap();
    engine
}

/// One step: the same count in two tables at once, and then a record.
async fn step(engine: &Engine) {
    let add = |table| {
        Write::update(table, Key::new("id", "a"), Update::new().add("count", 1).set("fill", "x".repeat(900)))
    };
    engine.transact(Transaction { writes: vec![add("left"), add("right")], token: None }).await.unwrap();
    let records = vec![NewRecord { payload: vec![7; 300].into(), ..NewRecord::default() }];
    engine.produce(&Topic::from("events"), records).await.remove(0).unwrap();
}

async fn count(engine: &Engine, table: &'static str) -> u64 {
    let get = Get { table: table.into(), key: Key::new("id", "a"), consistency: Consistency::Strong };
    engine.get(get).await.unwrap().map_or(0, |item| item.u64("count").unwrap())
}

async fn records(engine: &Engine) -> u64 {
    engine.watermarks(&Topic::from("events")).await.unwrap().iter().map(|marks| marks.high - marks.low).sum()
}

async fn assert_consistent(engine: &Engine) -> u64 {
    let (left, right) = (count(engine, "left").await, count(engine, "right").await);
    assert_eq!(left, right, "half of a transaction is in the copy");
    // a record is sent after its step; one may have been on its way
    assert!((left.saturating_sub(1)..=left).contains(&records(engine).await), "of another moment");
    let checked = engine.check(|_| ()).await.unwrap();
    assert_eq!(checked.findings, Vec::<String>::new());
    left
}

/// Backups made while others write are each of one moment, later ones of a later moment, and open like any folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment() {
    let place = tempfile::tempdir().unwrap();
    let engine = prepare(&place.path().join("data")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (writing, stopped) = (Arc::clone(&engine), Arc::clone(&stop));
    let writer = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            step(&writing).await;
        }
    });
    let (mut before, mut backups) = (0, Vec::new());
    for number in 0..4 {
        let at_least = count(&engine, "left").await;
        let to = place.path().join(format!("backup-{number}"));
        let mut parts = Vec::new();
        engine.backup(&to, |progress| parts.push(progress.what.to_owned())).await.unwrap();
        assert_eq!(parts, ["table left", "table right", "topic events", "catalog"]);
        let copy = open(&to).await;
        let found = assert_consistent(&copy).await;
        assert!(found >= at_least.max(before), "{found} after {at_least} and {before}");
        before = found;
        backups.push((to, found));
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    assert!(before > 0, "nothing was written meanwhile");

    let (from, found) = backups.pop().unwrap();
    let refused = engine.backup(&from, |_| ()).await;
    assert!(matches!(refused, Err(CareError::Exists { .. })), "{refused:?}");
    let to = place.path().join("restored");
    restore(&from, &to, |_| ()).await.unwrap();
    let restored = open(&to).await;
    assert_eq!(assert_consistent(&restored).await, found);
    step(&restored).await;
    assert_eq!(count(&restored, "left").await, found + 1, "it goes on from there");
    let names = [restored.tables().await.unwrap(), engine.tables().await.unwrap()];
    assert_eq!(names[0], names[1]);
}

#[tokio::test]
async fn a_restore_overwrites_nothing_and_takes_no_damaged_backup() {
    let place = tempfile::tempdir().unwrap();
    let (data, backup, to) =
        (place.path().join("data"), place.path().join("backup"), place.path().join("to"));
    let engine = prepare(&data).await;
    step(&engine).await;
    engine.backup(&backup, |_| ()).await.unwrap();
    let refused = restore(&backup, &data, |_| ()).await;
    assert!(matches!(refused, Err(CareError::Exists { .. })), "{refused:?}");
    let refused = restore(place.path(), &to, |_| ()).await;
    assert!(matches!(refused, Err(CareError::NoBackup { .. })), "{refused:?}");

    let journal = std::fs::read_dir(&backup).unwrap().map(|file| file.unwrap().path());
    let journal =
        journal.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).min().unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let refused = restore(&backup, &to, |_| ()).await;
    assert!(matches!(refused, Err(CareError::Open(_))), "{refused:?}");
    assert!(!to.exists(), "nothing of a damaged backup is left");
}

/// What was removed takes no space after a compaction, and everything else is still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_gives_space_back() {
    let place = tempfile::tempdir().unwrap();
    let engine = prepare(place.path()).await;
    for number in 0..200u32 {
        let fill: Vec<u8> = (0..5000).map(|_| rand::random()).collect();
        let item = Key::new("id", format!("row-{number}")).into_item().with("fill", bytes::Bytes::from(fill));
        engine.write(Write::put("left", item), Returning::Nothing, Durability::Ordered).await.unwrap();
    }
    step(&engine).await;
    engine.compact(|_| ()).await.unwrap();
    let full = engine.space().await.unwrap();
    assert!(full.tables[0].rows_bytes > 1_000_000, "{full:?}");
    assert_eq!(
        full.total_bytes,
        full.tables.iter().map(courant_connectors::embedded::TableSpace::total_bytes).sum::<u64>()
            + full.topics[0].bytes
            + full.catalog_bytes
            + full.journal_bytes
    );
    assert_eq!((full.topics[0].records, full.topics[0].partitions), (1, 2));
    for number in 0..200u32 {
        let delete = Write::delete("left", Key::new("id", format!("row-{number}")));
        engine.write(delete, Returning::Nothing, Durability::Ordered).await.unwrap();
    }
    let mut parts = Vec::new();
    engine.compact(|progress| parts.push((progress.done, progress.of))).await.unwrap();
    assert_eq!(parts, [(0, 4), (1, 4), (2, 4), (3, 4)]);
    let empty = engine.space().await.unwrap();
    assert!(empty.tables[0].rows_bytes < 100_000, "{empty:?}");
    assert_eq!(assert_consistent(&engine).await, 1);
}

/// Of a group's offsets as well.
#[tokio::test]
async fn a_backup_has_the_offsets_of_groups() {
    let place = tempfile::tempdir().unwrap();
    let engine = prepare(&place.path().join("data")).await;
    step(&engine).await;
    let events = Topic::from("events");
    let full = engine.watermarks(&events).await.unwrap().iter().position(|marks| marks.high == 1).unwrap();
    let offsets = [(TopicPartition::new(&events, u32::try_from(full).unwrap()), 1)].into();
    engine.reset_group("readers", &offsets).await.unwrap();
    engine.backup(&place.path().join("backup"), |_| ()).await.unwrap();
    let copy = open(&place.path().join("backup")).await;
    assert_eq!(copy.committed("readers", &events).await.unwrap(), offsets);
}

/// Large values as well, which the engine below would write in another way.
#[tokio::test]
async fn a_backup_of_large_values_is_restored_whole() {
    let place = tempfile::tempdir().unwrap();
    let (backup, to) = (place.path().join("backup"), place.path().join("to"));
    let engine = prepare(&place.path().join("data")).await;
    let item = |id: String| Key::new("id", id).into_item().with("fill", "large ".repeat(1000));
    engine
        .write(Write::put("left", item("one".into())), Returning::Nothing, Durability::Synced)
        .await
        .unwrap();
    let writes = (0..100).map(|number| Write::put("right", item(format!("row-{number}")))).collect();
    engine.transact(Transaction { writes, token: None }).await.unwrap();
    let record = NewRecord { payload: vec![7; 100_000].into(), ..NewRecord::default() };
    engine.produce(&Topic::from("events"), vec![record]).await.remove(0).unwrap();
    let written = engine.check(|_| ()).await.unwrap();
    assert_eq!((written.rows, written.records, written.changes), (101, 1, 101));

    engine.backup(&backup, |_| ()).await.unwrap();
    let copy = open(&backup).await;
    assert_eq!(copy.check(|_| ()).await.unwrap(), written);
    copy.close().await;
    drop(copy);
    restore(&backup, &to, |_| ()).await.unwrap();
    assert_eq!(open(&to).await.check(|_| ()).await.unwrap(), written);
}

/// What ended since a backup was made is removed from what is restored, and never from the backup.
#[tokio::test(start_paused = true)]
async fn a_restore_removes_nothing_from_the_backup() {
    let place = tempfile::tempdir().unwrap();
    let (backup, to) = (place.path().join("backup"), place.path().join("to"));
    let long_ago = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let options = || Options { clock: Clock::from_fn(long_ago), ..Options::default() };
    let engine = Engine::open(place.path().join("data"), options()).await.unwrap();
    let ttl = Some(Name::new_static("ends"));
    engine.create_table(&TableSchema { ttl, ..schema("left") }).await.unwrap();
    for number in 0..100 {
        let item = Key::new("id", format!("row-{number}")).into_item().with("ends", 1_000_000_001u64);
        engine.write(Write::put("left", item), Returning::Nothing, Durability::Ordered).await.unwrap();
    }
    engine.backup(&backup, |_| ()).await.unwrap();

    let hours_pass = tokio::spawn(async {
        loop {
            tokio::time::advance(Duration::from_secs(3600)).await;
        }
    });
    restore(&backup, &to, |_| ()).await.unwrap();
    hours_pass.abort();
    let backup = Engine::open(backup, options()).await.unwrap();
    assert_eq!(backup.check(|_| ()).await.unwrap().rows, 100);
}
