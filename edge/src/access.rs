//! What the edge itself touches of store and live state, whatever pipelines run beside it.

use courant_connectors::capability::{Access, Grant};
use courant_connectors::model::families::{
    CONNECTION, DELIVER, GATEWAY_CONNECTIONS, RATE, REVOKED, USER_CONNECTIONS,
};
use courant_connectors::model::tables::{
    chat_counters, chat_memberships, chats, delivery_state, messages, sessions, users,
};

/// Queries are answered from tables, sockets are written down and listen for what is published to them, and requests are
/// counted. Nothing in the store is changed: that is for commands, and so for pipelines.
pub fn grant() -> Grant {
    let tables = [
        &chat_counters::SCHEMA,
        &chat_memberships::SCHEMA,
        &chats::SCHEMA,
        &delivery_state::SCHEMA,
        &messages::SCHEMA,
        &sessions::SCHEMA,
        &users::SCHEMA,
    ];
    let read = tables.iter().fold(Grant::nothing(), |grant, table| grant.table(&*table.name, Access::Read));
    let written = [CONNECTION, USER_CONNECTIONS, GATEWAY_CONNECTIONS, RATE];
    let written = written.iter().fold(read, |grant, family| grant.family(*family, Access::Write));
    [DELIVER, REVOKED].iter().fold(written, |grant, family| grant.family(*family, Access::Read))
}
