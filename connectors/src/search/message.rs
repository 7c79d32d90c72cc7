//! What is indexed of an event, read without copying its texts.

use std::borrow::Cow;

use serde::Deserialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::model::Timestamp;
use crate::model::tables::messages::StoredMessage;
use crate::model::topics::{EventError, Payload as _, messages_persisted::PersistedMessage};

/// A message as its event tells it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow)]
    pub message_id: Cow<'a, str>,
    #[serde(borrow)]
    pub chat_id: Cow<'a, str>,
    pub sequence: u64,
    #[serde(borrow)]
    pub sender_id: Cow<'a, str>,
    #[serde(borrow)]
    pub content: Cow<'a, str>,
    #[serde(borrow)]
    pub content_type: Cow<'a, str>,
    pub created_at: Timestamp,
    /// Which image of the message this is; the greater one wins. Messages do not change yet, so there is only the first.
    #[serde(default)]
    pub version: u64,
}

/// Why an event is not in the index although nothing is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It tells of something else than a message.
    NoMessage,
    /// The message is no text: a picture, or something that only its readers can open.
    NotText,
}

#[derive(Debug, thiserror::Error)]
pub enum NotIndexed {
    #[error("the event is left out of the index")]
    Left(Left),
    #[error(transparent)]
    Malformed(#[from] EventError),
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    payload: Message<'a>,
}

#[derive(Deserialize)]
struct TypeOnly<'a> {
    #[serde(borrow)]
    event_type: Cow<'a, str>,
}

const MESSAGE: &str = PersistedMessage::EVENT_TYPE;

impl<'a> Message<'a> {
    /// A message where the store has it.
    pub fn of(stored: &'a StoredMessage) -> Result<Self, NotIndexed> {
        let message = Self {
            message_id: stored.message_id().into(),
            chat_id: stored.chat_id().into(),
            sequence: stored.sequence(),
            sender_id: stored.sender_id().into(),
            content: stored.content().into(),
            content_type: stored.content_type().into(),
            created_at: stored.created_at(),
            version: 0,
        };
        message.if_text()
    }

    fn if_text(self) -> Result<Self, NotIndexed> {
        if self.is_text() { Ok(self) } else { Err(NotIndexed::Left(Left::NotText)) }
    }

    /// The message that an event of the log tells of.
    pub fn of_event(event: &'a [u8]) -> Result<Self, NotIndexed> {
        // Looked through for what is not UTF-8 once, and not text by text.
        let read = match std::str::from_utf8(event) {
            Ok(text) => serde_json::from_str::<Event<'a>>(text),
            Err(_) => serde_json::from_slice(event),
        };
        let source = match read {
            Ok(Event { event_type, payload }) if event_type == MESSAGE => return payload.if_text(),
            Ok(_) => return Err(NotIndexed::Left(Left::NoMessage)),
            Err(source) => source,
        };
        match serde_json::from_slice::<TypeOnly<'_>>(event) {
            Ok(TypeOnly { event_type }) if event_type != MESSAGE => Err(NotIndexed::Left(Left::NoMessage)),
            _ => Err(EventError::Malformed { expected: MESSAGE, source }.into()),
        }
    }

    fn is_text(&self) -> bool {
        self.content_type.get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case("text/"))
    }

    /// Of everything there is to say about it: two messages with the same digest are the same.
    pub fn digest(&self) -> u64 {
        let mut hash = Xxh3::new();
        for text in [&self.message_id, &self.chat_id, &self.sender_id, &self.content, &self.content_type] {
            // The length goes first, so that no two lists of texts are the same bytes.
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        for number in [self.sequence, self.created_at.unix_millis(), self.version] {
            hash.update(&number.to_le_bytes());
        }
        hash.digest()
    }
}

/// A chat as documents name it. Two chats may share one, so whoever rests on it compares the whole id afterwards.
pub(super) fn chat_hash(chat_id: &str) -> u64 {
    xxh3_64(chat_id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::testing::message;
    use super::*;

    #[test]
    fn only_texts_are_indexed_and_what_is_malformed_says_so() {
        let event = |kind: &str, content_type: &str| {
            format!(
                r#"{{"event_type":"{kind}","event_id":"e","payload":{{"message_id":"m","chat_id":"c",
                "sequence":3,"sender_id":"u","content":"a\"b","content_type":"{content_type}",
                "created_at":"2026-01-30T14:30:00.000Z"}}}}"#
            )
        };
        let text = event("MessagePersisted", "TEXT/markdown");
        let read = Message::of_event(text.as_bytes()).unwrap();
        assert_eq!((&*read.content, read.sequence, read.version), ("a\"b", 3, 0));
        assert!(matches!(read.chat_id, Cow::Borrowed(_)), "texts are not copied");
        let refused = |event: &str| Message::of_event(event.as_bytes()).unwrap_err();
        for other in ["image/png", "text", "", "é"] {
            let left = refused(&event("MessagePersisted", other));
            assert!(matches!(left, NotIndexed::Left(Left::NotText)), "{other}");
        }
        for other in [event("MessageSeen", "text/plain"), r#"{"event_type":"ChatCreated"}"#.to_owned()] {
            assert!(matches!(refused(&other), NotIndexed::Left(Left::NoMessage)), "{other}");
        }
        for broken in ["zzz", r#"{"event_type":"MessagePersisted","payload":{}}"#, "\u{fffd}"] {
            assert!(matches!(refused(broken), NotIndexed::Malformed(_)), "{broken}");
        }
    }

    #[test]
    fn a_digest_is_of_every_field() {
        let one = message("chat_1", 1, "hello");
        let others = [
            Message { message_id: "msg_x".into(), ..one.clone() },
            Message { chat_id: "chat_x".into(), ..one.clone() },
            Message { sequence: 2, ..one.clone() },
            Message { sender_id: "user_x".into(), ..one.clone() },
            Message { content: "hullo".into(), ..one.clone() },
            Message { content_type: "text/x".into(), ..one.clone() },
            Message { created_at: Timestamp::from_unix_millis(1), ..one.clone() },
            Message { version: 1, ..one.clone() },
        ];
        assert!(others.iter().all(|other| other.digest() != one.digest()));
        assert_eq!(one.clone().digest(), one.digest());
    }
}
