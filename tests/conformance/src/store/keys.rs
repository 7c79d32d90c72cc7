//! What can be a key, and what cannot.

use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::store::{
    CancelReason, Item, Key, KeyAttribute, MAX_PARTITION_KEY_BYTES, MAX_SORT_KEY_BYTES, Returning, Store,
    StoreError, TableSchema, Update, Value, Write,
};

use super::is_refused;
use super::table::{Table, item, key, plain, sorted_by};

/// Asserts that this key is refused by every operation that takes one.
async fn refuses(table: &Table, key: Key) {
    is_refused!(table.try_get(key.clone()).await);
    is_refused!(table.store.batch_get(vec![table.strong(key.clone())]).await);
    let name = || table.name.clone();
    is_refused!(table.write(Write::put(name(), key.clone().into_item()), Returning::Nothing).await);
    is_refused!(table.update(key.clone(), Update::new().set("x", 1), Returning::Nothing).await);
    is_refused!(table.write(Write::delete(name(), key.clone()), Returning::Nothing).await);
    match table.transact(vec![Write::put(name(), key.into_item())]).await {
        Err(StoreError::Invalid(_)) => {}
        // A store that looks at keys when it does the writes says which of them is wrong.
        Err(StoreError::TransactionCanceled { reasons }) => {
            assert!(matches!(reasons[..], [Some(CancelReason::Invalid(_))]), "{reasons:?}");
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub async fn an_empty_key_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_empty_key_is_refused", sorted_by(KeyAttribute::bytes("s"))).await;
    let bytes = |bytes: &'static [u8]| Bytes::from_static(bytes);
    refuses(&table, Key::new("p", "").and("s", bytes(&[1]))).await;
    refuses(&table, Key::new("p", "a").and("s", bytes(&[]))).await;
}

pub async fn a_key_of_another_kind_is_refused(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "a_key_of_another_kind_is_refused", sorted_by(KeyAttribute::number("s"))).await;
    refuses(&table, Key::new("p", 1).and("s", 1)).await;
    refuses(&table, Key::new("p", "a").and("s", "1")).await;
    refuses(&table, Key::new("p", "a").and("s", Value::Null)).await;
}

pub async fn an_incomplete_key_is_refused(store: Arc<dyn Store>) {
    let table =
        Table::create(&store, "an_incomplete_key_is_refused", sorted_by(KeyAttribute::number("s"))).await;
    refuses(&table, Key::new("p", "a")).await;
    refuses(&table, Key::new("p", "a").and("other", 1)).await;
}

pub async fn a_key_with_too_much_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_key_with_too_much_is_refused", plain()).await;
    table.put(item("a").with("x", 1)).await;
    is_refused!(table.try_get(key("a").and("x", 1)).await);
    is_refused!(
        table.write(Write::delete(table.name.clone(), key("a").and("x", 1)), Returning::Nothing).await
    );
    assert!(table.get(key("a")).await.is_some());
}

pub async fn keys_have_a_length(store: Arc<dyn Store>) {
    let table = Table::create(&store, "keys_have_a_length", sorted_by(KeyAttribute::text("s"))).await;
    let of_length = |p: usize, s: usize| Key::new("p", "p".repeat(p)).and("s", "s".repeat(s));
    let longest = of_length(MAX_PARTITION_KEY_BYTES, MAX_SORT_KEY_BYTES);
    table.put(longest.clone().into_item()).await;
    assert_eq!(table.get(longest.clone()).await, Some(longest.into_item()));
    refuses(&table, of_length(MAX_PARTITION_KEY_BYTES + 1, 1)).await;
    refuses(&table, of_length(1, MAX_SORT_KEY_BYTES + 1)).await;
}

pub async fn keys_are_compared_byte_by_byte(store: Arc<dyn Store>) {
    let table = Table::create(&store, "keys_are_compared_byte_by_byte", plain()).await;
    // Neither case, nor how an accent is written, nor a zero or a space makes two keys the same.
    let different = ["a", "A", "\u{e9}", "e\u{301}", "a\0", "a\0b", "a ", "🦀", "a/b", "a#b"];
    for (n, k) in different.iter().enumerate() {
        table.put(item(k).with("n", i32::try_from(n).expect("few"))).await;
    }
    for (n, k) in different.iter().enumerate() {
        let stored = item(k).with("n", i32::try_from(n).expect("few"));
        assert_eq!(table.get(key(k)).await, Some(stored), "{k:?}");
    }
}

pub async fn bytes_can_be_keys(store: Arc<dyn Store>) {
    let schema = TableSchema { partition: KeyAttribute::bytes("k"), ..plain() };
    let table = Table::create(&store, "bytes_can_be_keys", schema).await;
    let different: [&'static [u8]; 6] = [&[0], &[0, 0], &[0, 1], &[255], &[255, 0], b"a"];
    let stored = |bytes: &'static [u8]| {
        Item::new()
            .with("k", Bytes::from_static(bytes))
            .with("length", u32::try_from(bytes.len()).expect("few"))
    };
    for bytes in different {
        table.put(stored(bytes)).await;
    }
    for bytes in different {
        let found = table.get(Key::new("k", Bytes::from_static(bytes))).await;
        assert_eq!(found, Some(stored(bytes)), "{bytes:?}");
    }
}

pub async fn numbers_are_the_same_key_however_written(store: Arc<dyn Store>) {
    let schema = TableSchema { partition: KeyAttribute::number("k"), ..plain() };
    let table = Table::create(&store, "numbers_are_the_same_key_however_written", schema).await;
    let number = |text: &str| Value::Number(text.parse().expect("a number"));
    table.put(Item::new().with("k", number("1.50")).with("n", 1)).await;
    table.put(Item::new().with("k", number("-0")).with("n", 2)).await;
    table.put(Item::new().with("k", number("18446744073709551616")).with("n", 3)).await;
    for (written, n) in [("15e-1", 1), ("0.0", 2), ("1844674407370955161.6e1", 3)] {
        let found = table.get(Key::new("k", number(written))).await.and_then(|item| item.u64("n"));
        assert_eq!(found, Some(n), "{written}");
    }
}
