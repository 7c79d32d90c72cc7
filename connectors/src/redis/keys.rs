//! The names of keys and what is special inside them, as ADR-003 section 3 has them. Channels are named by
//! [`crate::live::Channel`].

use crate::model::{ChatId, ConnectionId, GatewayId, UserId};

/// JSON: `user_id`, `device_id`, `gateway_id`, `connected_at`.
pub(super) fn connection(id: &ConnectionId) -> String {
    format!("connection:{id}")
}

/// Set of connection ids.
pub(super) fn user_connections(user: &UserId) -> String {
    format!("user_connections:{user}")
}

/// Set of connection ids.
pub(super) fn gateway_connections(gateway: &GatewayId) -> String {
    format!("gateway_connections:{gateway}")
}

/// Set of user ids, and the markers below.
pub(super) fn chat_members(chat: &ChatId) -> String {
    format!("chat_members:{chat}")
}

/// JSON: `status`, `last_seen`.
pub(super) fn user_presence(user: &UserId) -> String {
    format!("user_presence:{user}")
}

/// A number. Not in the ADR.
pub(super) fn rate(counter: &str) -> String {
    format!("rate:{counter}")
}

/// Begins what is no user in a set of members; no user's id begins so.
pub(super) const MARKER: char = '?';
/// Begins a permission to fill. Known in scripts too.
pub(super) const FILL_MARKER: &str = "?fill:";
/// Alone in the set of a chat that is known to have no members, since Redis keeps no empty sets.
pub(super) const EMPTY_MARKER: &str = "?empty";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_decision_record() {
        assert_eq!(connection(&"conn_1".into()), "connection:conn_1");
        assert_eq!(user_connections(&"user_1".into()), "user_connections:user_1");
        assert_eq!(gateway_connections(&"gw_1".into()), "gateway_connections:gw_1");
        assert_eq!(chat_members(&"chat_1".into()), "chat_members:chat_1");
        assert_eq!(user_presence(&"user_1".into()), "user_presence:user_1");
        assert_eq!(rate("login:user_1"), "rate:login:user_1");
    }
}
