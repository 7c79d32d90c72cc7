//! Sequences: no two alike, none forgotten, and none from a counter that is not there.

use std::sync::Arc;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::{self, AllocateError, ChatCounter};
use courant_connectors::store::{Consistency, Remedy, Store, StoreError};
use rand::RngExt as _;

use super::records::{MINUTE, ago, all_at_once, count, now};

async fn counted_chat(store: &dyn Store) -> ChatId {
    let chat = ChatId::generate();
    chat_counters::create(store, &ChatCounter::new(chat.clone(), ago(MINUTE))).await.unwrap();
    chat
}

async fn counter_of(store: &dyn Store, chat: &ChatId) -> Option<ChatCounter> {
    chat_counters::get(store, chat, Consistency::Strong).await.unwrap()
}

/// Many at once, of any size: joined, their ranges are all sequences from one to what the counter says.
pub async fn concurrent_allocations_share_the_sequences(store: Arc<dyn Store>) {
    let chat = counted_chat(&*store).await;
    let sizes: Vec<u32> = (0..100).map(|_| rand::rng().random_range(1..=50)).collect();
    let ranges = all_at_once(sizes.iter().map(|&size| {
        let (store, chat) = (Arc::clone(&store), chat.clone());
        async move { chat_counters::allocate(&*store, &chat, count(size), now()).await.unwrap() }
    }))
    .await;
    for (range, size) in ranges.iter().zip(&sizes) {
        assert_eq!(range.end() - range.start() + 1, u64::from(*size), "{range:?}");
    }
    let mut given_out: Vec<u64> = ranges.into_iter().flatten().collect();
    given_out.sort_unstable();
    let total = sizes.iter().copied().map(u64::from).sum();
    assert_eq!(given_out, (1..=total).collect::<Vec<_>>());
    assert_eq!(counter_of(&*store, &chat).await.unwrap().sequence_counter, total);
}

pub async fn each_chat_counts_by_itself(store: Arc<dyn Store>) {
    let (one, two) = (counted_chat(&*store).await, counted_chat(&*store).await);
    let allocate =
        async |chat, size| chat_counters::allocate(&*store, chat, count(size), now()).await.unwrap();
    assert_eq!(allocate(&one, 3).await, 1..=3);
    assert_eq!(allocate(&two, 1).await, 1..=1);
    assert_eq!(allocate(&one, 1).await, 4..=4);
    assert_eq!(allocate(&two, 50).await, 2..=51);
}

pub async fn a_missing_counter_is_not_made_on_the_fly(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    for _ in 0..2 {
        match chat_counters::allocate(&*store, &chat, count(1), now()).await.unwrap_err() {
            error @ AllocateError::CounterMissing { .. } => assert_eq!(error.remedy(), Remedy::Stop),
            AllocateError::Store(error) => panic!("{error}"),
        }
    }
    assert_eq!(counter_of(&*store, &chat).await, None);
}

pub async fn a_counter_is_made_once_and_never_set_back(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let made = all_at_once((0..10).map(|_| {
        let (store, counter) = (Arc::clone(&store), ChatCounter::new(chat.clone(), now()));
        async move { chat_counters::create(&*store, &counter).await }
    }))
    .await;
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "{made:?}");
    chat_counters::allocate(&*store, &chat, count(5), now()).await.unwrap();
    let again = chat_counters::create(&*store, &ChatCounter::new(chat.clone(), now())).await;
    assert!(matches!(again, Err(StoreError::ConditionFailed { .. })), "{again:?}");
    assert_eq!(counter_of(&*store, &chat).await.unwrap().sequence_counter, 5);
}

pub async fn an_allocation_says_when(store: Arc<dyn Store>) {
    let chat = counted_chat(&*store).await;
    let made = counter_of(&*store, &chat).await.unwrap();
    let later = now();
    chat_counters::allocate(&*store, &chat, count(2), later).await.unwrap();
    let expected = ChatCounter { sequence_counter: 2, updated_at: later, ..made };
    assert_eq!(counter_of(&*store, &chat).await, Some(expected));
}

pub async fn counters_come_in_the_order_asked(store: Arc<dyn Store>) {
    let (one, two, none) = (counted_chat(&*store).await, counted_chat(&*store).await, ChatId::generate());
    chat_counters::allocate(&*store, &two, count(7), now()).await.unwrap();
    let asked = [two.clone(), none, one.clone(), two];
    let expected = [Some(7), None, Some(0), Some(7)];
    crate::eventually("the counters as they are", || async {
        let found = chat_counters::get_many(&*store, &asked).await.unwrap();
        let found = found.into_iter().map(|counter| Some(counter?.sequence_counter));
        (found.collect::<Vec<_>>() == expected).then_some(())
    })
    .await;
}
