//! Several writes as one.

use std::sync::Arc;

use courant_connectors::store::{
    CancelReason, Condition, Item, MAX_ITEM_BYTES, MAX_TRANSACTION, MAX_TRANSACTION_BYTES, Store, StoreError,
    Transaction, Update, Write,
};
use futures::future::join_all;

use super::table::{Table, item, key, plain};
use super::{fails_with, is_refused};

impl Table {
    fn put_of(&self, item: Item) -> Write {
        Write::put(self.name.clone(), item)
    }

    fn add_to(&self, k: &str, n: i32) -> Write {
        Write::update(self.name.clone(), key(k), Update::new().add("n", n))
    }

    fn check_of(&self, k: &str, condition: Condition) -> Write {
        Write::Check { table: self.name.clone(), key: key(k), condition }
    }
}

fn new_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

pub async fn all_kinds_of_writes_go_together(store: Arc<dyn Store>) {
    let one = Table::create(&store, "all_kinds_of_writes_go_together", plain()).await;
    let two = Table::create(&store, "all_kinds_of_writes_go_together", plain()).await;
    one.put_all([item("updated").with("n", 1), item("deleted"), item("checked").with("n", 5)]).await;
    one.transact(vec![
        one.put_of(item("put")).only_if(Condition::missing("k")),
        one.add_to("updated", 2).only_if(Condition::equals("n", 1)),
        Write::delete(one.name.clone(), key("deleted")).only_if(Condition::exists("k")),
        one.check_of("checked", Condition::equals("n", 5)),
        two.put_of(item("put")),
        two.add_to("made", 7),
        Write::delete(two.name.clone(), key("never")),
    ])
    .await
    .expect("everything holds");
    assert_eq!(one.get(key("put")).await, Some(item("put")));
    assert_eq!(one.get(key("updated")).await, Some(item("updated").with("n", 3)));
    assert_eq!(one.get(key("deleted")).await, None);
    assert_eq!(one.get(key("checked")).await, Some(item("checked").with("n", 5)));
    assert_eq!(two.get(key("put")).await, Some(item("put")));
    assert_eq!(two.get(key("made")).await, Some(item("made").with("n", 7)));
}

pub async fn all_or_nothing_and_the_reasons_in_place(store: Arc<dyn Store>) {
    let table = Table::create(&store, "all_or_nothing_and_the_reasons_in_place", plain()).await;
    table.put_all([item("a").with("n", 1), item("b").with("n", 2)]).await;
    let canceled = table
        .transact(vec![
            table.put_of(item("new")),
            table.add_to("a", 1).only_if(Condition::equals("n", 9)),
            Write::delete(table.name.clone(), key("b")),
            table.check_of("missing", Condition::exists("k")),
            table.put_of(item("other")).only_if(Condition::missing("k")),
        ])
        .await;
    let Err(StoreError::TransactionCanceled { reasons }) = canceled else {
        panic!("expected a canceled transaction, got {canceled:?}")
    };
    let met_a = CancelReason::ConditionFailed { current: Some(Box::new(item("a").with("n", 1))) };
    let met_nothing = CancelReason::ConditionFailed { current: None };
    assert_eq!(reasons, [None, Some(met_a), None, Some(met_nothing), None]);
    assert_eq!(table.get(key("new")).await, None);
    assert_eq!(table.get(key("other")).await, None);
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 1)));
    assert_eq!(table.get(key("b")).await, Some(item("b").with("n", 2)));
}

pub async fn checks_alone_are_a_transaction(store: Arc<dyn Store>) {
    let table = Table::create(&store, "checks_alone_are_a_transaction", plain()).await;
    table.put(item("a").with("n", 1)).await;
    let checks = |n: i32| {
        vec![table.check_of("a", Condition::equals("n", n)), table.check_of("b", Condition::missing("k"))]
    };
    table.transact(checks(1)).await.expect("both hold");
    fails_with!(
        table.transact(checks(2)).await,
        StoreError::TransactionCanceled { reasons } if reasons[0].is_some() && reasons[1].is_none()
    );
    assert_eq!(table.get(key("b")).await, None, "a check makes no item");
}

pub async fn a_hundred_writes_and_no_more(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_hundred_writes_and_no_more", plain()).await;
    let writes = |count: usize| (0..count).map(|n| table.put_of(item(&format!("item-{n}")))).collect();
    is_refused!(table.transact(writes(MAX_TRANSACTION + 1)).await);
    assert_eq!(table.get(key("item-0")).await, None);
    table.transact(writes(MAX_TRANSACTION)).await.expect("as many as may be");
    assert_eq!(table.get(key("item-99")).await, Some(item("item-99")));
    is_refused!(table.transact(writes(0)).await);
}

pub async fn an_item_is_written_once(store: Arc<dyn Store>) {
    let table = Table::create(&store, "an_item_is_written_once", plain()).await;
    is_refused!(table.transact(vec![table.put_of(item("a")), table.add_to("a", 1)]).await);
    let check = table.check_of("b", Condition::missing("k"));
    is_refused!(table.transact(vec![check, table.put_of(item("b"))]).await);
    assert_eq!(table.get(key("a")).await, None);
    assert_eq!(table.get(key("b")).await, None);
}

pub async fn a_repeated_token_is_not_done_twice(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_repeated_token_is_not_done_twice", plain()).await;
    let transaction = Transaction { writes: vec![table.add_to("a", 1)], token: Some(new_token()) };
    for _ in 0..3 {
        store.transact(transaction.clone()).await.expect("the first and its repetitions");
    }
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 1)));
    // Also where the repetition alone would fail.
    let writes = vec![table.put_of(item("b")).only_if(Condition::missing("k"))];
    let transaction = Transaction { writes, token: Some(new_token()) };
    for _ in 0..2 {
        store.transact(transaction.clone()).await.expect("the first and its repetition");
    }
    let other_token = Transaction { token: Some(new_token()), ..transaction };
    fails_with!(store.transact(other_token).await, StoreError::TransactionCanceled { .. });
}

pub async fn a_token_of_other_writes_is_refused(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_token_of_other_writes_is_refused", plain()).await;
    let token = Some(new_token());
    let first = Transaction { writes: vec![table.add_to("a", 1)], token: token.clone() };
    store.transact(first).await.expect("the first");
    let other = Transaction { writes: vec![table.add_to("a", 2)], token };
    fails_with!(store.transact(other).await, StoreError::TokenReused);
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 1)));
}

pub async fn a_canceled_transaction_can_be_tried_again(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_canceled_transaction_can_be_tried_again", plain()).await;
    let writes = vec![table.put_of(item("a")).only_if(Condition::missing("k"))];
    let transaction = Transaction { writes, token: Some(new_token()) };
    table.put(item("a").with("n", 1)).await;
    fails_with!(store.transact(transaction.clone()).await, StoreError::TransactionCanceled { .. });
    table.delete(key("a")).await;
    store.transact(transaction).await.expect("it was not done before");
    assert_eq!(table.get(key("a")).await, Some(item("a")));
}

pub async fn a_token_has_a_length(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_token_has_a_length", plain()).await;
    let with = |token: String| Transaction { writes: vec![table.add_to("a", 1)], token: Some(token) };
    is_refused!(store.transact(with("t".repeat(37))).await);
    is_refused!(store.transact(with(String::new())).await);
    assert_eq!(table.get(key("a")).await, None);
    let longest = format!("{}-abc", new_token());
    assert_eq!(longest.len(), 36);
    store.transact(with(longest)).await.expect("the longest token");
}

pub async fn a_write_that_cannot_be_done_is_named(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_write_that_cannot_be_done_is_named", plain()).await;
    table.put(item("text").with("n", "five")).await;
    let canceled = table.transact(vec![table.put_of(item("a")), table.add_to("text", 1)]).await;
    fails_with!(
        canceled,
        StoreError::TransactionCanceled { reasons }
            if reasons[0].is_none() && matches!(reasons[1], Some(CancelReason::Invalid(_)))
    );
    assert_eq!(table.get(key("a")).await, None);
}

pub async fn a_transaction_has_a_size(store: Arc<dyn Store>) {
    let table = Table::create(&store, "a_transaction_has_a_size", plain()).await;
    let large = |n: usize| item(&format!("item-{n:02}")).with("text", "x".repeat(MAX_ITEM_BYTES - 100));
    let too_many = MAX_TRANSACTION_BYTES / (MAX_ITEM_BYTES - 100) + 1;
    is_refused!(table.transact((0..too_many).map(|n| table.put_of(large(n))).collect()).await);
    assert_eq!(table.get(key("item-00")).await, None);
    table.transact((0..5).map(|n| table.put_of(large(n))).collect()).await.expect("two megabytes");
    assert_eq!(table.get(key("item-04")).await, Some(large(4)));
}

pub async fn concurrent_transactions_do_not_lose_each_other(store: Arc<dyn Store>) {
    let table = Table::create(&store, "concurrent_transactions_do_not_lose_each_other", plain()).await;
    table.put_all([item("a").with("n", 0), item("b").with("n", 0)]).await;
    // Each looks, and writes both counters only if they are still as it saw them.
    let step = async || loop {
        let seen = table.get(key("a")).await.and_then(|item| item.u64("n")).expect("the counter");
        let next = |k: &str| {
            let update = Update::new().set("n", seen + 1);
            Write::update(table.name.clone(), key(k), update).only_if(Condition::equals("n", seen))
        };
        match table.transact(vec![next("a"), next("b")]).await {
            Ok(()) => return,
            Err(StoreError::TransactionCanceled { .. } | StoreError::Conflict) => {}
            Err(other) => panic!("neither done nor canceled: {other:?}"),
        }
    };
    join_all((0..10).map(|_| step())).await;
    assert_eq!(table.get(key("a")).await, Some(item("a").with("n", 10)));
    assert_eq!(table.get(key("b")).await, Some(item("b").with("n", 10)));
}
