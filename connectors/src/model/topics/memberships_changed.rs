//! Topic `memberships.changed`: somebody came into a chat, left it or has another role there. It tells that caches are
//! out of date, not what to put in them: an event may come late and twice.

use serde::{Deserialize, Serialize};

use super::event::{Event, Payload};
use crate::log::TopicSpec;
use crate::model::tables::chat_memberships::Role;
use crate::model::{ChatId, UserId};

pub const NAME: &str = "memberships.changed";

pub fn spec() -> TopicSpec {
    super::spec(NAME)
}

pub type MembershipChanged = Event<ChangedMembership>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedMembership {
    pub chat_id: ChatId,
    pub user_id: UserId,
    pub change_type: ChangeType,
    /// After the change; of somebody who was removed, the last one.
    pub role: Role,
    pub changed_by: UserId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeType {
    Added,
    Removed,
    RoleChanged,
}

impl Payload for ChangedMembership {
    const EVENT_TYPE: &'static str = "MembershipChanged";

    fn chat_id(&self) -> &ChatId {
        &self.chat_id
    }
}

#[cfg(test)]
impl MembershipChanged {
    pub(super) const EXAMPLE: &str = r#"{
      "event_type": "MembershipChanged",
      "event_id": "evt_01HQX",
      "event_time": "2026-01-30T14:30:00.000Z",
      "partition_key": "chat_abc123",
      "payload": {
        "chat_id": "chat_abc123",
        "user_id": "user_789",
        "change_type": "added",
        "role": "member",
        "changed_by": "user_456"
      }
    }"#;
}

#[cfg(test)]
mod tests {
    use super::super::event::testing::assert_written_as;
    use super::*;
    use crate::model::Timestamp;

    #[test]
    fn written_as_documented() {
        let event = MembershipChanged {
            event_id: "evt_01HQX".into(),
            event_time: Timestamp::from_unix_millis(1_769_783_400_000),
            payload: ChangedMembership {
                chat_id: "chat_abc123".into(),
                user_id: "user_789".into(),
                change_type: ChangeType::Added,
                role: Role::Member,
                changed_by: "user_456".into(),
            },
        };
        assert_written_as(&event, MembershipChanged::EXAMPLE);
        let words = [ChangeType::Added, ChangeType::Removed, ChangeType::RoleChanged];
        assert_eq!(serde_json::to_string(&words).unwrap(), r#"["added","removed","role_changed"]"#);
    }
}
