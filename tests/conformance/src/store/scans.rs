//! Everything in a table.

use std::sync::Arc;

use courant_connectors::store::{KeyAttribute, Segment, Store};

use super::is_refused;
use super::table::{Table, item, key, plain, sorted_by, texts};

fn names(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("item-{n:03}")).collect()
}

pub async fn an_empty_table_has_nothing(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_empty_table_has_nothing", plain()).await;
    assert_eq!(table.scan(Segment::WHOLE, None).await, []);
    assert_eq!(table.scan(Segment { index: 1, of: 3 }, Some(1)).await, []);
}

pub async fn a_scan_finds_each_item_once(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_scan_finds_each_item_once", plain()).await;
    let names = names(50);
    table.put_all(names.iter().map(|k| item(k))).await;
    for limit in [None, Some(1), Some(7), Some(50)] {
        let found = table.scan(Segment::WHOLE, limit).await;
        let mut found = texts(&found, "k");
        found.sort_unstable();
        assert_eq!(found, names, "by {limit:?}");
    }
}

pub async fn segments_share_the_table(store: Arc<dyn Store>) {
    let table = Table::create(&store, "segments_share_the_table", sorted_by(KeyAttribute::number("s"))).await;
    for p in 0..20 {
        for s in 0..3 {
            let p = format!("partition-{p:02}");
            table.put(courant_connectors::store::Item::new().with("p", p).with("s", s)).await;
        }
    }
    let mut whole = table.scan(Segment::WHOLE, None).await;
    assert_eq!(whole.len(), 60);
    let order =
        |item: &courant_connectors::store::Item| (item.text("p").map(ToOwned::to_owned), item.u64("s"));
    whole.sort_by_key(order);
    for of in [2, 4, 7] {
        let mut found = Vec::new();
        for index in 0..of {
            found.extend(table.scan(Segment { index, of }, Some(5)).await);
        }
        found.sort_by_key(order);
        assert_eq!(found, whole, "each item is in exactly one of {of} segments");
    }
}

pub async fn a_scan_goes_on_after_a_deleted_item(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_scan_goes_on_after_a_deleted_item", plain()).await;
    let names = names(10);
    table.put_all(names.iter().map(|k| item(k))).await;
    let page = store.scan(table.scan_of(Segment::WHOLE, Some(4))).await.expect("a scan");
    let seen = texts(&page.items, "k");
    assert_eq!(seen.len(), 4);
    table.delete(key(seen[3])).await;
    let mut scan = table.scan_of(Segment::WHOLE, None);
    scan.start_after.clone_from(&page.next);
    let rest = store.scan(scan).await.expect("a scan");
    let mut all: Vec<_> = seen.into_iter().chain(texts(&rest.items, "k")).collect();
    all.sort_unstable();
    assert_eq!(all, names, "what was seen and the rest are the whole");
}

pub async fn a_segment_must_be_one_of_them(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_segment_must_be_one_of_them", plain()).await;
    for segment in [Segment { index: 2, of: 2 }, Segment { index: 0, of: 0 }] {
        is_refused!(store.scan(table.scan_of(segment, None)).await);
    }
    is_refused!(store.scan(table.scan_of(Segment::WHOLE, Some(0))).await);
}
