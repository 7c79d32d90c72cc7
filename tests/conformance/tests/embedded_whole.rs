//! A transaction of the embedded engine is seen as a whole or not at all, however one reads.
//!
//! One task writes the same number to a hundred rows, transaction after transaction, while the folder's files are
//! rewritten: the engine below shows rows early when it puts a file in place. Readers must find one number in all rows.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courant_connectors::embedded::{Engine, Options};
use courant_connectors::store::{
    AdminStore as _, Capacity, ChangeStream as _, Consistency, Get, Item, Key, KeyAttribute, Name, Query,
    ReadStore as _, Scan, ScanStore as _, Segment, ShardRead, ShardStart, Stream, TableSchema, Transaction,
    Write, WriteStore as _,
};

const ROWS: u64 = 100;
const ROUNDS: u64 = 400;
const TABLE: Name = Name::new_static("rows");

fn schema() -> TableSchema {
    TableSchema {
        name: TABLE,
        partition: KeyAttribute::text("id"),
        sort: Some(KeyAttribute::number("row")),
        indexes: Vec::new().into(),
        ttl: None,
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

async fn write(engine: &Engine, round: u64) {
    let put = |row: u64| {
        let item = [("id", "one".into()), ("row", row.into()), ("round", round.into())];
        Write::put(TABLE, Item::from_iter(item.map(|(name, value)| (Name::new_static(name), value))))
    };
    engine.transact(Transaction { writes: (0..ROWS).map(put).collect(), token: None }).await.unwrap();
}

/// The numbers in all rows: one, if a transaction is seen as a whole.
fn rounds<'a>(items: impl Iterator<Item = &'a Item>) -> BTreeSet<u64> {
    items.map(|item| item.u64("round").unwrap()).collect()
}

fn assert_whole<'a>(how: &str, items: impl Iterator<Item = &'a Item>) -> u64 {
    let rounds = rounds(items);
    assert_eq!(rounds.len(), 1, "{how} saw parts of the transactions {rounds:?}");
    rounds.into_iter().next().unwrap()
}

async fn read_every_way(engine: &Engine) {
    let key = |row: u64| Key::new("id", "one").and("row", row);
    let get = |row| Get { table: TABLE, key: key(row), consistency: Consistency::Strong };
    let found = engine.batch_get((0..ROWS).map(get).collect()).await.unwrap();
    assert_whole("a batch of gets", found.iter().flatten());
    let page = engine.query(Query::new(TABLE, "id", "one")).await.unwrap();
    assert_whole("a query", page.items.iter());
    join_stream_and_scan(engine).await;
}

/// Notes the stream's end, then scans: what the scan did not see comes in the stream.
async fn join_stream_and_scan(engine: &Engine) {
    let mut readers = Vec::new();
    for shard in engine.shards(&TABLE).await.unwrap() {
        readers.push(engine.open_shard(&TABLE, &shard.id, ShardStart::Latest).await.unwrap());
    }
    let scan = Scan {
        table: TABLE,
        segment: Segment::WHOLE,
        limit: None,
        start_after: None,
        consistency: Consistency::Strong,
    };
    let scanned = assert_whole("a scan", engine.scan(scan).await.unwrap().items.iter());
    let mut changed = BTreeSet::new();
    for reader in &mut readers {
        let ShardRead::Changes(changes) = reader.read(usize::MAX).await.unwrap() else {
            panic!("the shards of the embedded engine do not end")
        };
        changed.extend(rounds(changes.iter().filter_map(|change| change.new.as_ref())));
    }
    if let Some(first) = changed.first() {
        assert!(*first <= scanned + 1, "after a scan of {scanned} the stream goes on with {first}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_transaction_is_seen_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), Options::default()).await.unwrap();
    engine.create_table(&schema()).await.unwrap();
    write(&engine, 0).await;
    let done = Arc::new(AtomicBool::new(false));
    let until_done = |work: fn(Arc<Engine>) -> futures::future::BoxFuture<'static, ()>| {
        let (engine, done) = (Arc::clone(&engine), Arc::clone(&done));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                work(Arc::clone(&engine)).await;
            }
        })
    };
    let beside = [
        until_done(|engine| Box::pin(async move { engine.compact(|_| ()).await.unwrap() })),
        until_done(|engine| Box::pin(async move { read_every_way(&engine).await })),
        until_done(|engine| Box::pin(async move { read_every_way(&engine).await })),
    ];
    for round in 1..=ROUNDS {
        write(&engine, round).await;
    }
    done.store(true, Ordering::Relaxed);
    for task in beside {
        task.await.unwrap();
    }
}
