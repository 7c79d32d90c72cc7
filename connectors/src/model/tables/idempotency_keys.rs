//! Table `idempotency_keys`: which messages of a client are stored already, for seven days.
//!
//! The look before the write may be stale; the write's condition is what makes a message unique. Beyond the
//! documented attributes a key holds who sent the message and a hash of its body, so that the same key for something
//! else is an error the client sees, and not a message silently dropped.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::attributes::Attributes;
use super::if_it_held;
use crate::model::{ChatId, ClientMessageId, MessageId, Timestamp, UserId};
use crate::store::{
    Capacity, Comparison, Condition, Consistency, Durability, Get, Item, Key, KeyAttribute, Name, ReadStore,
    Result, Returning, Stream, TableSchema, Text, Write, WriteStore,
};

const TABLE: Name = Name::new_static("idempotency_keys");

/// Far longer than any client retries, short enough that the table does not grow for ever.
pub const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

pub static SCHEMA: TableSchema = TableSchema {
    name: TABLE,
    partition: KeyAttribute::text("chat_id"),
    sort: Some(KeyAttribute::text("client_message_id")),
    indexes: Cow::Borrowed(&[]),
    ttl: Some(Name::new_static("ttl")),
    stream: Stream::Off,
    capacity: Capacity::OnDemand,
    point_in_time_recovery: true,
};

/// What a message says, as far as it takes to tell two apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyHash(Text);

impl BodyHash {
    pub fn of(content_type: &str, content: &str) -> Self {
        // The length goes first, so that moving a character from one to the other makes another hash.
        let hash = Sha256::new()
            .chain_update((content_type.len() as u64).to_be_bytes())
            .chain_update(content_type)
            .chain_update(content)
            .finalize();
        Self(URL_SAFE_NO_PAD.encode(hash).into())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub chat_id: ChatId,
    pub client_message_id: ClientMessageId,
    pub message_id: MessageId,
    pub sequence: u64,
    pub sender_id: UserId,
    pub body_hash: BodyHash,
    /// When the message was stored; the key ends [`KEPT_FOR`] later.
    pub created_at: Timestamp,
}

/// What a request means whose key is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It was done before: answer as then.
    SameMessage,
    /// A mistake of the client.
    OtherBody,
    /// Keys are the sender's own: nobody learns what others sent by guessing theirs.
    OtherSender,
}

impl IdempotencyKey {
    pub fn reused_by(&self, sender: &UserId, body: &BodyHash) -> Reuse {
        if self.sender_id != *sender {
            Reuse::OtherSender
        } else if self.body_hash != *body {
            Reuse::OtherBody
        } else {
            Reuse::SameMessage
        }
    }

    pub fn to_item(&self) -> Item {
        Item::new()
            .with("chat_id", &self.chat_id)
            .with("client_message_id", &self.client_message_id)
            .with("message_id", &self.message_id)
            .with("sequence", self.sequence)
            .with("sender_id", &self.sender_id)
            .with("body_hash", &self.body_hash.0)
            .with("created_at", self.created_at)
            .with("ttl", self.created_at.plus(KEPT_FOR).unix_seconds())
    }

    pub fn from_item(item: &Item) -> Result<Self> {
        let item = Attributes::of(&SCHEMA, item);
        Ok(Self {
            chat_id: item.id("chat_id")?,
            client_message_id: item.id("client_message_id")?,
            message_id: item.id("message_id")?,
            sequence: item.u64("sequence")?,
            sender_id: item.id("sender_id")?,
            body_hash: BodyHash(item.id("body_hash")?),
            created_at: item.time("created_at")?,
        })
    }
}

/// The request of [`check`] or [`check_again`], for a batch together with other look-ups.
pub fn lookup(chat: &ChatId, message: &ClientMessageId, consistency: Consistency) -> Get {
    let key = Key::new("chat_id", chat).and("client_message_id", message);
    Get { table: TABLE, key, consistency }
}

/// Check duplicate, before anything is written. Eventual: what it misses, the write's condition catches.
pub async fn check(
    store: &dyn ReadStore,
    chat: &ChatId,
    message: &ClientMessageId,
) -> Result<Option<IdempotencyKey>> {
    let item = store.get(lookup(chat, message, Consistency::Eventual)).await?;
    item.as_ref().map(IdempotencyKey::from_item).transpose()
}

/// The same after a write was refused or its outcome is unknown. Strong: now the answer decides.
pub async fn check_again(
    store: &dyn ReadStore,
    chat: &ChatId,
    message: &ClientMessageId,
) -> Result<Option<IdempotencyKey>> {
    let item = store.get(lookup(chat, message, Consistency::Strong)).await?;
    item.as_ref().map(IdempotencyKey::from_item).transpose()
}

/// Written in one transaction with the message. A key that has ended counts as absent, although the store may take
/// two days to remove it.
pub fn put_write(key: &IdempotencyKey) -> Write {
    let ended = Condition::compare("ttl", Comparison::LessOrEqual, key.created_at.unix_millis() / 1000);
    Write::put(TABLE, key.to_item()).only_if(Condition::missing("client_message_id").or(ended))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Done,
    /// The key was there; nothing was changed.
    KeyExists,
}

/// Insert key, by itself: for rebuilding keys from messages. Sending writes it together with the message.
pub async fn put(store: &dyn WriteStore, key: &IdempotencyKey) -> Result<Put> {
    let answer = store.write(put_write(key), Returning::Nothing, Durability::Synced).await;
    Ok(if if_it_held(answer)?.is_some() { Put::Done } else { Put::KeyExists })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(at: Timestamp) -> IdempotencyKey {
        IdempotencyKey {
            chat_id: "chat_1".into(),
            client_message_id: "c-1".into(),
            message_id: "msg_1".into(),
            sequence: 7,
            sender_id: "user_1".into(),
            body_hash: BodyHash::of("text/plain", "hello"),
            created_at: at,
        }
    }

    #[test]
    fn a_key_belongs_to_one_sender_and_one_body() {
        let key = key(Timestamp::from_unix_millis(0));
        let same = BodyHash::of("text/plain", "hello");
        assert_eq!(key.reused_by(&"user_1".into(), &same), Reuse::SameMessage);
        assert_eq!(key.reused_by(&"user_2".into(), &same), Reuse::OtherSender);
        let other = BodyHash::of("text/plain", "hello!");
        assert_eq!(key.reused_by(&"user_1".into(), &other), Reuse::OtherBody);
        assert_ne!(BodyHash::of("text/plai", "nhello"), same, "where the type ends counts");
    }

    #[test]
    fn a_key_ends_after_seven_days_and_can_then_be_used_again() {
        let days = Duration::from_secs(7 * 24 * 60 * 60);
        let first = Timestamp::from_unix_millis(1_769_783_400_000);
        let stored = key(first).to_item();
        let condition = |at| put_write(&key(at)).condition().unwrap().clone();
        assert!(condition(first).holds(None));
        assert!(
            !condition(Timestamp::from_unix_millis(first.plus(days).unix_millis() - 1)).holds(Some(&stored))
        );
        assert!(condition(first.plus(days)).holds(Some(&stored)));
    }
}
