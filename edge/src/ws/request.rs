//! What a client says on a socket: parsed, checked, and made into what the server does about it.
//!
//! A frame is parsed where it lies, into types that deny unknown fields. It begins with its `type`, as the protocol
//! says; one that does not is understood too, at the price of a copy. A frame that is JSON but not right is refused
//! with `BAD_FRAME`, and its socket lives on; what is not JSON at all is told so and ends the socket.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::{ChatId, ClientMessageId};
use courant_connectors::store::Text;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::codec::{self, Heard, Violation};
use crate::rest::check_content_type;

const MAX_CONTENT: usize = 4096;
/// Of ids, and of what else is a word and not content.
const MAX_WORD: usize = 128;
/// Messages that one `sync_request` can ask for, and gets if it does not say.
pub(super) const MAX_SYNC: u32 = 1000;
const DEFAULT_SYNC: u32 = 100;

/// Sends a message to a chat; answered by `ack` or `error`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SendMessage<'a> {
    /// Chosen by the client: the same one in the same chat is the same message.
    #[serde(borrow)]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[\x20-\x7e]+$"))]
    client_message_id: Cow<'a, str>,
    #[serde(borrow)]
    chat_id: Cow<'a, str>,
    /// Up to 4096 bytes of UTF-8.
    #[serde(borrow)]
    #[schemars(length(min = 1, max = 4096))]
    content: Cow<'a, str>,
    /// `text/plain` if left out.
    #[serde(borrow, default)]
    content_type: Option<Cow<'a, str>>,
}

/// Everything up to this sequence has arrived. Not answered.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ack<'a> {
    #[serde(borrow)]
    chat_id: Cow<'a, str>,
    #[schemars(range(min = 1))]
    sequence: u64,
}

/// Asks for the messages after a sequence; answered by `sync_batch` or `error`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SyncRequest<'a> {
    #[serde(borrow)]
    chat_id: Cow<'a, str>,
    /// 0 for a chat from its beginning.
    last_acked_sequence: u64,
    /// How many messages; 100 if left out, and never more than 1000.
    #[serde(default)]
    #[schemars(range(min = 1))]
    limit: Option<u32>,
}

/// The client is there; answered by the same.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Heartbeat {}

/// Read in any order of its fields; [`TypeFirst`] is the fast way.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ClientFrame<'a> {
    #[serde(borrow)]
    SendMessage(SendMessage<'a>),
    #[serde(borrow)]
    Ack(Ack<'a>),
    #[serde(borrow)]
    SyncRequest(SyncRequest<'a>),
    Heartbeat(Heartbeat),
}

/// A frame whose first field is `type`: the others are read straight into their struct. `None` if another is first.
struct TypeFirst<'a>(Option<ClientFrame<'a>>);

/// A string and nothing else: an object with the type as its only field would be read as an enum too.
#[derive(Deserialize)]
#[serde(variant_identifier, rename_all = "snake_case")]
enum Type {
    SendMessage,
    Ack,
    SyncRequest,
    Heartbeat,
}

impl<'de> Deserialize<'de> for TypeFirst<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TypeFirstVisitor)
    }
}

struct TypeFirstVisitor;

impl<'de> Visitor<'de> for TypeFirstVisitor {
    type Value = TypeFirst<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a 'type'")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        match map.next_key::<Cow<'de, str>>()?.as_deref() {
            Some("type") => {}
            Some(_) => {
                map.next_value::<IgnoredAny>()?;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(TypeFirst(None));
            }
            None => return Err(de::Error::missing_field("type")),
        }
        let kind = map.next_value()?;
        let rest = MapAccessDeserializer::new(map);
        Ok(TypeFirst(Some(match kind {
            Type::SendMessage => ClientFrame::SendMessage(Deserialize::deserialize(rest)?),
            Type::Ack => ClientFrame::Ack(Deserialize::deserialize(rest)?),
            Type::SyncRequest => ClientFrame::SyncRequest(Deserialize::deserialize(rest)?),
            Type::Heartbeat => ClientFrame::Heartbeat(Deserialize::deserialize(rest)?),
        })))
    }
}

/// What to do about a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Send(Send),
    Ack {
        chat_id: ChatId,
        sequence: u64,
    },
    Sync {
        chat_id: ChatId,
        after: u64,
        limit: u32,
    },
    Heartbeat,
    /// The frame was understood, as far as it says which message it is, and is not to be obeyed.
    Refuse {
        client_message_id: Option<ClientMessageId>,
        refusal: Refusal,
    },
    /// Text that is no JSON. Nothing after this is heard.
    NotJson,
    /// A ping, to be answered with this frame.
    Pong(Bytes),
    /// The client closes.
    Close(Option<u16>),
    /// Nothing after this is heard.
    Violation(Violation),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Send {
    pub(super) client_message_id: ClientMessageId,
    pub(super) chat_id: ChatId,
    pub(super) content: Text,
    pub(super) content_type: Text,
}

impl Request {
    /// `None` if there is nothing to do about it.
    pub(super) fn of(heard: Heard<'_>) -> Option<Self> {
        match heard {
            Heard::Text(text) => Some(parse(text)),
            Heard::Ping(payload) => Some(Self::Pong(codec::pong(payload))),
            Heard::Pong => None,
            Heard::Close(code) => Some(Self::Close(code)),
        }
    }

    /// Whether it is a frame of the protocol that is right.
    pub(super) fn is_frame(&self) -> bool {
        matches!(self, Self::Send(_) | Self::Ack { .. } | Self::Sync { .. } | Self::Heartbeat)
    }

    /// Whether nothing after it is heard.
    pub(super) fn is_last(&self) -> bool {
        matches!(self, Self::NotJson | Self::Violation(_) | Self::Close(_))
    }
}

/// Reads the payload of a text frame.
pub(super) fn parse(text: &[u8]) -> Request {
    let parsed = serde_json::from_slice(text).and_then(|TypeFirst(frame)| match frame {
        Some(frame) => Ok(frame),
        None => serde_json::from_slice(text),
    });
    match parsed {
        Ok(frame) => frame.check().unwrap_or_else(|refused| refused),
        // A wrong field is found before the end of the text is seen, so whether it is JSON is another question.
        Err(error) if error.is_data() && serde_json::from_slice::<IgnoredAny>(text).is_ok() => {
            refuse(named(text).as_deref(), Code::BadFrame, error.to_string())
        }
        Err(_) => Request::NotJson,
    }
}

/// The message of a frame that cannot be read as what it says it is, so that its sender learns which one is refused.
fn named(text: &[u8]) -> Option<String> {
    match serde_json::from_slice::<Map<String, Value>>(text).ok()?.remove("client_message_id")? {
        Value::String(id) => Some(id),
        _ => None,
    }
}

fn refuse(client_message_id: Option<&str>, code: Code, message: impl Into<String>) -> Request {
    Request::Refuse {
        client_message_id: client_message_id.map(Into::into),
        refusal: Refusal::new(code, message),
    }
}

/// One to 128 printable characters.
fn is_word(text: &str) -> bool {
    (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn chat_id(text: &str, of: Option<&str>) -> Result<ChatId, Request> {
    if is_word(text) {
        Ok(text.into())
    } else {
        Err(refuse(of, Code::BadFrame, "chat_id is not the id of a chat"))
    }
}

impl ClientFrame<'_> {
    pub(super) fn check(self) -> Result<Request, Request> {
        match self {
            Self::SendMessage(frame) => frame.check(),
            Self::Ack(Ack { sequence: 0, .. }) => {
                Err(refuse(None, Code::BadFrame, "sequence is 0; sequences begin at 1"))
            }
            Self::Ack(frame) => {
                Ok(Request::Ack { chat_id: chat_id(&frame.chat_id, None)?, sequence: frame.sequence })
            }
            Self::SyncRequest(SyncRequest { limit: Some(0), .. }) => {
                Err(refuse(None, Code::BadFrame, "limit is 0; ask for 1 message or more"))
            }
            Self::SyncRequest(frame) => Ok(Request::Sync {
                chat_id: chat_id(&frame.chat_id, None)?,
                after: frame.last_acked_sequence,
                limit: frame.limit.unwrap_or(DEFAULT_SYNC).min(MAX_SYNC),
            }),
            Self::Heartbeat(Heartbeat {}) => Ok(Request::Heartbeat),
        }
    }
}

impl SendMessage<'_> {
    fn check(self) -> Result<Request, Request> {
        if !is_word(&self.client_message_id) {
            let message = "client_message_id is not 1 to 128 printable ASCII characters";
            return Err(refuse(Some(&self.client_message_id), Code::BadFrame, message));
        }
        let id = Some(&*self.client_message_id);
        let chat_id = chat_id(&self.chat_id, id)?;
        let content_type = self.content_type.as_deref().unwrap_or("text/plain");
        if let Err(refusal) = check_content_type(content_type) {
            return Err(refuse(id, Code::BadFrame, refusal.message));
        }
        match self.content.len() {
            0 => Err(refuse(id, Code::BadFrame, "content is empty")),
            1..=MAX_CONTENT => Ok(Request::Send(Send {
                client_message_id: (&*self.client_message_id).into(),
                chat_id,
                content_type: content_type.into(),
                content: self.content.into(),
            })),
            length => {
                let message = format!("content has {length} bytes; up to {MAX_CONTENT} are allowed");
                Err(refuse(id, Code::TooLarge, message))
            }
        }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
