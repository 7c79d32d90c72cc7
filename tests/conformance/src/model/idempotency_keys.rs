//! Which messages of a client are stored already, and what it means to use a key again.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::tables::idempotency_keys::{
    self, BodyHash, IdempotencyKey, KEPT_FOR, Put, Reuse,
};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::Store;

use super::records::{DAY, MINUTE, ago, all_at_once, key_of, new_message, now};

fn new_key(chat: &ChatId, sequence: u64) -> IdempotencyKey {
    key_of(&new_message(chat, sequence))
}

async fn stored(store: &dyn Store, key: &IdempotencyKey) -> Option<IdempotencyKey> {
    idempotency_keys::check_again(store, &key.chat_id, &key.client_message_id).await.unwrap()
}

pub async fn a_new_key_is_not_known(store: Arc<dyn Store>) {
    let key = new_key(&ChatId::generate(), 1);
    let found = idempotency_keys::check(&*store, &key.chat_id, &key.client_message_id).await.unwrap();
    assert_eq!(found, None);
    assert_eq!(stored(&*store, &key).await, None);
}

pub async fn a_known_key_tells_who_uses_it_for_what(store: Arc<dyn Store>) {
    let key = new_key(&ChatId::generate(), 1);
    assert_eq!(idempotency_keys::put(&*store, &key).await.unwrap(), Put::Done);
    let found = crate::eventually("the key", || async {
        idempotency_keys::check(&*store, &key.chat_id, &key.client_message_id).await.unwrap()
    })
    .await;
    assert_eq!(found, key, "sequence and message id are what the client is answered with");
    let other_body = BodyHash::of("text/plain", "something else");
    assert_eq!(found.reused_by(&key.sender_id, &key.body_hash), Reuse::SameMessage);
    assert_eq!(found.reused_by(&key.sender_id, &other_body), Reuse::OtherBody);
    assert_eq!(found.reused_by(&UserId::generate(), &key.body_hash), Reuse::OtherSender);
}

pub async fn a_key_is_put_once(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let first = new_key(&chat, 1);
    let rivals: Vec<_> = (1..=20)
        .map(|sequence| IdempotencyKey {
            client_message_id: first.client_message_id.clone(),
            ..new_key(&chat, sequence)
        })
        .collect();
    let put = all_at_once(rivals.iter().cloned().map(|key| {
        let store = Arc::clone(&store);
        async move { idempotency_keys::put(&*store, &key).await.unwrap() }
    }))
    .await;
    let winners: Vec<_> = rivals.iter().zip(put).filter(|(_, put)| *put == Put::Done).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(stored(&*store, &first).await.as_ref(), Some(winners[0].0));
}

pub async fn a_key_belongs_to_its_chat(store: Arc<dyn Store>) {
    let key = new_key(&ChatId::generate(), 1);
    let elsewhere = IdempotencyKey { chat_id: ChatId::generate(), sequence: 2, ..key.clone() };
    for key in [&key, &elsewhere] {
        assert_eq!(idempotency_keys::put(&*store, key).await.unwrap(), Put::Done);
    }
    assert_eq!(stored(&*store, &key).await, Some(key));
    assert_eq!(stored(&*store, &elsewhere).await, Some(elsewhere));
}

/// Whether or not the store has removed it: after its time a key means nothing, and can be used anew.
pub async fn a_key_that_has_ended_is_new(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let ended = IdempotencyKey { created_at: ago(KEPT_FOR + Duration::from_secs(2)), ..new_key(&chat, 1) };
    assert_eq!(idempotency_keys::put(&*store, &ended).await.unwrap(), Put::Done);
    let found = idempotency_keys::check(&*store, &chat, &ended.client_message_id).await.unwrap();
    assert_eq!(found, None);
    assert_eq!(stored(&*store, &ended).await, None);
    let renewed = IdempotencyKey { sequence: 2, created_at: now(), ..ended.clone() };
    assert_eq!(idempotency_keys::put(&*store, &renewed).await.unwrap(), Put::Done);
    assert_eq!(stored(&*store, &ended).await, Some(renewed));
}

pub async fn a_key_is_kept_for_seven_days(store: Arc<dyn Store>) {
    let old =
        IdempotencyKey { created_at: ago(6 * DAY + 23 * 60 * MINUTE), ..new_key(&ChatId::generate(), 1) };
    assert_eq!(idempotency_keys::put(&*store, &old).await.unwrap(), Put::Done);
    assert_eq!(stored(&*store, &old).await.as_ref(), Some(&old));
    let again = IdempotencyKey { sequence: 2, created_at: now(), ..old.clone() };
    assert_eq!(idempotency_keys::put(&*store, &again).await.unwrap(), Put::KeyExists);
    assert_eq!(stored(&*store, &old).await, Some(old));
}
