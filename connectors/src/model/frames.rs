//! What connected clients are told, and how it travels to the gateway they are connected to.
//!
//! A frame is written once, by whoever fans an event out ([`of_event`]), and its bytes are sent as they are to every
//! socket it is for. On its way to a gateway it is part of a line of JSON with the connections it goes to; a publish
//! holds many lines, and the gateway cuts the frames out of it without copying or understanding them
//! ([`read_deliveries`]).

mod deliveries;
mod events;

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use deliveries::{Delivery, NotADelivery, read_deliveries, write_delivery};
pub use events::{Told, Whom, chat_with_new_members, of_event};

use super::tables::chat_memberships::Role;
use super::tables::chats::ChatType;
use super::topics::memberships_changed::ChangeType;
use super::{ChatId, MessageId, SessionId, Timestamp, UserId};
use crate::store::Text;

/// A frame that a client gets without having asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Frame {
    Message(MessageFrame),
    ChatCreated(ChatCreatedFrame),
    MembershipChanged(MembershipChangedFrame),
    Reply(ReplyFrame),
}

/// A message, to every other connection of every member of its chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageFrame {
    pub message_id: MessageId,
    pub chat_id: ChatId,
    pub sequence: u64,
    pub sender_id: UserId,
    #[schemars(with = "String")]
    pub content: Text,
    #[schemars(with = "String")]
    pub content_type: Text,
    pub created_at: Timestamp,
    /// Of the message before this one; a client that has not seen it asks for what it missed.
    pub previous_sequence: u64,
}

/// A chat was made, to its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChatCreatedFrame {
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    pub name: Option<String>,
    pub created_by: UserId,
    pub created_at: Timestamp,
}

/// Somebody came into a chat, left it, or has another role there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MembershipChangedFrame {
    pub chat_id: ChatId,
    pub user_id: UserId,
    pub change_type: ChangeType,
    pub role: Role,
    pub changed_by: UserId,
    pub changed_at: Timestamp,
}

/// A reply in progress, to every connection of every member of its chat: what an agent has written so far. It is not
/// stored and has no sequence; when it is done it comes as a `message` of the same sender, or not at all. A sender writes
/// one reply at a time in a chat: the next frame of it, and its message, take the place of this one. Who misses frames
/// misses nothing, and one that is not renewed for half a minute is no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplyFrame {
    pub chat_id: ChatId,
    /// The agent that writes.
    pub sender_id: UserId,
    /// The message that is being answered.
    pub reply_to: MessageId,
    pub status: ReplyStatus,
    /// All that is written so far; empty at the beginning, and if it was stopped.
    pub content: String,
    pub content_type: String,
}

/// How far a reply has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyStatus {
    /// More is to come.
    Writing,
    /// It failed: forget it. It may begin anew.
    Stopped,
}

impl Frame {
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a frame has text keys, so it has a JSON form").into()
    }
}

/// Sessions that have ended: told to every gateway, which closes their sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    pub user_id: UserId,
    /// All of the user's if empty.
    pub session_ids: Vec<SessionId>,
}

/// Chats whose members changed: told to every process that remembers members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalidated {
    pub chat_ids: Arc<[ChatId]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_starts_with_its_type() {
        let frame = Frame::Message(MessageFrame {
            message_id: "msg_1".into(),
            chat_id: "chat_1".into(),
            sequence: 7,
            sender_id: "user_1".into(),
            content: "hello".into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
            previous_sequence: 6,
        });
        assert!(frame.encode().starts_with(b"{\"type\":\"message\",\"message_id\":\"msg_1\""));
    }
}
