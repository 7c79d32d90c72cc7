//! Sizes and numbers at the edge of what a store takes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::{
    BatchWrite, Item, MAX_ITEM_BYTES, Number, Returning, Store, StoreError, Update, Value, Write,
};

use super::is_refused;
use super::table::{Table, item, key, plain};

/// An item of exactly this many bytes.
fn item_of(bytes: usize) -> Item {
    let without = item("a").with("text", "").size();
    let item = item("a").with("text", "x".repeat(bytes - without));
    assert_eq!(item.size(), bytes);
    item
}

pub async fn an_item_may_be_as_large_as_the_limit(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_item_may_be_as_large_as_the_limit", plain()).await;
    let largest = item_of(MAX_ITEM_BYTES);
    table.put(largest.clone()).await;
    assert_eq!(table.get(key("a")).await, Some(largest.clone()));
    table.transact(vec![Write::put(table.name.clone(), largest)]).await.expect("a transaction takes it too");
}

pub async fn a_larger_item_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_larger_item_is_refused", plain()).await;
    let too_large = || item_of(MAX_ITEM_BYTES + 1);
    is_refused!(table.write(Write::put(table.name.clone(), too_large()), Returning::Nothing).await);
    let batch = vec![BatchWrite::Put { table: table.name.clone(), item: too_large() }];
    is_refused!(store.batch_write(batch).await);
    is_refused!(table.transact(vec![Write::put(table.name.clone(), too_large())]).await);
    assert_eq!(table.get(key("a")).await, None);
}

pub async fn an_update_cannot_grow_an_item_too_large(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_update_cannot_grow_an_item_too_large", plain()).await;
    let stored = item_of(MAX_ITEM_BYTES - 10);
    table.put(stored.clone()).await;
    is_refused!(table.update(key("a"), Update::new().set("more", "x".repeat(20)), Returning::Nothing).await);
    assert_eq!(table.get(key("a")).await, Some(stored));
}

pub async fn numbers_come_back_exactly(store: Arc<dyn Store>) {
    let table = Table::create(&store, "numbers_come_back_exactly", plain()).await;
    let largest = "9".repeat(38);
    let numbers = [
        "0",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        &largest,
        "0.1",
        "-123.456",
        "1e125",
        "-9.9999999999999999999999999999999999999e125",
        "1e-130",
        "-1e-130",
    ];
    for text in numbers {
        let number: Number = text.parse().expect("a number");
        table.put(item("a").with("n", number)).await;
        assert_eq!(table.get(key("a")).await, Some(item("a").with("n", number)), "{text}");
    }
}

pub async fn an_attribute_may_be_empty(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_attribute_may_be_empty", plain()).await;
    let empty = item("a").with("text", "").with("bytes", Bytes::new()).with("list", Value::List(vec![]));
    table.put(empty.clone()).await;
    assert_eq!(table.get(key("a")).await, Some(empty));
}

pub async fn a_set_may_not_be_empty(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_set_may_not_be_empty", plain()).await;
    let sets = [
        Value::TextSet(BTreeSet::new()),
        Value::NumberSet(BTreeSet::new()),
        Value::BytesSet(BTreeSet::new()),
    ];
    for set in sets {
        is_refused!(
            table.write(Write::put(table.name.clone(), item("a").with("set", set)), Returning::Nothing).await
        );
    }
    assert_eq!(table.get(key("a")).await, None);
}

pub async fn a_sum_that_is_no_number_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_sum_that_is_no_number_is_refused", plain()).await;
    let large: Number = "9.9e125".parse().expect("a number");
    table.put(item("a").with("n", large)).await;
    match table.update(key("a"), Update::new().add("n", large), Returning::Nothing).await {
        Err(StoreError::Invalid(_)) => {}
        other => panic!("expected a refusal, got {other:?}"),
    }
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", large)));
}
