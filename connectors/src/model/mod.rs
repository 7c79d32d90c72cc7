//! The data model: what is in each table, topic and key family, and the named ways to get at it.

mod ids;

pub use ids::{ChatId, ConnectionId, DeviceId, EventId, GatewayId, MessageId, SessionId, UserId};
