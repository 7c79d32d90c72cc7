//! Topic `chats.created`: a chat is stored, with its counter and all its first members.

use serde::{Deserialize, Serialize};

use super::event::{Event, Payload};
use crate::log::TopicSpec;
use crate::model::tables::chats::{Chat, ChatType};
use crate::model::{ChatId, EventId, UserId};

pub const NAME: &str = "chats.created";

pub fn spec() -> TopicSpec {
    super::spec(NAME)
}

pub type ChatCreated = Event<CreatedChat>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedChat {
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    /// Null for direct chats.
    pub name: Option<String>,
    pub created_by: UserId,
    /// Whoever made the chat among them.
    pub initial_members: Vec<UserId>,
}

impl Payload for CreatedChat {
    const EVENT_TYPE: &'static str = "ChatCreated";

    fn key(&self) -> &str {
        self.chat_id.as_str()
    }
}

impl ChatCreated {
    /// The event of a chat as it was made: the same each time, with an id made of the chat's.
    pub fn of(chat: Chat, initial_members: Vec<UserId>) -> Self {
        let id = chat.chat_id.as_str();
        let event_id = EventId::from(format!("evt_{}", id.strip_prefix("chat_").unwrap_or(id)));
        let payload = CreatedChat {
            chat_id: chat.chat_id,
            chat_type: chat.chat_type,
            name: chat.name,
            created_by: chat.created_by,
            initial_members,
        };
        Self { event_id, event_time: chat.created_at, payload }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::testing::assert_written_as;
    use super::*;
    use crate::model::Timestamp;

    const DOCUMENTED: &str = r#"{
      "event_type": "ChatCreated",
      "event_id": "evt_01HQX",
      "event_time": "2026-01-30T14:30:00.000Z",
      "partition_key": "chat_abc123",
      "payload": {
        "chat_id": "chat_abc123",
        "chat_type": "group",
        "name": "Project Team",
        "created_by": "user_456",
        "initial_members": ["user_456", "user_789", "user_012"]
      }
    }"#;

    #[test]
    fn written_as_documented() {
        let created_at = Timestamp::from_unix_millis(1_769_783_400_000);
        let chat = Chat {
            chat_id: "chat_abc123".into(),
            chat_type: ChatType::Group,
            name: Some("Project Team".to_owned()),
            created_by: "user_456".into(),
            created_at,
            updated_at: created_at,
        };
        let members = ["user_456", "user_789", "user_012"].map(UserId::from);
        let mut event = ChatCreated::of(chat, members.into());
        assert_eq!(event.event_id.as_str(), "evt_abc123");
        event.event_id = "evt_01HQX".into();
        assert_written_as(&event, DOCUMENTED);

        event.payload.chat_type = ChatType::Direct;
        event.payload.name = None;
        let direct = DOCUMENTED.replace("\"group\"", "\"direct\"").replace("\"Project Team\"", "null");
        assert_written_as(&event, &direct);
    }
}
