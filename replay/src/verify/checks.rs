//! Every check in one list: what must hold, what it means when it does not, what to do, and where it was decided. The
//! command's listing, the documentation and the tests are made from it.

use serde::{Deserialize, Serialize};

/// Something that must hold.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// As `--only` names it.
    pub id: &'static str,
    /// What holds in a deployment that is in order.
    pub holds: &'static str,
    /// What it means when it does not.
    pub means: &'static str,
    /// What somebody can do then.
    pub remedy: &'static str,
    /// Where it was decided: the document's number and the name of the invariant there, or a section.
    pub from: &'static str,
    pub severity: Severity,
    pub scope: Scope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No crash and no delay explains it: something is wrong, or somebody wrote past the product.
    Error,
    /// What interrupted work leaves behind, or what is late: harmless, and worth knowing.
    Warning,
}

/// What a check needs to be able to say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Can be restricted to some chats.
    Chats,
    /// Is about users, and left out when only some chats are looked at.
    Users,
    /// Two looks, some time apart.
    Watch,
}

macro_rules! checks {
    ($($name:ident = $id:literal, $severity:ident, $scope:ident, $from:literal,
        holds $holds:literal, means $means:literal, remedy $remedy:literal;)*) => {
        $(pub static $name: Check = Check {
            id: $id,
            holds: $holds,
            means: $means,
            remedy: $remedy,
            from: $from,
            severity: Severity::$severity,
            scope: Scope::$scope,
        };)*

        /// Every check, in the order of the report.
        pub static CHECKS: &[&Check] = &[$(&$name),*];
    };
}

checks! {
    READABLE = "readable", Error, Chats, "ADR-007 appendix A",
        holds "every item has the attributes of its table",
        means "requests that meet the item fail",
        remedy "correct or remove the item; other checks pass it over until then";
    ITEM_SIZE = "item-size", Warning, Chats, "ADR-007 item_size_bounded",
        holds "every item is smaller than half of what the store takes",
        means "a change that lets it grow may be refused",
        remedy "find out who writes such items";
    ENDS = "ends", Error, Chats, "ADR-007 ttl_bounded_tables",
        holds "every idempotency key and every session has the time at which it ends",
        means "the item stays for ever and its table grows",
        remedy "remove the item, or set its 'ttl'";

    SEQUENCE_POSITIVE = "sequence-positive", Error, Chats, "ADR-004 no_zero_sequence",
        holds "sequences of messages start at 1",
        means "clients, who ask for what comes after 0, never get the message",
        remedy "store the message again through the product and remove this one";
    SEQUENCE_UNIQUE = "sequence-unique", Error, Chats, "ADR-004 sequence_uniqueness",
        holds "no two messages of a chat have the same sequence",
        means "clients take one for the other and lose one of them",
        remedy "check the keys of table 'messages' with 'courant tables drift'";
    COUNTER_EXISTS = "counter-exists", Error, Chats, "ADR-004 counter_must_exist",
        holds "every chat has its counter",
        means "nothing can be sent to the chat: COUNTER_MISSING",
        remedy "'courant counters recover'; with '--with-log' if the store came from a backup";
    COUNTER_CHAT = "counter-chat", Error, Chats, "ADR-004 section 9",
        holds "every counter is of a chat that exists",
        means "the chat was removed past the product, or restored without its row",
        remedy "restore the chat, or remove what is left of it";
    COUNTER_BOUND = "counter-bound", Error, Chats,
        "ADR-004 sequence_monotonicity, counter_lower_bound",
        holds "no message has a sequence beyond its chat's counter",
        means "the next messages get sequences that are taken, and are refused",
        remedy "'courant counters recover' raises it";
    MESSAGE_CHAT = "message-chat", Error, Chats, "ADR-003 section 1.4",
        holds "every message is of a chat that exists",
        means "nobody can read the message",
        remedy "restore the chat, or remove what is left of it";

    KEY_MESSAGE = "key-message", Error, Chats, "ADR-004 ack_implies_persistence",
        holds "every idempotency key names a message that is stored",
        means "a client was told that its message is stored, and it is not",
        remedy "restore the message; its body may be in the log";
    KEY_AGREES = "key-agrees", Error, Chats, "ADR-004 idempotency_sequence_consistency",
        holds "a key and its message agree on message id, client's id, sender and body",
        means "a client that sends again is answered with another message's sequence, or refused",
        remedy "correct the key after the message";
    MESSAGE_KEY = "message-key", Error, Chats, "ADR-003 section 1.6",
        holds "every message of the last seven days has its key",
        means "a client that sends the message again stores it twice",
        remedy "write the key again from the message";
    MESSAGE_ONCE = "message-once", Error, Chats, "ADR-003 section 1.6",
        holds "a client's id names one message of a chat while its key is kept",
        means "a message was stored twice",
        remedy "keep the one that the key names";

    MESSAGE_EVENT = "message-event", Error, Chats, "ADR-003 section 7.5",
        holds "every message has its event in the log, while events of its time are kept",
        means "nobody was notified, and what is built from the log lacks the message",
        remedy "'courant reconcile --publish'; a pipeline with 'unpublished' does it all the time";
    EVENT_MESSAGE = "event-message", Error, Chats, "ADR-003 kafka_reflects_dynamodb, write_order_preserved",
        holds "every event in the log has its message in the store",
        means "clients were shown a message that they cannot find again",
        remedy "the store decides: restore it from a backup, or rebuild what was made from the log; 'courant reconcile' lists them";
    EVENT_CONTENT = "event-content", Error, Chats, "ADR-003 conflict_resolution",
        holds "an event and each copy of it say what the stored message says",
        means "clients were shown something else than what is stored",
        remedy "the store decides; rebuild what was made from the log";
    EVENT_READABLE = "event-readable", Error, Chats, "ADR-003 section 2",
        holds "every record of the topics is an event with its chat as key",
        means "consumers give the record up",
        remedy "find out who writes to the topic";
    EVENT_ORDER = "event-order", Warning, Chats, "ADR-003 section 2.4",
        holds "the events of a chat are in the order of their sequences, copies left aside",
        means "it was published late, after a crash or by another process; clients asked the store for it",
        remedy "nothing, unless it happens all the time: then two processes persist for the same chats";
    EVENT_PARTITION = "event-partition", Warning, Chats, "ADR-003 section 2.4",
        holds "all events of a chat are in one partition",
        means "partitions were added, and the order between old and new events is lost",
        remedy "let consumers read the old events before new ones are written, or rebuild from a scan";
    CHAT_EVENT = "chat-event", Error, Chats, "ADR-003 write_order_preserved",
        holds "events about chats and their members name chats that exist",
        means "people were told of a chat that is not there",
        remedy "restore the chat from a backup";

    MEMBERSHIP_CHAT = "membership-chat", Warning, Chats, "ADR-003 section 4.3",
        holds "every membership is of a chat that exists",
        means "making a large group was given up halfway; nobody sees the chat",
        remedy "'courant reconcile --sweep-chats'";
    CHAT_FORMED = "chat-formed", Warning, Chats, "decision 6, large groups",
        holds "no large group is forming any more some time after it was begun",
        means "making it was interrupted for good; nobody sees the chat",
        remedy "carry the command out again, or 'courant reconcile --sweep-chats'";
    CHAT_COUNTS = "chat-counts", Error, Chats, "decision 6, large groups",
        holds "a chat counts its members and owners right",
        means "it grows beyond its limit or refuses members, or loses its last owner",
        remedy "correct 'member_count' and 'owner_count' while nobody changes its members";
    CHAT_OWNER = "chat-owner", Error, Chats, "ADR-003 section 1.3",
        holds "every chat has an owner",
        means "nobody can hand out roles in the chat",
        remedy "give a member the role 'owner'";
    DIRECT_PAIR = "direct-pair", Error, Chats, "ADR-003 section 1.2",
        holds "a direct chat has two members",
        means "somebody talks to nobody, or to more people than they know",
        remedy "correct the memberships, or make it a group";
    INDEX_AGREES = "index-agrees", Error, Chats, "ADR-007 section 2.6",
        holds "'user_chats-index' says what the memberships say",
        means "somebody does not see a chat that is theirs, or sees one that is not",
        remedy "write the membership again; on the embedded engine run 'courant data check'";
    MEMBERSHIP_USER = "membership-user", Warning, Chats, "ADR-007 section 2.6",
        holds "every member is a user",
        means "messages wait for somebody who cannot sign in",
        remedy "remove the membership, or restore the user";

    WATERMARK_BOUND = "watermark-bound", Error, Chats, "ADR-003 section 1.7",
        holds "nobody has acknowledged more than their chat's counter",
        means "messages to come count as arrived, and are not synced",
        remedy "set the watermark to the counter, or find out who set the counter back";
    WATERMARK_CHAT = "watermark-chat", Error, Chats, "ADR-003 section 1.7",
        holds "every watermark is of a chat that exists",
        means "the chat was removed past the product, or an acknowledgement was not checked",
        remedy "remove the watermark, or restore the chat";
    WATERMARK_FORWARD = "watermark-forward", Error, Watch, "ADR-003 delivery_watermark_monotonic",
        holds "watermarks only move forward",
        means "somebody writes past the condition; messages are sent again",
        remedy "find out who writes table 'delivery_state'";
    COUNTER_FORWARD = "counter-forward", Error, Watch,
        "ADR-004 allocation_monotonicity, counter_is_last_allocated",
        holds "counters only move forward",
        means "sequences are given out twice",
        remedy "'courant counters recover' raises it; find out who set it back";

    SESSION_USER = "session-user", Error, Users, "ADR-007 section 2.8",
        holds "every session is of a user who exists",
        means "somebody is signed in as nobody",
        remedy "revoke the session";
    PHONE_USER = "phone-user", Error, Users, "ADR-007 section 2.4",
        holds "a phone number is kept for the one user who has it",
        means "two people can have the number, or nobody can register it",
        remedy "correct the number's item, 'phone#…' in table 'users', after the user";
}

/// The check of this name.
pub fn check(id: &str) -> Option<&'static Check> {
    CHECKS.iter().copied().find(|check| check.id == id)
}

impl Check {
    /// Where it stands in [`CHECKS`].
    pub(super) fn position(&self) -> usize {
        CHECKS.iter().position(|check| check.id == self.id).expect("every check is in the list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_name_of_its_own_and_tells_what_to_do() {
        for listed in CHECKS {
            assert_eq!(check(listed.id), Some(*listed), "each id is there once");
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(listed.id.chars().all(kebab), "{}", listed.id);
            for text in [listed.holds, listed.means, listed.remedy] {
                assert!(text.len() > 15 && !text.ends_with('.'), "{}: {text}", listed.id);
            }
        }
    }

    /// Those of the appendices that a look at store and log can decide. The others are about time, access rights and
    /// code paths: conditions, grants and `courant check` hold them.
    #[test]
    fn every_invariant_that_data_can_show_is_checked() {
        let documented = [
            "kafka_reflects_dynamodb",
            "write_order_preserved",
            "delivery_watermark_monotonic",
            "conflict_resolution",
            "counter_must_exist",
            "sequence_uniqueness",
            "allocation_monotonicity",
            "counter_is_last_allocated",
            "sequence_monotonicity",
            "counter_lower_bound",
            "idempotency_sequence_consistency",
            "ack_implies_persistence",
            "no_zero_sequence",
            "item_size_bounded",
            "ttl_bounded_tables",
        ];
        for invariant in documented {
            assert!(CHECKS.iter().any(|check| check.from.contains(invariant)), "{invariant}");
        }
    }
}
