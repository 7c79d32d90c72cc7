//! Records as cases write them, and the ways of asking that most cases need.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use courant_connectors::model::tables::Listing;
use courant_connectors::model::tables::chat_memberships::{Membership, Role};
use courant_connectors::model::tables::idempotency_keys::{BodyHash, IdempotencyKey};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::{ChatId, ClientMessageId, MessageId, Timestamp, UserId};
use courant_connectors::store::{Durability, Result, Returning, Store};
use futures::future::try_join_all;

pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[allow(clippy::disallowed_methods, reason = "stores hide what has ended by the wall clock")]
pub(super) fn now() -> Timestamp {
    SystemTime::now().into()
}

pub(super) fn ago(duration: Duration) -> Timestamp {
    let millis = u64::try_from(duration.as_millis()).unwrap();
    Timestamp::from_unix_millis(now().unix_millis() - millis)
}

pub(super) fn count(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

pub(super) fn new_client_message() -> ClientMessageId {
    format!("c-{:032x}", rand::random::<u128>()).into()
}

/// With a sender, an id and a client's id that no other message has.
pub(super) fn new_message(chat: &ChatId, sequence: u64) -> Message {
    Message {
        chat_id: chat.clone(),
        sequence,
        message_id: MessageId::generate(),
        sender_id: UserId::generate(),
        client_message_id: new_client_message(),
        content: format!("message {sequence}").into(),
        content_type: "text/plain".into(),
        created_at: now(),
    }
}

/// The idempotency key that is stored with a message.
pub(super) fn key_of(message: &Message) -> IdempotencyKey {
    IdempotencyKey {
        chat_id: message.chat_id.clone(),
        client_message_id: message.client_message_id.clone(),
        message_id: message.message_id.clone(),
        sequence: message.sequence,
        sender_id: message.sender_id.clone(),
        body_hash: BodyHash::of(&message.content_type, &message.content),
        created_at: message.created_at,
    }
}

pub(super) fn new_membership(chat: &ChatId, user: &UserId) -> Membership {
    let (chat_id, user_id) = (chat.clone(), user.clone());
    Membership { chat_id, user_id, role: Role::Member, joined_at: now(), muted_until: None }
}

/// Stores a message without its key, where a case is about the message alone.
pub(super) async fn put_message(store: &dyn Store, message: &Message) -> Result<()> {
    store.write(messages::put_write(message), Returning::Nothing, Durability::Synced).await.map(drop)
}

/// Every part of a list, asked for by `limit` at a time, joined.
///
/// # Panics
/// If a part is larger than asked, or the list does not go on.
pub(super) async fn every_part<T, C: Clone + PartialEq + Debug>(
    limit: Option<u32>,
    ask: impl AsyncFn(Option<C>, Option<NonZeroU32>) -> Result<Listing<T, C>>,
) -> Vec<T> {
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let part = ask(after.clone(), limit.map(count)).await.unwrap();
        if let Some(limit) = limit {
            assert!(part.items.len() <= limit as usize, "{} items, asked for {limit}", part.items.len());
        }
        items.extend(part.items);
        if part.next.is_none() {
            return items;
        }
        assert_ne!(part.next, after, "a part goes further than the one before it");
        after = part.next;
    }
}

/// What each answers, in their order; they run at the same time.
pub(super) async fn all_at_once<F>(asked: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    try_join_all(asked.into_iter().map(tokio::spawn)).await.unwrap()
}
