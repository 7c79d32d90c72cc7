//! A chat's messages: whole, in the order of their sequences, part by part in both directions.

use std::sync::Arc;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::Listing;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{BatchWrite, Consistency, MAX_PAGE_BYTES, Store, StoreError};
use rand::seq::SliceRandom as _;

use super::records::{count, every_part, new_message, put_message};

/// With gaps, and numbers whose order as text would be another.
const SEQUENCES: [u64; 14] = [1, 2, 3, 5, 8, 9, 10, 11, 19, 20, 99, 100, 101, 1000];

/// As many to a part as there are, some, and more than there are.
const LIMITS: [u32; 5] = [1, 3, 7, 14, 100];

/// A chat with a message at each of [`SEQUENCES`], written in any order, beside another chat.
async fn written(store: &dyn Store) -> (ChatId, Vec<Message>) {
    let (chat, other) = (ChatId::generate(), ChatId::generate());
    let messages: Vec<_> = SEQUENCES.iter().map(|&sequence| new_message(&chat, sequence)).collect();
    let mut shuffled = messages.clone();
    shuffled.extend((1..=20).map(|sequence| new_message(&other, sequence)));
    shuffled.shuffle(&mut rand::rng());
    for message in &shuffled {
        put_message(store, message).await.unwrap();
    }
    (chat, messages)
}

/// Everything after a sequence, by parts.
async fn all_after(store: &dyn Store, chat: &ChatId, after: u64, limit: u32) -> Vec<Message> {
    let parts = async |from: Option<u64>, limit: Option<_>| {
        messages::after(store, chat, from.unwrap_or(after), limit.unwrap()).await
    };
    every_part(Some(limit), parts).await
}

pub async fn a_message_comes_back_whole(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let content = "größer 語 👍 \n\"'\0".to_owned() + &"x".repeat(4000);
    let message = Message { content: content.into(), content_type: "".into(), ..new_message(&chat, 7) };
    put_message(&*store, &message).await.unwrap();
    let get =
        async |chat, sequence| messages::get(&*store, chat, sequence, Consistency::Strong).await.unwrap();
    assert_eq!(get(&chat, 7).await, Some(message.clone()));
    assert_eq!(get(&chat, 8).await, None);
    assert_eq!(get(&ChatId::generate(), 7).await, None, "it belongs to one chat");
    crate::eventually("the message", || async {
        let found = messages::get(&*store, &chat, 7, Consistency::Eventual).await.unwrap();
        found.map(|found| assert_eq!(found, message))
    })
    .await;
}

pub async fn messages_after_a_sequence_come_oldest_first(store: Arc<dyn Store>) {
    let (chat, written) = written(&*store).await;
    for limit in LIMITS {
        for after in [0, 1, 3, 4, 9, 99, 999, 1000, u64::MAX] {
            let expected: Vec<_> =
                written.iter().filter(|message| message.sequence > after).cloned().collect();
            assert_eq!(all_after(&*store, &chat, after, limit).await, expected, "after {after} by {limit}");
        }
    }
}

pub async fn recent_messages_come_newest_first(store: Arc<dyn Store>) {
    let (chat, written) = written(&*store).await;
    let newest_first: Vec<_> = written.into_iter().rev().collect();
    for limit in LIMITS {
        let parts = async |from: Option<u64>, limit: Option<_>| match from {
            None => messages::recent(&*store, &chat, limit.unwrap()).await,
            Some(before) => messages::before(&*store, &chat, before, limit.unwrap()).await,
        };
        assert_eq!(every_part(Some(limit), parts).await, newest_first, "by {limit}");
    }
    let recent = messages::recent(&*store, &chat, count(3)).await.unwrap();
    assert_eq!(recent.items, newest_first[..3], "the newest ones, not any three");
    assert_eq!(recent.next, Some(newest_first[2].sequence));
}

pub async fn messages_before_a_sequence_leave_it_out(store: Arc<dyn Store>) {
    let (chat, written) = written(&*store).await;
    for before in [1, 2, 4, 10, 1000, 1001] {
        let expected: Vec<_> =
            written.iter().rev().filter(|message| message.sequence < before).cloned().collect();
        let found = messages::before(&*store, &chat, before, count(100)).await.unwrap();
        assert_eq!(found.items, expected, "before {before}");
    }
}

pub async fn a_chat_without_messages_is_empty(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let nothing = Listing { items: Vec::new(), next: None };
    assert_eq!(messages::after(&*store, &chat, 0, count(10)).await.unwrap(), nothing);
    assert_eq!(messages::recent(&*store, &chat, count(10)).await.unwrap(), nothing);
}

/// What a store returns at once is bounded by bytes too; a limit larger than that loses nothing.
pub async fn a_long_history_comes_in_parts_by_its_size(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let content = "x".repeat(4096);
    let enough = u64::try_from(MAX_PAGE_BYTES / content.len()).unwrap() + 50;
    let written: Vec<_> = (1..=enough)
        .map(|sequence| Message { content: content.clone().into(), ..new_message(&chat, sequence) })
        .collect();
    let put =
        |message: &Message| BatchWrite::Put { table: messages::SCHEMA.name.clone(), item: message.to_item() };
    store.batch_write(written.iter().map(put).collect()).await.unwrap();
    let first = messages::after(&*store, &chat, 0, count(1000)).await.unwrap();
    assert!(first.next.is_some() && first.items.len() < written.len(), "{} at once", first.items.len());
    assert!(all_after(&*store, &chat, 0, 1000).await == written, "all of them, each once, in order");
}

pub async fn a_message_is_never_overwritten(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let first = new_message(&chat, 1);
    put_message(&*store, &first).await.unwrap();
    let second = put_message(&*store, &new_message(&chat, 1)).await;
    assert!(matches!(second, Err(StoreError::ConditionFailed { .. })), "{second:?}");
    let again = put_message(&*store, &first).await;
    assert!(matches!(again, Err(StoreError::ConditionFailed { .. })), "not even by itself: {again:?}");
    let found = messages::get(&*store, &chat, 1, Consistency::Strong).await.unwrap();
    assert_eq!(found, Some(first));
}
