//! Putting, getting and deleting single items.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::{
    BatchWrite, Condition, Consistency, Durability, Get, Item, Query, Returning, Scan, Segment, Store,
    StoreError, Transaction, Update, Value, Write,
};

use super::table::{Table, item, key, plain};
use super::{fails_with, is_refused, unique_name};

pub async fn a_missing_item_is_none(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_missing_item_is_none", plain()).await;
    assert_eq!(table.get(key("a")).await, None);
    table.put(item("b")).await;
    assert_eq!(table.get(key("a")).await, None);
}

pub async fn every_kind_of_value_comes_back(store: Arc<dyn Store>) {
    let table = Table::create(&store, "every_kind_of_value_comes_back", plain()).await;
    let nested = Value::Map(BTreeMap::from([
        ("list".to_owned(), Value::List(vec![Value::Null, 1.into(), "x".into(), Value::List(vec![])])),
        ("map".to_owned(), Value::Map(BTreeMap::new())),
    ]));
    let put = item("a")
        .with("text", "grüße 🦀")
        .with("number", -42)
        .with("bytes", Bytes::from_static(&[0, 255, 0]))
        .with("yes", true)
        .with("no", false)
        .with("null", Value::Null)
        .with("nested", nested)
        .with("texts", Value::TextSet(BTreeSet::from(["b".to_owned(), "a".to_owned()])))
        .with("numbers", Value::NumberSet(BTreeSet::from([1.into(), (-3).into()])))
        .with("blobs", Value::BytesSet(BTreeSet::from([Bytes::from_static(&[0]), Bytes::from_static(&[1])])));
    table.put(put.clone()).await;
    assert_eq!(table.get(key("a")).await, Some(put));
}

pub async fn a_put_replaces_the_whole_item(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_put_replaces_the_whole_item", plain()).await;
    table.put(item("a").with("old", 1).with("both", 1)).await;
    table.put(item("a").with("both", 2)).await;
    assert_eq!(table.get(key("a")).await, Some(item("a").with("both", 2)));
}

pub async fn a_put_tells_what_was_there(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_put_tells_what_was_there", plain()).await;
    let put = |n: i32| Write::put(table.name.clone(), item("a").with("n", n));
    assert_eq!(table.write(put(1), Returning::Old).await.expect("put"), None);
    assert_eq!(table.write(put(2), Returning::Old).await.expect("put"), Some(item("a").with("n", 1)));
    assert_eq!(table.write(put(3), Returning::Nothing).await.expect("put"), None);
}

pub async fn a_delete_tells_what_was_there(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_delete_tells_what_was_there", plain()).await;
    table.put(item("a").with("n", 1)).await;
    let delete = || Write::delete(table.name.clone(), key("a"));
    assert_eq!(table.write(delete(), Returning::Old).await.expect("delete"), Some(item("a").with("n", 1)));
    assert_eq!(table.get(key("a")).await, None);
    assert_eq!(table.write(delete(), Returning::Old).await.expect("delete of nothing"), None);
    assert_eq!(table.write(delete(), Returning::Nothing).await.expect("delete of nothing"), None);
}

pub async fn only_updates_tell_what_is_new(store: Arc<dyn Store>) {
    let table = Table::create(&store, "only_updates_tell_what_is_new", plain()).await;
    for returning in [Returning::New, Returning::UpdatedNew] {
        is_refused!(table.write(Write::put(table.name.clone(), item("a")), returning).await);
        is_refused!(table.write(Write::delete(table.name.clone(), key("a")), returning).await);
    }
    assert_eq!(table.get(key("a")).await, None, "a refused put did not happen");
}

pub async fn a_check_alone_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_check_alone_is_refused", plain()).await;
    let check = Write::Check { table: table.name.clone(), key: key("a"), condition: Condition::missing("k") };
    is_refused!(table.write(check, Returning::Nothing).await);
}

pub async fn any_attribute_name_works(store: Arc<dyn Store>) {
    let table = Table::create(&store, "any_attribute_name_works", plain()).await;
    // Reserved words, operators, and what expressions use for themselves.
    let names = ["size", "Name", "and", "a.b", "with space", "größe", "#n0", ":v0", "l[0]", "-", "1st"];
    let update = names.iter().fold(Update::new(), |update, name| update.set(*name, *name));
    let conditions = names.iter().map(|name| Condition::missing(*name)).collect();
    let write = Write::update(table.name.clone(), key("a"), update).only_if(Condition::All(conditions));
    table.write(write, Returning::Nothing).await.expect("an update of unusual names");
    let expected = names.iter().fold(item("a"), |item, name| item.with(*name, *name));
    assert_eq!(table.get(key("a")).await, Some(expected));
    let same = names.iter().map(|name| Condition::equals(*name, *name)).collect();
    table.put_if(item("a"), Condition::All(same)).await.expect("all are as they were set");
}

pub async fn an_ordered_write_is_seen_at_once(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_ordered_write_is_seen_at_once", plain()).await;
    let update = Write::update(table.name.clone(), key("a"), Update::new().add("n", 5));
    let told =
        store.write(update, Returning::UpdatedNew, Durability::Ordered).await.expect("an ordered write");
    assert_eq!(told, Some(Item::new().with("n", 5)));
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 5)));
}

pub async fn an_eventual_get_sees_it_in_the_end(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_eventual_get_sees_it_in_the_end", plain()).await;
    table.put(item("a")).await;
    let get = Get { consistency: Consistency::Eventual, ..table.strong(key("a")) };
    let seen = crate::eventually("the item", || async { store.get(get.clone()).await.expect("a get") }).await;
    assert_eq!(seen, item("a"));
}

pub async fn a_missing_table_is_named(store: Arc<dyn Store>) {
    let table = unique_name("a_missing_table_is_named");
    let get = Get { table: table.clone(), key: key("a"), consistency: Consistency::Strong };
    let scan = Scan {
        table: table.clone(),
        segment: Segment::WHOLE,
        limit: None,
        start_after: None,
        consistency: Consistency::Strong,
    };
    let put = Write::put(table.clone(), item("a"));
    let update = Write::update(table.clone(), key("a"), Update::new().set("n", 1));
    let delete = Write::delete(table.clone(), key("a"));
    let named = |missing: &str| missing == table;

    fails_with!(store.get(get.clone()).await, StoreError::NoSuchTable { table } if named(&table));
    fails_with!(store.batch_get(vec![get]).await, StoreError::NoSuchTable { table } if named(&table));
    let query = Query::new(table.clone(), "k", "a");
    fails_with!(store.query(query).await, StoreError::NoSuchTable { table } if named(&table));
    fails_with!(store.scan(scan).await, StoreError::NoSuchTable { table } if named(&table));
    for write in [put.clone(), update, delete] {
        let written = store.write(write, Returning::Nothing, Durability::Synced).await;
        fails_with!(written, StoreError::NoSuchTable { table } if named(&table));
    }
    let batch = vec![BatchWrite::Put { table: table.clone(), item: item("a") }];
    fails_with!(store.batch_write(batch).await, StoreError::NoSuchTable { table } if named(&table));
    let transaction = Transaction { writes: vec![put], token: None };
    fails_with!(store.transact(transaction).await, StoreError::NoSuchTable { table } if named(&table));
    fails_with!(store.shards(&table).await, StoreError::NoSuchTable { table } if named(&table));
    fails_with!(store.drop_table(&table).await, StoreError::NoSuchTable { table } if named(&table));
}
