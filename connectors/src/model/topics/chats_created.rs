//! Topic `chats.created`: a chat is stored, with its counter and all its first members.

use serde::{Deserialize, Serialize};

use super::event::{Event, Payload};
use crate::log::TopicSpec;
use crate::model::tables::chats::ChatType;
use crate::model::{ChatId, UserId};

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

    fn chat_id(&self) -> &ChatId {
        &self.chat_id
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
        let mut event = ChatCreated {
            event_id: "evt_01HQX".into(),
            event_time: Timestamp::from_unix_millis(1_769_783_400_000),
            payload: CreatedChat {
                chat_id: "chat_abc123".into(),
                chat_type: ChatType::Group,
                name: Some("Project Team".to_owned()),
                created_by: "user_456".into(),
                initial_members: ["user_456", "user_789", "user_012"].map(UserId::from).into(),
            },
        };
        assert_written_as(&event, DOCUMENTED);

        event.payload.chat_type = ChatType::Direct;
        event.payload.name = None;
        let direct = DOCUMENTED.replace("\"group\"", "\"direct\"").replace("\"Project Team\"", "null");
        assert_written_as(&event, &direct);
    }
}
