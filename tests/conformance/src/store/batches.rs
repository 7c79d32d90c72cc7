//! Many reads, or many plain writes, in one call.

use std::sync::Arc;

use courant_connectors::store::{
    BatchWrite, Consistency, Get, Item, KeyAttribute, Segment, Store, StoreError,
};

use super::table::{Table, item, key, plain, sorted_by};
use super::{fails_with, is_refused, unique_name};

fn name(n: usize) -> String {
    format!("item-{n:03}")
}

impl Table {
    fn batch_put(&self, item: Item) -> BatchWrite {
        BatchWrite::Put { table: self.name.clone(), item }
    }

    fn batch_delete(&self, k: &str) -> BatchWrite {
        BatchWrite::Delete { table: self.name.clone(), key: key(k) }
    }
}

pub async fn items_come_in_the_order_asked(store: Arc<dyn Store>) {
    let table = Table::create(&store, "items_come_in_the_order_asked", plain()).await;
    table.put_all([item("a"), item("b").with("x", 1), item("c")]).await;
    let asked = ["c", "missing", "a", "b", "a", "missing"];
    let found = store.batch_get(asked.iter().map(|k| table.strong(key(k))).collect()).await.expect("a batch");
    let b = item("b").with("x", 1);
    assert_eq!(found, [Some(item("c")), None, Some(item("a")), Some(b), Some(item("a")), None]);
}

pub async fn nothing_asked_is_nothing_found(store: Arc<dyn Store>) {
    assert_eq!(store.batch_get(vec![]).await.expect("an empty batch"), []);
    store.batch_write(vec![]).await.expect("an empty batch");
}

pub async fn any_number_can_be_asked_for(store: Arc<dyn Store>) {
    let table = Table::create(&store, "any_number_can_be_asked_for", plain()).await;
    let stored = |n: usize| item(&name(n)).with("n", n as u64);
    store.batch_write((0..230).map(|n| table.batch_put(stored(n))).collect()).await.expect("a large batch");
    // Every other one twice, and some that are not there.
    let asked: Vec<usize> = (0..250).flat_map(|n| std::iter::repeat_n(n, 1 + n % 2)).collect();
    let gets = asked.iter().map(|n| table.strong(key(&name(*n)))).collect();
    let found = store.batch_get(gets).await.expect("a large batch");
    assert_eq!(found.len(), asked.len());
    for (n, found) in asked.into_iter().zip(found) {
        assert_eq!(found, (n < 230).then(|| stored(n)), "item {n}");
    }
}

pub async fn a_batch_may_span_tables(store: Arc<dyn Store>) {
    let one = Table::create(&store, "a_batch_may_span_tables", plain()).await;
    let two = Table::create(&store, "a_batch_may_span_tables", sorted_by(KeyAttribute::number("s"))).await;
    let sorted = |s: i32| Item::new().with("p", "a").with("s", s);
    store
        .batch_write(vec![one.batch_put(item("a")), two.batch_put(sorted(1)), two.batch_put(sorted(2))])
        .await
        .expect("a batch of two tables");
    let of_two = |s: i32| two.strong(courant_connectors::store::Key::new("p", "a").and("s", s));
    let eventual = |get: Get| Get { consistency: Consistency::Eventual, ..get };
    // Mixed consistency: strong for a table as soon as one of its gets is.
    let gets = vec![of_two(2), one.strong(key("a")), eventual(of_two(1)), eventual(of_two(3))];
    let found = store.batch_get(gets).await.expect("a batch of two tables");
    assert_eq!(found, [Some(sorted(2)), Some(item("a")), Some(sorted(1)), None]);
}

pub async fn puts_and_deletes_go_together(store: Arc<dyn Store>) {
    let table = Table::create(&store, "puts_and_deletes_go_together", plain()).await;
    table.put_all((0..40).map(|n| item(&name(n)))).await;
    let deletes = (0..40).map(|n| table.batch_delete(&name(n)));
    let puts = (40..80).map(|n| table.batch_put(item(&name(n))));
    let not_there = table.batch_delete("never");
    store.batch_write(deletes.chain(puts).chain([not_there]).collect()).await.expect("a batch");
    let mut found = table.scan(Segment::WHOLE, None).await;
    found.sort_by_key(|item| item.text("k").map(ToOwned::to_owned));
    assert_eq!(found, (40..80).map(|n| item(&name(n))).collect::<Vec<_>>());
}

pub async fn the_last_write_of_a_key_wins(store: Arc<dyn Store>) {
    let table = Table::create(&store, "the_last_write_of_a_key_wins", plain()).await;
    table.put(item("c").with("n", 0)).await;
    let put = |k: &str, n: i32| table.batch_put(item(k).with("n", n));
    // Far apart, so that a batch that is split has them in different calls.
    let between = (0..30).map(|n| table.batch_put(item(&name(n))));
    let mut writes = vec![put("a", 1), put("b", 1), table.batch_delete("c"), put("a", 2)];
    writes.extend(between);
    writes.extend([put("a", 3), table.batch_delete("b"), put("c", 3)]);
    store.batch_write(writes).await.expect("a batch with keys that come twice");
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 3)));
    assert_eq!(table.get(key("b")).await, None);
    assert_eq!(table.get(key("c")).await, Some(item("c").with("n", 3)));
}

pub async fn a_wrong_key_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_wrong_key_is_refused", plain()).await;
    is_refused!(store.batch_write(vec![table.batch_put(Item::new().with("other", "a"))]).await);
    is_refused!(store.batch_write(vec![table.batch_put(item("a").with("k", 1))]).await);
    is_refused!(store.batch_write(vec![table.batch_delete("")]).await);
}

pub async fn a_missing_table_fails_the_batch(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_missing_table_fails_the_batch", plain()).await;
    let missing = unique_name("a_missing_table_fails_the_batch");
    let gets = vec![table.strong(key("a")), Get { table: missing.clone(), ..table.strong(key("a")) }];
    fails_with!(store.batch_get(gets).await, StoreError::NoSuchTable { .. });
    let writes = vec![table.batch_put(item("a")), BatchWrite::Put { table: missing, item: item("a") }];
    fails_with!(store.batch_write(writes).await, StoreError::NoSuchTable { .. });
}
