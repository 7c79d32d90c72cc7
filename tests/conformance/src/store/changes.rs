//! The stream of what changed.

use std::collections::HashMap;
use std::sync::Arc;

use courant_connectors::store::{
    BatchWrite, Change, Condition, Returning, ShardId, ShardRead, ShardReader, ShardStart, Store, Stream,
    TableSchema, Update, Write,
};

use super::table::{Table, item, key, plain};
use super::{is_refused, unique_name};

fn streamed() -> TableSchema {
    TableSchema { stream: Stream::OldAndNewImages, ..plain() }
}

/// Reads every shard of a table, those that appear later too.
struct Follower<'a> {
    table: &'a Table,
    start: ShardStart,
    readers: HashMap<ShardId, Box<dyn ShardReader>>,
    seen: Vec<(ShardId, Change)>,
}

impl<'a> Follower<'a> {
    async fn of(table: &'a Table, start: ShardStart) -> Self {
        let mut follower = Self { table, start, readers: HashMap::new(), seen: Vec::new() };
        follower.open_new_shards().await;
        follower
    }

    async fn open_new_shards(&mut self) {
        let Table { store, name } = self.table;
        for shard in store.shards(name).await.expect("the table has a stream") {
            if !self.readers.contains_key(&shard.id) {
                let opened = store.open_shard(name, &shard.id, self.start.clone()).await;
                self.readers.insert(shard.id, opened.expect("the shard can be read from there"));
            }
        }
    }

    /// Reads until there are this many changes, at most `limit` at a time, and then that there are no more.
    async fn changes(mut self, count: usize, limit: usize) -> Vec<(ShardId, Change)> {
        let all_there = tokio::time::timeout(crate::LIMIT, async {
            while self.seen.len() < count {
                self.open_new_shards().await;
                self.read_once(limit).await;
                tokio::task::yield_now().await;
            }
        });
        let in_time = all_there.await.is_ok();
        assert!(in_time, "{} of {count} changes came: {:?}", self.seen.len(), self.seen);
        self.read_once(limit).await;
        assert_eq!(self.seen.len(), count, "{:?}", self.seen);
        self.seen
    }

    async fn read_once(&mut self, limit: usize) {
        for (shard, reader) in &mut self.readers {
            if let ShardRead::Changes(changes) = reader.read(limit).await.expect("the shard can be read") {
                assert!(changes.len() <= limit, "at most what was asked");
                self.seen.extend(changes.into_iter().map(|change| (shard.clone(), change)));
            }
        }
    }
}

async fn changes_of(table: &Table, count: usize) -> Vec<(ShardId, Change)> {
    Follower::of(table, ShardStart::Oldest).await.changes(count, 100).await
}

pub async fn changes_come_in_order_with_both_images(store: Arc<dyn Store>) {
    let table = Table::create(&store, "changes_come_in_order_with_both_images", streamed()).await;
    table.put(item("a").with("n", 1)).await;
    table.put(item("a").with("n", 2).with("x", "y")).await;
    table.update(key("a"), Update::new().add("n", 1), Returning::Nothing).await.expect("an update");
    table.delete(key("a")).await;
    table.put(item("a")).await;

    let changes = changes_of(&table, 5).await;
    assert!(changes.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].1.sequence < pair[1].1.sequence));
    let changes: Vec<Change> = changes.into_iter().map(|(_, change)| change).collect();
    assert!(changes.iter().all(|change| change.key == key("a") && !change.expired), "{changes:?}");
    let images: Vec<_> = changes.into_iter().map(|change| (change.old, change.new)).collect();
    let (first, second) = (item("a").with("n", 1), item("a").with("n", 2).with("x", "y"));
    let third = item("a").with("n", 3).with("x", "y");
    assert_eq!(
        images,
        [
            (None, Some(first.clone())),
            (Some(first), Some(second.clone())),
            (Some(second), Some(third.clone())),
            (Some(third), None),
            (None, Some(item("a"))),
        ]
    );
}

pub async fn every_way_to_write_is_in_the_stream(store: Arc<dyn Store>) {
    let table = Table::create(&store, "every_way_to_write_is_in_the_stream", streamed()).await;
    let name = || table.name.clone();
    let batch = ["a", "b"].map(|k| BatchWrite::Put { table: name(), item: item(k) });
    store.batch_write(batch.into()).await.expect("a batch");
    let check = Write::Check { table: name(), key: key("d"), condition: Condition::missing("k") };
    let writes = vec![
        Write::delete(name(), key("a")),
        Write::update(name(), key("b"), Update::new().set("x", 1)),
        Write::put(name(), item("c")),
        check,
    ];
    table.transact(writes).await.expect("a transaction");
    let changes = changes_of(&table, 5).await;
    let of = |k: &str| -> Vec<(bool, bool)> {
        let of_key = changes.iter().filter(|(_, change)| change.key == key(k));
        of_key.map(|(_, change)| (change.old.is_some(), change.new.is_some())).collect()
    };
    assert_eq!(of("a"), [(false, true), (true, false)]);
    assert_eq!(of("b"), [(false, true), (true, true)]);
    assert_eq!(of("c"), [(false, true)]);
}

pub async fn what_changes_nothing_is_not_in_the_stream(store: Arc<dyn Store>) {
    let table = Table::create(&store, "what_changes_nothing_is_not_in_the_stream", streamed()).await;
    table.put(item("a").with("n", 1)).await;
    table.put(item("a").with("n", 1)).await;
    table.update(key("a"), Update::new().set("n", 1), Returning::Nothing).await.expect("an update");
    table.delete(key("b")).await;
    table.put_if(item("a"), Condition::missing("k")).await.expect_err("it is there");
    table
        .transact(vec![
            Write::put(table.name.clone(), item("c")),
            Write::put(table.name.clone(), item("a")).only_if(Condition::missing("k")),
        ])
        .await
        .expect_err("it is there");
    table.put(item("last")).await;
    let changes = changes_of(&table, 2).await;
    // two items may be in two shards, which have no order between them
    assert_eq!(changes.len(), 2);
    for expected in [key("a"), key("last")] {
        assert!(changes.iter().any(|(_, change)| change.key == expected), "{expected:?} is missing");
    }
}

pub async fn reading_goes_on_after_a_change(store: Arc<dyn Store>) {
    let table = Table::create(&store, "reading_goes_on_after_a_change", streamed()).await;
    for n in 0..6 {
        table.put(item("a").with("n", n)).await;
    }
    let changes = changes_of(&table, 6).await;
    for (index, (shard, change)) in changes.iter().enumerate() {
        let later: Vec<_> = changes[index + 1..].iter().filter(|(of, _)| of == shard).collect();
        let start = ShardStart::After(change.sequence.clone());
        let mut reader = store.open_shard(&table.name, shard, start).await.expect("it is kept");
        let reading = tokio::time::timeout(crate::LIMIT, async {
            let mut seen = Vec::new();
            while seen.len() < later.len()
                && let ShardRead::Changes(changes) = reader.read(2).await.expect("the shard can be read")
            {
                seen.extend(changes);
            }
            seen
        });
        let seen = reading.await.expect("all that came later");
        let later: Vec<_> = later.into_iter().map(|(_, change)| change.clone()).collect();
        assert_eq!(seen, later, "after change {index}");
    }
}

pub async fn the_latest_is_what_comes_from_now_on(store: Arc<dyn Store>) {
    let table = Table::create(&store, "the_latest_is_what_comes_from_now_on", streamed()).await;
    table.put(item("before")).await;
    changes_of(&table, 1).await;
    let mut follower = Follower::of(&table, ShardStart::Latest).await;
    follower.read_once(100).await;
    assert_eq!(follower.seen, [], "nothing happened since");
    table.put(item("after")).await;
    let changes = follower.changes(1, 100).await;
    assert_eq!(changes[0].1.key, key("after"));
}

pub async fn a_read_gives_no_more_than_asked(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_read_gives_no_more_than_asked", streamed()).await;
    for n in 0..5 {
        table.put(item("a").with("n", n)).await;
    }
    let changes = Follower::of(&table, ShardStart::Oldest).await.changes(5, 1).await;
    let seen: Vec<_> = changes.iter().filter_map(|(_, change)| change.new.as_ref()?.u64("n")).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4], "each once, one at a time");
}

pub async fn a_table_without_stream_says_so(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_table_without_stream_says_so", plain()).await;
    is_refused!(store.shards(&table.name).await);
    let shard = ShardId(unique_name("shard"));
    match store.open_shard(&table.name, &shard, ShardStart::Oldest).await.map(|_| ()) {
        Err(courant_connectors::store::StoreError::Invalid(_)) => {}
        other => panic!("expected a refusal, got {other:?}"),
    }
}
