//! Items that have ended are not shown, removed or not.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use courant_connectors::store::{
    IndexSchema, Item, Key, KeyAttribute, Name, Projection, Segment, Store, TableSchema,
};

use super::table::{Table, numbers, sorted_by};

const BY_OWNER: &[IndexSchema] = &[IndexSchema {
    name: Name::new_static("by-owner"),
    partition: KeyAttribute::text("owner"),
    sort: Some(KeyAttribute::number("s")),
    projection: Projection::All,
}];

fn schema() -> TableSchema {
    TableSchema {
        ttl: Some(Name::new_static("ends")),
        indexes: BY_OWNER.into(),
        ..sorted_by(KeyAttribute::number("s"))
    }
}

#[allow(clippy::disallowed_methods, reason = "the store compares with the wall clock")]
fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since: Duration| since.as_secs())
}

/// Items that ended, end later, and never end: 1 to 6, of which 1, 3 and 5 have ended.
async fn filled(store: &Arc<dyn Store>, case: &str) -> Table {
    let table = Table::create(store, case, schema()).await;
    let now = seconds_since_1970();
    let at = |s: u64| Item::new().with("p", "a").with("owner", "x").with("s", s);
    table
        .put_all([
            at(1).with("ends", now - 1),
            at(2).with("ends", now + 3600),
            at(3).with("ends", now - 86_400),
            at(4),
            at(5).with("ends", 1),
            // Not a time, so it never comes.
            at(6).with("ends", "1"),
        ])
        .await;
    table
}

fn at(s: u64) -> Key {
    Key::new("p", "a").and("s", s)
}

pub async fn a_get_hides_what_has_ended(store: Arc<dyn Store>) {
    let table = filled(&store, "a_get_hides_what_has_ended").await;
    for s in 1..=6 {
        let shown = table.get(at(s)).await.is_some();
        assert_eq!(shown, [2, 4, 6].contains(&s), "item {s}");
    }
}

pub async fn a_batch_get_hides_what_has_ended(store: Arc<dyn Store>) {
    let table = filled(&store, "a_batch_get_hides_what_has_ended").await;
    let found = store.batch_get((1..=6).map(|s| table.strong(at(s))).collect()).await.expect("a batch");
    let shown: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(shown, [false, true, false, true, false, true]);
}

pub async fn a_query_hides_what_has_ended(store: Arc<dyn Store>) {
    let table = filled(&store, "a_query_hides_what_has_ended").await;
    for limit in [None, Some(1), Some(2)] {
        let found = table.all(table.partition("a"), limit).await;
        assert_eq!(numbers(&found, "s"), [2, 4, 6], "by {limit:?}");
    }
}

pub async fn a_scan_hides_what_has_ended(store: Arc<dyn Store>) {
    let table = filled(&store, "a_scan_hides_what_has_ended").await;
    for limit in [None, Some(1)] {
        let mut found = numbers(&table.scan(Segment::WHOLE, limit).await, "s");
        found.sort_unstable();
        assert_eq!(found, [2, 4, 6], "by {limit:?}");
    }
}

pub async fn an_index_hides_what_has_ended(store: Arc<dyn Store>) {
    let table = filled(&store, "an_index_hides_what_has_ended").await;
    crate::eventually("the items in the index", || async {
        let found = table.all(table.of_index("by-owner", "owner", "x"), Some(2)).await;
        let found = numbers(&found, "s");
        assert!(found.iter().all(|s| s % 2 == 0), "what has ended is never shown: {found:?}");
        (found == [2, 4, 6]).then_some(())
    })
    .await;
}

pub async fn an_ended_item_can_be_put_again(store: Arc<dyn Store>) {
    let table = filled(&store, "an_ended_item_can_be_put_again").await;
    let renewed = Item::new().with("p", "a").with("s", 1).with("ends", seconds_since_1970() + 3600);
    table.put(renewed.clone()).await;
    assert_eq!(table.get(at(1)).await, Some(renewed));
}
