//! Topic `memberships.changed`: somebody came into a chat, left it or has another role there. It tells that caches are
//! out of date, not what to put in them: an event may come late and twice.

use serde::{Deserialize, Serialize};

use super::event::{Event, Payload, derived_id};
use crate::log::TopicSpec;
pub use crate::model::tables::chat_memberships::ChangeType;
use crate::model::tables::chat_memberships::{Change, Role};
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

impl Payload for ChangedMembership {
    const EVENT_TYPE: &'static str = "MembershipChanged";

    fn key(&self) -> &str {
        self.chat_id.as_str()
    }
}

impl MembershipChanged {
    /// The event of a change as the chat remembers it: the same each time.
    pub fn of(chat_id: ChatId, change: Change) -> Self {
        let what = [chat_id.as_str(), change.user_id.as_str(), change.change_type.as_str()];
        let event_id = derived_id(change.at, &what);
        let payload = ChangedMembership {
            chat_id,
            user_id: change.user_id,
            change_type: change.change_type,
            role: change.role,
            changed_by: change.by,
        };
        Self { event_id, event_time: change.at, payload }
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
        let change = Change {
            user_id: "user_789".into(),
            change_type: ChangeType::Added,
            role: Role::Member,
            by: "user_456".into(),
            at: Timestamp::from_unix_millis(1_769_783_400_000),
        };
        let event = MembershipChanged::of("chat_abc123".into(), change.clone());
        assert_eq!(event, MembershipChanged::of("chat_abc123".into(), change));
        let event = MembershipChanged { event_id: "evt_01HQX".into(), ..event };
        assert_written_as(&event, MembershipChanged::EXAMPLE);
        let words = [ChangeType::Added, ChangeType::Removed, ChangeType::RoleChanged];
        assert_eq!(serde_json::to_string(&words).unwrap(), r#"["added","removed","role_changed"]"#);
    }
}
