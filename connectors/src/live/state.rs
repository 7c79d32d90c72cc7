//! What live state is made of.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::model::{ChatId, ConnectionId, DeviceId, GatewayId, UserId};

/// One client's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub id: ConnectionId,
    pub user: UserId,
    pub device: DeviceId,
    pub gateway: GatewayId,
    pub connected_at: SystemTime,
}

/// Permission to fill the cache for a chat, void after an invalidation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FillToken {
    pub chat: ChatId,
    pub token: SmolStr,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    pub status: Status,
    /// ISO 8601.
    pub last_seen: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Online,
    Away,
    Offline,
}

/// A counter and how long its window goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub value: u64,
    pub resets_in: Duration,
}

/// A name to publish under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(SmolStr);

impl Channel {
    /// Deliveries for the sockets of one gateway.
    pub fn deliver(gateway: &GatewayId) -> Self {
        Self(format_smolstr!("gateway:{gateway}:deliver"))
    }

    /// Sessions that have ended, for every gateway.
    pub fn revoked_sessions() -> Self {
        Self::named("sessions:revoked")
    }

    /// Chats whose members changed, for every process that remembers members.
    pub fn invalidated_members() -> Self {
        Self::named("members:invalidated")
    }

    /// Anything else; by convention lowercase words joined by colons.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a listener heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Message {
        channel: Channel,
        payload: Bytes,
    },
    /// Messages may have been missed: the connection was lost for a while, or too many waited.
    Gap,
}
