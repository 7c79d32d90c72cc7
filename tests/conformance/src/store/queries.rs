//! Pages of one partition, in order.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::{
    Direction, Item, Key, KeyAttribute, Name, Number, Query, SortRange, Store, StoreError, Value, Within,
};

use super::table::{DIRECTIONS, Table, item, numbers, plain, sorted_by, texts};
use super::{fails_with, is_refused};

/// A table with the items 0, 10, … 90 in partition `a`, and others around it.
async fn tens(store: &Arc<dyn Store>, case: &str) -> Table {
    let table = Table::create(store, case, sorted_by(KeyAttribute::number("s"))).await;
    // Not in the order of the keys.
    for s in [50, 0, 90, 10, 20, 80, 30, 70, 40, 60] {
        table.put(at("a", s)).await;
    }
    table.put_all([at("A", 15), at("aa", 25), at("b", 35)]).await;
    table
}

fn at(p: &str, s: u64) -> Item {
    Item::new().with("p", p).with("s", s)
}

/// This part of the sort keys.
fn sort_keys(within: Within) -> SortRange {
    SortRange { attribute: Name::new_static("s"), within }
}

fn in_order(mut keys: Vec<u64>, direction: Direction) -> Vec<u64> {
    keys.sort_unstable();
    if direction == Direction::Backward {
        keys.reverse();
    }
    keys
}

pub async fn a_partition_comes_in_order(store: Arc<dyn Store>) {
    let table = tens(&store, "a_partition_comes_in_order").await;
    for direction in DIRECTIONS {
        let page = table.page(Query { direction, ..table.partition("a") }).await;
        let expected = in_order((0..10).map(|n| n * 10).collect(), direction);
        assert_eq!(numbers(&page.items, "s"), expected, "{direction:?}");
        assert_eq!(page.next, None);
    }
}

pub async fn an_empty_partition_is_an_empty_page(store: Arc<dyn Store>) {
    let table = tens(&store, "an_empty_partition_is_an_empty_page").await;
    let page = table.page(table.partition("nobody")).await;
    assert!(page.items.is_empty() && page.next.is_none(), "{page:?}");
}

pub async fn every_bound_is_kept(store: Arc<dyn Store>) {
    let table = tens(&store, "every_bound_is_kept").await;
    // On an item and between two.
    let bounds = |value: i64| {
        [Bound::Unbounded, Bound::Included(Value::from(value)), Bound::Excluded(Value::from(value))]
    };
    let plain = |bound: &Bound<Value>| match bound {
        Bound::Included(value) => Bound::Included(value.as_u64().expect("positive")),
        Bound::Excluded(value) => Bound::Excluded(value.as_u64().expect("positive")),
        Bound::Unbounded => Bound::Unbounded,
    };
    let lows = [20, 25].into_iter().flat_map(bounds).collect::<Vec<_>>();
    let highs = [70, 75].into_iter().flat_map(bounds).collect::<Vec<_>>();
    for (low, high) in lows.iter().flat_map(|low| highs.iter().map(move |high| (low, high))) {
        if (low, high) == (&Bound::Unbounded, &Bound::Unbounded) {
            continue;
        }
        let inside = |s: &u64| std::ops::RangeBounds::contains(&(plain(low), plain(high)), s);
        let expected: Vec<u64> = (0..10).map(|n| n * 10).filter(inside).collect();
        for direction in DIRECTIONS {
            for limit in [None, Some(1), Some(3)] {
                let range = sort_keys(Within::Bounds(low.clone(), high.clone()));
                let found =
                    table.all(Query { range: Some(range), direction, ..table.partition("a") }, limit).await;
                let expected = in_order(expected.clone(), direction);
                assert_eq!(numbers(&found, "s"), expected, "{low:?} {high:?} {direction:?} {limit:?}");
            }
        }
    }
}

pub async fn a_range_that_holds_nothing_is_empty(store: Arc<dyn Store>) {
    let table = tens(&store, "a_range_that_holds_nothing_is_empty").await;
    let (twenty, seventy) = (|| Value::from(20), || Value::from(70));
    let empty = [
        (Bound::Included(seventy()), Bound::Included(twenty())),
        (Bound::Excluded(twenty()), Bound::Excluded(twenty())),
        (Bound::Included(twenty()), Bound::Excluded(twenty())),
        (Bound::Excluded(20.into()), Bound::Excluded(30.into())),
        (Bound::Included(91.into()), Bound::Unbounded),
    ];
    for (low, high) in empty {
        let range = sort_keys(Within::Bounds(low.clone(), high.clone()));
        let found = table.all(Query { range: Some(range), ..table.partition("a") }, None).await;
        assert_eq!(found, [], "{low:?} {high:?}");
    }
    let one = sort_keys(Within::Bounds(Bound::Included(twenty()), Bound::Included(twenty())));
    assert_eq!(table.all(Query { range: Some(one), ..table.partition("a") }, None).await, [at("a", 20)]);
}

pub async fn pages_join_to_the_whole(store: Arc<dyn Store>) {
    let table = tens(&store, "pages_join_to_the_whole").await;
    for direction in DIRECTIONS {
        for limit in [1, 3, 9, 10, 11] {
            let found = table.all(Query { direction, ..table.partition("a") }, Some(limit)).await;
            let expected = in_order((0..10).map(|n| n * 10).collect(), direction);
            assert_eq!(numbers(&found, "s"), expected, "{direction:?} by {limit}");
        }
    }
}

pub async fn a_page_goes_on_after_a_deleted_item(store: Arc<dyn Store>) {
    let table = tens(&store, "a_page_goes_on_after_a_deleted_item").await;
    for (direction, first, rest) in
        [(Direction::Forward, 20, vec![30, 40]), (Direction::Backward, 70, vec![60, 50])]
    {
        let query = Query { direction, limit: Some(3), ..table.partition("a") };
        let page = table.page(query.clone()).await;
        assert_eq!(numbers(&page.items, "s").last(), Some(&first));
        table.delete(Key::new("p", "a").and("s", first)).await;
        let page = table.page(Query { start_after: page.next, limit: Some(2), ..query }).await;
        assert_eq!(numbers(&page.items, "s"), rest, "{direction:?}");
    }
}

pub async fn a_limit_of_nothing_is_refused(store: Arc<dyn Store>) {
    let table = tens(&store, "a_limit_of_nothing_is_refused").await;
    is_refused!(store.query(Query { limit: Some(0), ..table.partition("a") }).await);
}

pub async fn a_page_ends_after_a_megabyte(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "a_page_ends_after_a_megabyte", sorted_by(KeyAttribute::number("s"))).await;
    let large = |s: u64| at("a", s).with("text", "x".repeat(300_000));
    table.put_all((0..5).map(large)).await;
    let page = table.page(table.partition("a")).await;
    assert!((3..=4).contains(&page.items.len()), "{} items of 300 KB", page.items.len());
    assert!(page.next.is_some(), "there are more");
    assert_eq!(numbers(&table.all(table.partition("a"), None).await, "s"), [0, 1, 2, 3, 4]);
}

pub async fn numbers_are_sorted_by_value(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "numbers_are_sorted_by_value", sorted_by(KeyAttribute::number("s"))).await;
    let in_order = [
        "-1e125",
        "-18446744073709551616",
        "-100",
        "-20",
        "-9",
        "-0.5",
        "-1e-130",
        "0",
        "1e-130",
        "0.05",
        "0.5",
        "3",
        "9",
        "10",
        "100.5",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1e125",
    ];
    let number = |text: &str| text.parse::<Number>().expect("a number");
    let mixed = in_order.iter().skip(7).chain(in_order.iter().take(7).rev());
    for text in mixed {
        table.put(Item::new().with("p", "a").with("s", number(text))).await;
    }
    let found = table.all(table.partition("a"), Some(4)).await;
    let found: Vec<Number> = found.iter().filter_map(|item| item.get("s")?.as_number()).collect();
    assert_eq!(found, in_order.map(number));

    let small =
        sort_keys(Within::Bounds(Bound::Included((-9).into()), Bound::Excluded(number("0.5").into())));
    let found = table.all(Query { range: Some(small), ..table.partition("a") }, None).await;
    let found: Vec<Number> = found.iter().filter_map(|item| item.get("s")?.as_number()).collect();
    assert_eq!(found, ["-9", "-0.5", "-1e-130", "0", "1e-130", "0.05"].map(number));
}

pub async fn texts_are_sorted_by_their_bytes(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "texts_are_sorted_by_their_bytes", sorted_by(KeyAttribute::text("s"))).await;
    let in_order =
        ["\0", "\0\0", " ", "10", "9", "A", "Z", "a", "a\0", "a\0b", "ab", "b", "é", "\u{ffff}", "🦀"];
    for s in in_order.iter().rev() {
        table.put(Item::new().with("p", "a").with("s", *s)).await;
    }
    let found = table.all(table.partition("a"), Some(4)).await;
    assert_eq!(texts(&found, "s"), in_order);
    let range = sort_keys(Within::Bounds(Bound::Excluded("a".into()), Bound::Excluded("b".into())));
    let found = table.all(Query { range: Some(range), ..table.partition("a") }, None).await;
    assert_eq!(texts(&found, "s"), ["a\0", "a\0b", "ab"]);
}

pub async fn bytes_are_sorted_without_sign(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "bytes_are_sorted_without_sign", sorted_by(KeyAttribute::bytes("s"))).await;
    let in_order: [&'static [u8]; 8] = [&[0], &[0, 0], &[0, 1], &[1], &[127], &[128], &[255], &[255, 255]];
    for s in in_order.iter().rev() {
        table.put(Item::new().with("p", "a").with("s", Bytes::from_static(s))).await;
    }
    let found = table.all(table.partition("a"), Some(3)).await;
    let found: Vec<&Value> = found.iter().filter_map(|item| item.get("s")).collect();
    let expected = in_order.map(|s| Value::Bytes(Bytes::from_static(s)));
    assert_eq!(found, expected.iter().collect::<Vec<_>>());
    let range = sort_keys(Within::Prefix(Bytes::from_static(&[255]).into()));
    assert_eq!(table.all(Query { range: Some(range), ..table.partition("a") }, None).await.len(), 2);
}

pub async fn a_prefix_finds_what_begins_with_it(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "a_prefix_finds_what_begins_with_it", sorted_by(KeyAttribute::text("s"))).await;
    for s in ["a", "msg", "msg#", "msg#1", "msg#10", "msg#2", "msg$", "z", "\u{10ffff}", "\u{10ffff}x"] {
        table.put(Item::new().with("p", "a").with("s", s)).await;
    }
    let beginning = |prefix: &str| sort_keys(Within::Prefix(prefix.into()));
    for (prefix, expected) in [
        ("msg#", vec!["msg#", "msg#1", "msg#10", "msg#2"]),
        ("msg#1", vec!["msg#1", "msg#10"]),
        ("\u{10ffff}", vec!["\u{10ffff}", "\u{10ffff}x"]),
        ("nothing", vec![]),
    ] {
        for limit in [None, Some(1)] {
            let query = Query { range: Some(beginning(prefix)), ..table.partition("a") };
            assert_eq!(texts(&table.all(query, limit).await, "s"), expected, "{prefix}");
        }
        let backward =
            Query { range: Some(beginning(prefix)), direction: Direction::Backward, ..table.partition("a") };
        let expected: Vec<_> = expected.into_iter().rev().collect();
        assert_eq!(texts(&table.all(backward, None).await, "s"), expected, "{prefix} backward");
    }
}

pub async fn a_table_without_sort_key_has_partitions_of_one(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_table_without_sort_key_has_partitions_of_one", plain()).await;
    table.put_all([item("a"), item("b")]).await;
    let query = Query::new(table.name.clone(), "k", "a");
    let found = crate::eventually("the item", || async {
        let page = store.query(query.clone()).await.expect("a query by the key");
        Some(page.items).filter(|items| !items.is_empty())
    });
    assert_eq!(found.await, [item("a")]);
}

pub async fn a_query_must_fit_the_keys(store: Arc<dyn Store>) {
    let table = tens(&store, "a_query_must_fit_the_keys").await;
    let name = || table.name.clone();
    is_refused!(store.query(Query::new(name(), "s", 1)).await);
    is_refused!(store.query(Query::new(name(), "p", 1)).await);
    // An empty partition key is refused by AWS and finds nothing on dynoxide, so neither is asked for.
    let of_other = SortRange { attribute: Name::new_static("x"), within: Within::Prefix("a".into()) };
    is_refused!(store.query(Query { range: Some(of_other), ..table.partition("a") }).await);
    let text = sort_keys(Within::Bounds(Bound::Included("a".into()), Bound::Unbounded));
    is_refused!(store.query(Query { range: Some(text), ..table.partition("a") }).await);
    let prefix_of_number = sort_keys(Within::Prefix(1.into()));
    is_refused!(store.query(Query { range: Some(prefix_of_number), ..table.partition("a") }).await);
}

pub async fn a_missing_index_is_named(store: Arc<dyn Store>) {
    let table = tens(&store, "a_missing_index_is_named").await;
    let query = table.of_index("by-nothing", "p", "a");
    fails_with!(
        store.query(query).await,
        StoreError::NoSuchIndex { table: of, index } if of == table.name && index == "by-nothing"
    );
}
