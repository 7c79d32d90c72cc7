//! Sending: a message and its idempotency key in one transaction, both or neither.
//!
//! The sequence is allocated before, apart from it. So whoever is refused leaves a gap, and finds by the key
//! what was stored instead.

use std::sync::Arc;

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::idempotency_keys::{self, IdempotencyKey, KEPT_FOR};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{
    CancelReason, Consistency, MAX_TRANSACTION, Remedy, Result, Store, StoreError, Transaction,
};

use super::records::{MINUTE, ago, all_at_once, count, key_of, new_message, now, put_message};

/// For each message its key and itself.
fn sending(messages: &[Message]) -> Transaction {
    let writes = messages
        .iter()
        .flat_map(|message| [idempotency_keys::put_write(&key_of(message)), messages::put_write(message)]);
    Transaction { writes: writes.collect(), token: None }
}

/// Sends until the answer is about the messages, and not about others who are sending too.
async fn send(store: &dyn Store, messages: &[Message]) -> Result<()> {
    crate::eventually("a transaction without conflict", || async {
        match store.transact(sending(messages)).await {
            Err(error) if error.remedy() == Remedy::Retry => None,
            answer => Some(answer),
        }
    })
    .await
}

/// The places of the writes whose condition did not hold.
fn refused(answer: Result<()>) -> Vec<usize> {
    let Err(StoreError::TransactionCanceled { reasons }) = answer else {
        panic!("expected a canceled transaction, got {answer:?}")
    };
    let refused = reasons.iter().enumerate().filter_map(|(place, reason)| match reason {
        None => None,
        Some(CancelReason::ConditionFailed { .. }) => Some(place),
        Some(other) => panic!("write {place}: {other:?}"),
    });
    refused.collect()
}

async fn stored_message(store: &dyn Store, message: &Message) -> Option<Message> {
    messages::get(store, &message.chat_id, message.sequence, Consistency::Strong).await.unwrap()
}

async fn stored_key(store: &dyn Store, message: &Message) -> Option<IdempotencyKey> {
    let (chat, key) = (&message.chat_id, &message.client_message_id);
    idempotency_keys::check_again(store, chat, key).await.unwrap()
}

pub async fn a_message_is_stored_with_its_key(store: Arc<dyn Store>) {
    let message = new_message(&ChatId::generate(), 1);
    send(&*store, std::slice::from_ref(&message)).await.unwrap();
    assert_eq!(stored_key(&*store, &message).await, Some(key_of(&message)));
    assert_eq!(stored_message(&*store, &message).await, Some(message));
}

/// A retry whose look-up missed the first: it has another sequence, and must not become a second message.
pub async fn a_known_key_refuses_the_message_too(store: Arc<dyn Store>) {
    let first = new_message(&ChatId::generate(), 1);
    send(&*store, std::slice::from_ref(&first)).await.unwrap();
    let retry = Message { sequence: 2, ..first.clone() };
    assert_eq!(
        refused(send(&*store, std::slice::from_ref(&retry)).await),
        [0],
        "the key, and not the message"
    );
    assert_eq!(stored_message(&*store, &retry).await, None);
    assert_eq!(stored_key(&*store, &retry).await, Some(key_of(&first)), "what the retry is answered with");
}

/// A counter that was set back gives out a sequence twice; the message that has it stays.
pub async fn a_taken_sequence_refuses_the_key_too(store: Arc<dyn Store>) {
    let first = new_message(&ChatId::generate(), 1);
    put_message(&*store, &first).await.unwrap();
    let other = new_message(&first.chat_id, 1);
    assert_eq!(
        refused(send(&*store, std::slice::from_ref(&other)).await),
        [1],
        "the message, and not the key"
    );
    assert_eq!(stored_key(&*store, &other).await, None);
    assert_eq!(stored_message(&*store, &other).await, Some(first));
}

pub async fn sending_the_same_again_is_refused_in_both_places(store: Arc<dyn Store>) {
    let message = new_message(&ChatId::generate(), 1);
    send(&*store, std::slice::from_ref(&message)).await.unwrap();
    assert_eq!(refused(send(&*store, std::slice::from_ref(&message)).await), [0, 1]);
}

/// The documented race: each retry allocates, one of them persists, the others' sequences are gaps.
pub async fn of_many_retries_one_is_stored(store: Arc<dyn Store>) {
    let first = new_message(&ChatId::generate(), 1);
    let chat = &first.chat_id;
    chat_counters::create(&*store, &ChatCounter::new(chat.clone(), now())).await.unwrap();
    let answers = all_at_once((0..20).map(|_| {
        let (store, first) = (Arc::clone(&store), first.clone());
        async move {
            let range = chat_counters::allocate(&*store, &first.chat_id, count(1), now()).await.unwrap();
            let retry = Message { sequence: *range.start(), ..first };
            match send(&*store, std::slice::from_ref(&retry)).await {
                Ok(()) => (retry.sequence, true),
                refusal => {
                    assert_eq!(refused(refusal), [0]);
                    (stored_key(&*store, &retry).await.unwrap().sequence, false)
                }
            }
        }
    }))
    .await;
    assert_eq!(answers.iter().filter(|(_, stored)| *stored).count(), 1, "{answers:?}");
    assert!(
        answers.iter().all(|(sequence, _)| *sequence == answers[0].0),
        "all are told the same: {answers:?}"
    );
    let all = messages::after(&*store, chat, 0, count(100)).await.unwrap().items;
    assert_eq!(all, [Message { sequence: answers[0].0, ..first.clone() }]);
    let counter = chat_counters::get(&*store, chat, Consistency::Strong).await.unwrap().unwrap();
    assert_eq!(counter.sequence_counter, 20, "the rest are gaps");
}

/// As many as a transaction takes, in several chats.
pub async fn fifty_messages_go_together(store: Arc<dyn Store>) {
    let chats = [ChatId::generate(), ChatId::generate(), ChatId::generate()];
    let most = u64::try_from(MAX_TRANSACTION / 2).unwrap();
    let batch: Vec<_> =
        (1..=most).zip(chats.iter().cycle()).map(|(sequence, chat)| new_message(chat, sequence)).collect();
    send(&*store, &batch).await.unwrap();
    for message in batch {
        assert_eq!(stored_key(&*store, &message).await, Some(key_of(&message)));
        assert_eq!(stored_message(&*store, &message).await, Some(message));
    }
}

pub async fn one_known_key_among_fifty_is_named(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let known = new_message(&chat, 1);
    send(&*store, std::slice::from_ref(&known)).await.unwrap();
    let mut batch: Vec<_> = (2..=51).map(|sequence| new_message(&chat, sequence)).collect();
    batch[17].client_message_id = known.client_message_id.clone();
    assert_eq!(refused(send(&*store, &batch).await), [2 * 17]);
    assert_eq!(messages::after(&*store, &chat, 0, count(100)).await.unwrap().items, [known]);
    assert_eq!(stored_key(&*store, &batch[16]).await, None, "none of the others either");
    batch.remove(17);
    send(&*store, &batch).await.expect("without the one at fault");
}

/// Seven days later the same client's id is another message; the store may still hold the key.
pub async fn a_key_that_has_ended_can_be_sent_again(store: Arc<dyn Store>) {
    let old = Message { created_at: ago(KEPT_FOR + MINUTE), ..new_message(&ChatId::generate(), 1) };
    send(&*store, std::slice::from_ref(&old)).await.unwrap();
    let new = Message { sequence: 2, created_at: now(), ..old.clone() };
    send(&*store, std::slice::from_ref(&new)).await.unwrap();
    assert_eq!(stored_key(&*store, &new).await, Some(key_of(&new)));
    assert_eq!(messages::after(&*store, &old.chat_id, 0, count(10)).await.unwrap().items, [old, new]);
}
