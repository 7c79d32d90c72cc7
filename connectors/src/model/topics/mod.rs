//! The topics, one file each: the event that is in it, and how the topic is kept.
//!
//! An event tells of what the store holds already. Records are keyed by chat, or by user where there is none, so that
//! what happened to one of them is read in order. The JSON is the documented one, field by field, since programs that
//! are not ours read it too.

mod event;

pub mod chats_created;
pub mod memberships_changed;
pub mod messages_persisted;
pub mod verifications_requested;

use std::time::Duration;

pub use chats_created::ChatCreated;
pub use event::{Event, EventError, Payload};
pub use memberships_changed::MembershipChanged;
pub use messages_persisted::MessagePersisted;
pub use verifications_requested::VerificationRequested;

use crate::log::{Retention, Topic, TopicSpec};

/// Consumers of a group share partitions, and 12 can be shared evenly among 1, 2, 3, 4, 6 or 12 of them. Too many from
/// the start rather than too few: adding some later moves chats to other partitions, and their order is lost.
pub const PARTITIONS: u32 = 12;
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// One broker may be lost while another is being restarted.
const REPLICATION: u16 = 3;

/// Every topic of the product, as it is to be created.
pub fn all() -> [TopicSpec; 4] {
    [
        messages_persisted::spec(),
        memberships_changed::spec(),
        chats_created::spec(),
        verifications_requested::spec(),
    ]
}

fn spec(name: &str) -> TopicSpec {
    TopicSpec {
        name: Topic::from(name),
        partitions: PARTITIONS,
        retention: Retention { age: Some(KEPT_FOR), bytes: None },
        replication: REPLICATION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_kept_as_documented() {
        let topics = all();
        let names: Vec<_> = topics.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(
            names,
            ["messages.persisted", "memberships.changed", "chats.created", "verifications.requested"]
        );
        for topic in topics {
            let kept = if topic.name.as_str() == "verifications.requested" { 3600 } else { 604_800 };
            assert_eq!(topic.retention.age, Some(Duration::from_secs(kept)), "{}", topic.name);
            assert_eq!(topic.replication, 3, "{}", topic.name);
        }
    }
}
