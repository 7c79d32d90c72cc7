//! The same items by other keys.

use std::ops::Bound;
use std::sync::Arc;

use courant_connectors::store::{
    Consistency, Direction, Item, Name, Query, Returning, SortRange, Store, Update, Within, Write,
};

use super::is_refused;
use super::table::{DIRECTIONS, Table, indexed, item, key, numbers, texts};

fn owned(k: &str, owner: &str, rank: u64) -> Item {
    item(k).with("owner", owner).with("rank", rank)
}

impl Table {
    fn by_owner(&self, owner: &str) -> Query {
        self.of_index("by-owner", "owner", owner)
    }

    /// Waits until a query of an index finds exactly these, by `k`, in this order.
    async fn comes_to_hold(&self, query: Query, expected: &[&str]) {
        let what = format!("{expected:?} in the index");
        crate::eventually(&what, || async {
            let found = self.all(query.clone(), None).await;
            (texts(&found, "k") == expected).then_some(())
        })
        .await;
    }
}

pub async fn an_index_finds_items_in_its_order(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_finds_items_in_its_order", indexed()).await;
    table.put_all([owned("a", "x", 3), owned("b", "x", 1), owned("c", "x", 2), owned("d", "y", 1)]).await;
    table.comes_to_hold(table.by_owner("x"), &["b", "c", "a"]).await;
    let backward = Query { direction: Direction::Backward, ..table.by_owner("x") };
    table.comes_to_hold(backward, &["a", "c", "b"]).await;
    let within = Within::Bounds(Bound::Excluded(1.into()), Bound::Included(3.into()));
    let range = Some(SortRange { attribute: Name::new_static("rank"), within });
    table.comes_to_hold(Query { range, ..table.by_owner("x") }, &["c", "a"]).await;
}

pub async fn an_index_with_all_attributes_has_them_all(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_with_all_attributes_has_them_all", indexed()).await;
    let stored = owned("a", "x", 3).with("more", "m").with("tag", "t");
    table.put(stored.clone()).await;
    table.comes_to_hold(table.by_owner("x"), &["a"]).await;
    assert_eq!(table.page(table.by_owner("x")).await.items, [stored]);
}

pub async fn an_index_of_keys_has_only_keys(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_of_keys_has_only_keys", indexed()).await;
    table.put(owned("a", "x", 3).with("more", "m").with("tag", "t")).await;
    let query = || table.of_index("by-tag", "tag", "t");
    table.comes_to_hold(query(), &["a"]).await;
    assert_eq!(table.page(query()).await.items, [item("a").with("tag", "t")]);
}

pub async fn what_lacks_the_index_key_is_not_in_it(store: Arc<dyn Store>) {
    let table = Table::create(&store, "what_lacks_the_index_key_is_not_in_it", indexed()).await;
    table.put_all([item("a").with("owner", "x"), item("b").with("rank", 1), item("c")]).await;
    table.put(owned("d", "x", 1)).await;
    table.comes_to_hold(table.by_owner("x"), &["d"]).await;
    assert!(table.get(key("a")).await.is_some(), "it is in the table");
}

pub async fn an_index_follows_changes(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_follows_changes", indexed()).await;
    table.put_all([owned("a", "x", 1), owned("b", "x", 2), owned("c", "x", 3)]).await;
    table.comes_to_hold(table.by_owner("x"), &["a", "b", "c"]).await;
    // Moved within the partition, to another one, and out of the index.
    table.update(key("a"), Update::new().set("rank", 9), Returning::Nothing).await.expect("an update");
    table.comes_to_hold(table.by_owner("x"), &["b", "c", "a"]).await;
    table.put(owned("b", "y", 2)).await;
    table.comes_to_hold(table.by_owner("x"), &["c", "a"]).await;
    table.comes_to_hold(table.by_owner("y"), &["b"]).await;
    table.update(key("c"), Update::new().remove("owner"), Returning::Nothing).await.expect("an update");
    table.comes_to_hold(table.by_owner("x"), &["a"]).await;
    table.delete(key("a")).await;
    table.comes_to_hold(table.by_owner("x"), &[]).await;
    // And what it holds of an item that stays where it is.
    table.update(key("b"), Update::new().set("more", 1), Returning::Nothing).await.expect("an update");
    crate::eventually("the new attribute in the index", || async {
        let page = table.page(table.by_owner("y")).await;
        page.items.first().and_then(|item| item.u64("more"))
    })
    .await;
    table.transact(vec![Write::delete(table.name.clone(), key("b"))]).await.expect("a transaction");
    table.comes_to_hold(table.by_owner("y"), &[]).await;
}

pub async fn items_with_the_same_index_key_are_all_found(store: Arc<dyn Store>) {
    let table = Table::create(&store, "items_with_the_same_index_key_are_all_found", indexed()).await;
    let names: Vec<String> = (0..9).map(|n| format!("item-{n}")).collect();
    table.put_all(names.iter().map(|k| owned(k, "x", 7).with("tag", "t"))).await;
    crate::eventually("all in both indexes", || async {
        let by_owner = table.all(table.by_owner("x"), None).await.len();
        let by_tag = table.all(table.of_index("by-tag", "tag", "t"), None).await.len();
        (by_owner == names.len() && by_tag == names.len()).then_some(())
    })
    .await;
    for direction in DIRECTIONS {
        for limit in [1, 2, 4, 9] {
            for query in [table.by_owner("x"), table.of_index("by-tag", "tag", "t")] {
                let found = table.all(Query { direction, ..query }, Some(limit)).await;
                let mut found = texts(&found, "k");
                found.sort_unstable();
                assert_eq!(found, names, "{direction:?} by {limit}, each once");
            }
        }
    }
}

pub async fn a_page_of_an_index_goes_on_after_a_deleted_item(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_page_of_an_index_goes_on_after_a_deleted_item", indexed()).await;
    table.put_all((1..=5).map(|rank| owned(&format!("item-{rank}"), "x", rank))).await;
    let all = ["item-1", "item-2", "item-3", "item-4", "item-5"];
    table.comes_to_hold(table.by_owner("x"), &all).await;
    let page = table.page(Query { limit: Some(2), ..table.by_owner("x") }).await;
    assert_eq!(numbers(&page.items, "rank"), [1, 2]);
    table.delete(key("item-2")).await;
    table.comes_to_hold(table.by_owner("x"), &["item-1", "item-3", "item-4", "item-5"]).await;
    let page = table.page(Query { start_after: page.next, ..table.by_owner("x") }).await;
    assert_eq!(numbers(&page.items, "rank"), [3, 4, 5]);
}

pub async fn an_index_may_be_asked_for_a_strong_read(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_may_be_asked_for_a_strong_read", indexed()).await;
    table.put(owned("a", "x", 1)).await;
    let strong = Query { consistency: Consistency::Strong, ..table.by_owner("x") };
    table.comes_to_hold(strong, &["a"]).await;
}

pub async fn an_index_key_must_fit(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_index_key_must_fit", indexed()).await;
    let put = |item| Write::put(table.name.clone(), item);
    is_refused!(table.write(put(item("a").with("owner", 1).with("rank", 1)), Returning::Nothing).await);
    is_refused!(table.write(put(item("a").with("owner", "").with("rank", 1)), Returning::Nothing).await);
    is_refused!(table.write(put(item("a").with("tag", true)), Returning::Nothing).await);
    is_refused!(table.update(key("a"), Update::new().set("rank", "first"), Returning::Nothing).await);
    assert_eq!(table.get(key("a")).await, None);
}
