//! Topic `messages.persisted`: a message is stored. In the order of its sequences within a chat, possibly twice.

use serde::{Deserialize, Serialize};
use smol_str::format_smolstr;

use super::event::{Event, Payload};
use crate::log::TopicSpec;
use crate::model::tables::messages::{Message, StoredMessage};
use crate::model::{ChatId, MessageId, Timestamp, UserId};
use crate::store::{Item, PackedItem, StoreError, Text};

pub const NAME: &str = "messages.persisted";

pub fn spec() -> TopicSpec {
    super::spec(NAME)
}

pub type MessagePersisted = Event<PersistedMessage>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedMessage {
    pub message_id: MessageId,
    pub chat_id: ChatId,
    pub sequence: u64,
    pub sender_id: UserId,
    pub content: Text,
    pub content_type: Text,
    pub created_at: Timestamp,
}

impl Payload for PersistedMessage {
    const EVENT_TYPE: &'static str = "MessagePersisted";

    fn key(&self) -> &str {
        self.chat_id.as_str()
    }
}

impl MessagePersisted {
    /// The event of a stored message: the same each time, with an id made of the message's, so that a copy that is
    /// published later is known for what it is.
    pub fn of(message: impl Into<PersistedMessage>) -> Self {
        let payload = message.into();
        let id = payload.message_id.as_str();
        let event_id = format_smolstr!("evt_{}", id.strip_prefix("msg_").unwrap_or(id)).into();
        Self { event_id, event_time: payload.created_at, payload }
    }
}

impl From<Message> for PersistedMessage {
    /// Everything but the client's own id, which is between it and the store.
    fn from(message: Message) -> Self {
        Self {
            message_id: message.message_id,
            chat_id: message.chat_id,
            sequence: message.sequence,
            sender_id: message.sender_id,
            content: message.content,
            content_type: message.content_type,
            created_at: message.created_at,
        }
    }
}

impl From<&StoredMessage> for PersistedMessage {
    fn from(message: &StoredMessage) -> Self {
        Self {
            message_id: message.message_id().into(),
            chat_id: message.chat_id().into(),
            sequence: message.sequence(),
            sender_id: message.sender_id().into(),
            content: message.content().into(),
            content_type: message.content_type().into(),
            created_at: message.created_at(),
        }
    }
}

impl TryFrom<&PersistedMessage> for StoredMessage {
    type Error = StoreError;

    fn try_from(message: &PersistedMessage) -> Result<Self, StoreError> {
        let item = Item::new()
            .with("chat_id", &message.chat_id)
            .with("sequence", message.sequence)
            .with("message_id", &message.message_id)
            .with("sender_id", &message.sender_id)
            .with("content", &message.content)
            .with("content_type", &message.content_type)
            .with("created_at", message.created_at);
        Self::of(PackedItem::from(&item))
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::testing::assert_written_as;
    use super::*;

    #[test]
    fn written_as_documented() {
        let time = Timestamp::from_unix_millis(1_769_783_400_000);
        let message = Message {
            chat_id: "chat_abc123".into(),
            sequence: 47,
            message_id: "msg_01HQX".into(),
            sender_id: "user_456".into(),
            client_message_id: "c-1".into(),
            content: "Hello, world!".into(),
            content_type: "text/plain".into(),
            created_at: time,
        };
        let event =
            MessagePersisted { event_id: "evt_01HQX".into(), event_time: time, payload: message.into() };
        assert_written_as(
            &event,
            r#"{
              "event_type": "MessagePersisted",
              "event_id": "evt_01HQX",
              "event_time": "2026-01-30T14:30:00.000Z",
              "partition_key": "chat_abc123",
              "payload": {
                "message_id": "msg_01HQX",
                "chat_id": "chat_abc123",
                "sequence": 47,
                "sender_id": "user_456",
                "content": "Hello, world!",
                "content_type": "text/plain",
                "created_at": "2026-01-30T14:30:00.000Z"
              }
            }"#,
        );
    }
}
