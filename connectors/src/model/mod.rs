//! The data model: what is in each table, topic and key family, and the named ways to get at it.
//!
//! - [`tables`]: one file per table: the record, its schema, and one function per access pattern.
//! - [`topics`]: one file per topic: the event as it is written.
//! - [`families`]: the key families of live state, by name.
//! - [`commands`]: what clients ask to be changed, and what they are answered.
//! - [`frames`]: what connected clients are told, and how it travels to their gateway.
//! - [`drift`]: what is otherwise on a server than here.
//! - [`Timestamp`]: how tables and events write a moment.

pub mod commands;
pub mod drift;
pub mod families;
pub mod frames;
mod ids;
pub mod tables;
mod timestamp;
pub mod topics;

pub use ids::{
    ChatId, ClientMessageId, ConnectionId, DeviceId, EventId, GatewayId, MessageId, SessionId, UserId,
    WorkerId,
};
pub use timestamp::{NotATime, Timestamp};
