//! What the server says on a socket of its own accord or in answer: one type per frame, `type` first.
//!
//! Frames that are fanned out (`message`, `chat_created`, `membership_changed`) come ready-made and are in the model.

use bytes::Bytes;
use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Refusal, Sent};
use courant_connectors::model::tables::messages::Message;
use schemars::JsonSchema;
use serde::Serialize;

use super::codec;

/// The first frame of every socket.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "welcome")]
pub(super) struct Welcome<'a> {
    pub(super) connection_id: &'a str,
    pub(super) user_id: &'a str,
    pub(super) device_id: &'a str,
    /// Send a heartbeat this often; two missed ones end the connection.
    pub(super) heartbeat_seconds: u64,
    pub(super) server_time: Timestamp,
}

/// The message is durable and its event is in the log.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "ack")]
pub(super) struct Acked<'a> {
    pub(super) client_message_id: &'a str,
    pub(super) chat_id: &'a str,
    pub(super) sequence: u64,
    pub(super) message_id: &'a str,
    pub(super) created_at: Timestamp,
    /// It was sent before; this is the answer of then.
    pub(super) deduplicated: bool,
}

impl<'a> Acked<'a> {
    pub(super) fn new(client_message_id: &'a str, sent: &'a Sent) -> Self {
        Self {
            client_message_id,
            chat_id: sent.chat_id.as_str(),
            sequence: sent.sequence,
            message_id: sent.message_id.as_str(),
            created_at: sent.created_at,
            deduplicated: sent.deduplicated,
        }
    }
}

/// Something was not done. The socket lives on unless it is closed.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "error")]
pub(super) struct Error<'a> {
    /// Of the frame that is refused, as it was given; null if that has none.
    pub(super) client_message_id: Option<&'a str>,
    /// Of the `sync_request` that is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chat_id: Option<&'a str>,
    /// One of the protocol's codes.
    pub(super) code: &'static str,
    /// For the developer of the client.
    pub(super) message: &'a str,
    /// The same frame may succeed later.
    pub(super) retryable: bool,
    pub(super) retry_after_ms: Option<u64>,
}

/// What an error is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum About<'a> {
    Frame,
    Message(&'a str),
    Chat(&'a str),
}

impl<'a> Error<'a> {
    pub(super) fn new(about: About<'a>, refusal: &'a Refusal) -> Self {
        let (client_message_id, chat_id) = match about {
            About::Frame => (None, None),
            About::Message(id) => (Some(id), None),
            About::Chat(id) => (None, Some(id)),
        };
        Self {
            client_message_id,
            chat_id,
            code: refusal.code.as_str(),
            message: &refusal.message,
            retryable: refusal.code.is_retryable(),
            retry_after_ms: refusal.retry_after_ms,
        }
    }
}

/// Messages from the store, ascending. The answer to a `sync_request` is complete once `limit` messages have come or
/// `has_more` is false.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "sync_batch")]
pub(super) struct SyncBatch<'a> {
    pub(super) chat_id: &'a str,
    pub(super) messages: Vec<SyncedMessage<'a>>,
    /// The store has messages after the last of these.
    pub(super) has_more: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct SyncedMessage<'a> {
    message_id: &'a str,
    chat_id: &'a str,
    sequence: u64,
    sender_id: &'a str,
    content: &'a str,
    content_type: &'a str,
    created_at: Timestamp,
}

impl<'a> From<&'a Message> for SyncedMessage<'a> {
    fn from(message: &'a Message) -> Self {
        Self {
            message_id: message.message_id.as_str(),
            chat_id: message.chat_id.as_str(),
            sequence: message.sequence,
            sender_id: message.sender_id.as_str(),
            content: &message.content,
            content_type: &message.content_type,
            created_at: message.created_at,
        }
    }
}

/// The server heard the client's heartbeat.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "heartbeat")]
pub(super) struct Heartbeat {}

/// The server is about to close every socket.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename = "drain")]
pub(super) struct Drain {
    pub(super) reconnect_after_ms: u64,
}

/// As it goes over the wire.
pub(super) fn encode(frame: &impl Serialize) -> Bytes {
    codec::text(&serde_json::to_vec(frame).expect("frames have text keys, so they have a JSON form"))
}

/// The answer to every heartbeat.
pub(super) fn heartbeat() -> Bytes {
    const ANSWER: &[u8] = b"\x81\x14{\"type\":\"heartbeat\"}";
    Bytes::from_static(ANSWER)
}

#[cfg(test)]
mod tests {
    use courant_connectors::model::commands::Code;

    use super::*;

    #[test]
    fn type_comes_first() {
        let refusal = Refusal::new(Code::NotAMember, "no");
        let error = encode(&Error::new(About::Message("c-1"), &refusal));
        let text = std::str::from_utf8(&error[2..]).unwrap();
        assert_eq!(
            text,
            r#"{"type":"error","client_message_id":"c-1","code":"NOT_A_MEMBER","message":"no","retryable":false,"retry_after_ms":null}"#
        );
    }

    #[test]
    fn the_ready_made_heartbeat_is_what_would_be_written() {
        assert_eq!(heartbeat(), encode(&Heartbeat {}));
    }
}
