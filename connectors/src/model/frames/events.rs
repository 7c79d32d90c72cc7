//! From an event of the log to the frame that clients get.
//!
//! Nearly all events tell of messages, so those are read without owning anything: the texts of a message go from the
//! event into the frame as they are written there, escapes and all, and are only looked at to make sure that they are
//! texts. Events of the other kinds are rare and are read in full.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

use super::{ChatCreatedFrame, Frame, MembershipChangedFrame};
use crate::model::topics::messages_persisted::PersistedMessage;
use crate::model::topics::{
    ChatCreated, EventError, MembershipChanged, Payload, chats_created, memberships_changed,
};
use crate::model::{ChatId, UserId};

/// What an event tells clients.
#[derive(Debug, PartialEq, Eq)]
pub struct Told<'a> {
    pub chat_id: Cow<'a, str>,
    /// Of a message.
    pub sequence: Option<u64>,
    pub whom: Whom,
    /// The frame's JSON.
    pub frame: Bytes,
}

/// Whom an event is for.
#[derive(Debug, PartialEq, Eq)]
pub enum Whom {
    /// Everybody in the chat.
    Members,
    /// Everybody who is in the chat since the event, whatever anybody remembers of its members, and whom it happened to.
    NewMembers { and: Option<UserId> },
}

const MESSAGE: &str = PersistedMessage::EVENT_TYPE;
const CHANGE: &str = memberships_changed::ChangedMembership::EVENT_TYPE;
const CREATION: &str = chats_created::CreatedChat::EVENT_TYPE;
/// How events of messages start as the product writes them.
const MESSAGE_START: &[u8] = b"{\"event_type\":\"MessagePersisted\",";

/// The frame that an event's JSON becomes; `None` if it is of a type that clients are not told of.
///
/// `previous_sequence` is the sequence of the message before, where it is not one less than the message's own.
pub fn of_event(event: &[u8], previous_sequence: Option<u64>) -> Result<Option<Told<'_>>, EventError> {
    // Looked through for what is not UTF-8 once, and not text by text.
    let read = match std::str::from_utf8(event) {
        Ok(text) => serde_json::from_str::<MessageEvent<'_>>(text),
        Err(_) => serde_json::from_slice(event),
    };
    let not_a_message = match read {
        Ok(message) if message.event_type == MESSAGE => return message.told(previous_sequence).map(Some),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    Ok(match (&*event_type(event)?, not_a_message) {
        (MESSAGE, Some(source)) => return Err(EventError::Malformed { expected: MESSAGE, source }),
        (CHANGE, _) => Some(told_of_change(MembershipChanged::from_json(event)?)),
        (CREATION, _) => Some(told_of_creation(ChatCreated::from_json(event)?)),
        _ => None,
    })
}

/// The chat whose members are others since an event; `None` if the event changed no members.
pub fn chat_with_new_members(event: &[u8]) -> Result<Option<ChatId>, EventError> {
    if event.starts_with(MESSAGE_START) {
        return Ok(None);
    }
    Ok(match &*event_type(event)? {
        CHANGE => Some(MembershipChanged::from_json(event)?.payload.chat_id),
        CREATION => Some(ChatCreated::from_json(event)?.payload.chat_id),
        _ => None,
    })
}

fn event_type(event: &[u8]) -> Result<Cow<'_, str>, EventError> {
    #[derive(Deserialize)]
    struct TypeOnly<'a> {
        #[serde(borrow)]
        event_type: Cow<'a, str>,
    }
    let read: TypeOnly<'_> = serde_json::from_slice(event)
        .map_err(|source| EventError::Malformed { expected: "well-formed", source })?;
    Ok(read.event_type)
}

#[derive(Deserialize)]
struct MessageEvent<'a> {
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    partition_key: Cow<'a, str>,
    #[serde(borrow)]
    payload: Written<'a>,
}

#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    message_id: Text<'a>,
    #[serde(borrow)]
    chat_id: Cow<'a, str>,
    sequence: u64,
    #[serde(borrow)]
    sender_id: Text<'a>,
    #[serde(borrow)]
    content: Text<'a>,
    #[serde(borrow)]
    content_type: Text<'a>,
    #[serde(borrow)]
    created_at: Text<'a>,
}

/// A text as it is written in JSON, with its quotes.
struct Text<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = <&RawValue>::deserialize(deserializer)?.get();
        if !written.starts_with('"') {
            return Err(de::Error::custom("expected a text"));
        }
        Ok(Self(written))
    }
}

impl<'a> MessageEvent<'a> {
    fn told(self, previous_sequence: Option<u64>) -> Result<Told<'a>, EventError> {
        let Self { partition_key, payload: message, .. } = self;
        if partition_key != message.chat_id {
            return Err(EventError::OtherKey {
                expected: MESSAGE,
                key: message.chat_id.into_owned(),
                partition_key: partition_key.into_owned(),
            });
        }
        let previous = previous_sequence.unwrap_or(message.sequence.saturating_sub(1));
        let frame = message.frame(previous);
        Ok(Told { chat_id: message.chat_id, sequence: Some(message.sequence), whom: Whom::Members, frame })
    }
}

impl Written<'_> {
    /// What [`Frame::Message`] would be written as.
    fn frame(&self, previous_sequence: u64) -> Bytes {
        /// The names of the fields, and numbers.
        const REST: usize = 200;
        let texts = [&self.message_id, &self.sender_id, &self.content, &self.content_type, &self.created_at];
        let length = texts.iter().map(|text| text.0.len()).sum::<usize>() + self.chat_id.len();
        let mut frame = Vec::with_capacity(length + REST);
        let mut put = |name: &str, value: &str| {
            frame.extend_from_slice(name.as_bytes());
            frame.extend_from_slice(value.as_bytes());
        };
        let chat_id = serde_json::to_string(&self.chat_id).expect("a text has a JSON form");
        put("{\"type\":\"message\",\"message_id\":", self.message_id.0);
        put(",\"chat_id\":", &chat_id);
        put(",\"sequence\":", &self.sequence.to_string());
        put(",\"sender_id\":", self.sender_id.0);
        put(",\"content\":", self.content.0);
        put(",\"content_type\":", self.content_type.0);
        put(",\"created_at\":", self.created_at.0);
        put(",\"previous_sequence\":", &previous_sequence.to_string());
        put("}", "");
        frame.into()
    }
}

fn told_of_change(event: MembershipChanged) -> Told<'static> {
    let change = event.payload;
    let frame = Frame::MembershipChanged(MembershipChangedFrame {
        chat_id: change.chat_id.clone(),
        user_id: change.user_id.clone(),
        change_type: change.change_type,
        role: change.role,
        changed_by: change.changed_by,
        changed_at: event.event_time,
    });
    let whom = Whom::NewMembers { and: Some(change.user_id) };
    Told { chat_id: change.chat_id.as_str().to_owned().into(), sequence: None, whom, frame: frame.encode() }
}

fn told_of_creation(event: ChatCreated) -> Told<'static> {
    let created = event.payload;
    let chat_id = created.chat_id.as_str().to_owned().into();
    let frame = Frame::ChatCreated(ChatCreatedFrame {
        chat_id: created.chat_id,
        chat_type: created.chat_type,
        name: created.name,
        created_by: created.created_by,
        created_at: event.event_time,
    });
    Told { chat_id, sequence: None, whom: Whom::NewMembers { and: None }, frame: frame.encode() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::model::frames::MessageFrame;
    use crate::model::topics::MessagePersisted;

    const CONTENT: &str = "line\nbreak \"quoted\" \\ \u{1f600} \u{1}";

    fn message_event() -> String {
        let event = MessagePersisted {
            event_id: "evt_1".into(),
            event_time: time(),
            payload: PersistedMessage {
                message_id: "msg_1".into(),
                chat_id: "chat_\"1\"".into(),
                sequence: 47,
                sender_id: "user_1".into(),
                content: CONTENT.into(),
                content_type: "text/plain".into(),
                created_at: time(),
            },
        };
        String::from_utf8(event.encode().payload.to_vec()).unwrap()
    }

    fn time() -> Timestamp {
        Timestamp::from_unix_millis(1_769_783_400_000)
    }

    fn frame_of_message(previous_sequence: u64) -> Bytes {
        Frame::Message(MessageFrame {
            message_id: "msg_1".into(),
            chat_id: "chat_\"1\"".into(),
            sequence: 47,
            sender_id: "user_1".into(),
            content: CONTENT.into(),
            content_type: "text/plain".into(),
            created_at: time(),
            previous_sequence,
        })
        .encode()
    }

    fn changed(event_type: &str) -> String {
        format!(
            r#"{{"event_type":"{event_type}","event_id":"evt_1","event_time":"2026-01-30T14:30:00.000Z",
            "partition_key":"chat_1","payload":{{"chat_id":"chat_1","user_id":"user_2","change_type":"removed",
            "role":"member","changed_by":"user_1"}}}}"#
        )
    }

    const CREATED: &str = r#"{"event_type":"ChatCreated","event_id":"evt_1","event_time":"2026-01-30T14:30:00.000Z",
        "partition_key":"chat_1","payload":{"chat_id":"chat_1","chat_type":"direct","name":null,
        "created_by":"user_1","initial_members":["user_1","user_2"]}}"#;

    #[test]
    fn a_message_becomes_the_frame_that_would_be_written_of_it() {
        let event = message_event();
        assert!(event.as_bytes().starts_with(MESSAGE_START));
        let told = of_event(event.as_bytes(), None).unwrap().unwrap();
        assert_eq!((&*told.chat_id, told.sequence, &told.whom), ("chat_\"1\"", Some(47), &Whom::Members));
        assert_eq!(told.frame, frame_of_message(46));
        assert_eq!(of_event(event.as_bytes(), Some(40)).unwrap().unwrap().frame, frame_of_message(40));
    }

    #[test]
    fn however_an_event_is_laid_out_its_frame_is_one_line() {
        let spread: serde_json::Value = serde_json::from_str(&message_event()).unwrap();
        let spread = serde_json::to_string_pretty(&spread).unwrap();
        let later = spread.replace("\"sequence\"", "\"edited\": {\"a\":\n1}, \"sequence\"");
        for event in [spread, later] {
            assert_eq!(of_event(event.as_bytes(), None).unwrap().unwrap().frame, frame_of_message(46));
        }
    }

    #[test]
    fn changes_of_members_are_for_those_who_are_there_now() {
        let change = changed(CHANGE);
        let told = of_event(change.as_bytes(), None).unwrap().unwrap();
        assert_eq!(told.whom, Whom::NewMembers { and: Some("user_2".into()) });
        let frame: serde_json::Value = serde_json::from_slice(&told.frame).unwrap();
        assert_eq!(
            frame,
            serde_json::json!({"type": "membership_changed", "chat_id": "chat_1", "user_id": "user_2",
                "change_type": "removed", "role": "member", "changed_by": "user_1",
                "changed_at": "2026-01-30T14:30:00.000Z"})
        );
        let told = of_event(CREATED.as_bytes(), None).unwrap().unwrap();
        assert_eq!(told.whom, Whom::NewMembers { and: None });
        assert!(told.frame.starts_with(br#"{"type":"chat_created","chat_id":"chat_1""#));
    }

    #[test]
    fn only_changes_of_members_put_caches_out_of_date() {
        let chat = |event: &str| chat_with_new_members(event.as_bytes()).unwrap();
        assert_eq!(chat(&message_event()), None);
        assert_eq!(chat(&format!(" {}", message_event())), None, "however it is laid out");
        assert_eq!(chat(&changed(CHANGE)), Some("chat_1".into()));
        assert_eq!(chat(CREATED), Some("chat_1".into()));
        assert_eq!(chat(&changed("MembershipForgotten")), None);
        assert!(chat_with_new_members(b"{nope").is_err());
    }

    #[test]
    fn unknown_types_are_none_and_garbage_is_an_error() {
        assert_eq!(of_event(changed("MembershipForgotten").as_bytes(), None).unwrap(), None);
        let refused = |event: &str| of_event(event.as_bytes(), None).unwrap_err().to_string();
        assert!(refused("{nope").starts_with("the record is not a well-formed event"));
        let message = message_event();
        let numbered = message.replace("\"user_1\"", "{\"user\":1}");
        assert!(refused(&numbered).contains("not a MessagePersisted event: expected a text"));
        let elsewhere = message.replacen("chat_", "other_", 1);
        assert!(refused(&elsewhere).contains("has the partition key 'other_"), "{}", refused(&elsewhere));
        assert!(refused(&changed(MESSAGE)).contains("missing field"), "{}", refused(&changed(MESSAGE)));
    }
}
