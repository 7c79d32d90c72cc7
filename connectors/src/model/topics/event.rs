//! What all events have in common: the envelope, and how it becomes a record of the log and back.
//!
//! The type says which event it is and the payload which chat, so neither can be wrong in an [`Event`]; they are
//! written out for readers in other languages, and checked when an event is read.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::log::{LogRecord, NewRecord};
use crate::model::{ChatId, EventId, Timestamp};

/// What an event tells.
pub trait Payload: Serialize + DeserializeOwned {
    const EVENT_TYPE: &'static str;

    /// Decides the partition: what happens in one chat is read in order.
    fn chat_id(&self) -> &ChatId;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<P> {
    /// The same for each copy of an event that was published twice.
    pub event_id: EventId,
    pub event_time: Timestamp,
    pub payload: P,
}

/// Why a record is not the event that was expected. Reading it again will not help.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("the record is not a {expected} event: {source}")]
    Malformed { expected: &'static str, source: serde_json::Error },
    #[error("the record is a '{found}' event and not a {expected}; look at which topic is read")]
    OtherType { expected: &'static str, found: String },
    #[error("the {expected} event of chat '{chat}' has the partition key '{partition_key}'")]
    OtherChat { expected: &'static str, chat: ChatId, partition_key: String },
}

/// The event as it is written. The order of the fields is the documented one.
#[derive(Serialize)]
struct Written<'a, P> {
    event_type: &'static str,
    event_id: &'a EventId,
    event_time: Timestamp,
    partition_key: &'a ChatId,
    payload: &'a P,
}

/// Fields that a later version adds are passed over.
#[derive(Deserialize)]
struct Read<P> {
    event_type: String,
    event_id: EventId,
    event_time: Timestamp,
    partition_key: String,
    payload: P,
}

/// What there is to know about an event that could not be read.
#[derive(Deserialize)]
struct TypeOnly {
    event_type: String,
}

impl<P: Payload> Event<P> {
    pub fn encode(&self) -> NewRecord {
        let chat = self.payload.chat_id();
        let written = Written {
            event_type: P::EVENT_TYPE,
            event_id: &self.event_id,
            event_time: self.event_time,
            partition_key: chat,
            payload: &self.payload,
        };
        let payload = serde_json::to_vec(&written).expect("an event has text keys, so it has a JSON form");
        NewRecord {
            key: Some(Bytes::copy_from_slice(chat.as_str().as_bytes())),
            payload: payload.into(),
            headers: Vec::new(),
        }
    }

    pub fn decode(record: &LogRecord) -> Result<Self, EventError> {
        Self::from_json(&record.payload)
    }

    /// Reads the event as it stands in the log.
    pub fn from_json(event: &[u8]) -> Result<Self, EventError> {
        let expected = P::EVENT_TYPE;
        let read: Read<P> = match serde_json::from_slice(event) {
            Ok(read) => read,
            Err(source) => return Err(Self::explain(event, source)),
        };
        if read.event_type != expected {
            return Err(EventError::OtherType { expected, found: read.event_type });
        }
        let chat = read.payload.chat_id();
        if chat.as_str() != read.partition_key {
            let chat = chat.clone();
            return Err(EventError::OtherChat { expected, chat, partition_key: read.partition_key });
        }
        Ok(Self { event_id: read.event_id, event_time: read.event_time, payload: read.payload })
    }

    /// An event of another type usually fails because of its payload; the type is what to tell.
    fn explain(payload: &[u8], source: serde_json::Error) -> EventError {
        let expected = P::EVENT_TYPE;
        match serde_json::from_slice::<TypeOnly>(payload) {
            Ok(TypeOnly { event_type }) if event_type != expected => {
                EventError::OtherType { expected, found: event_type }
            }
            _ => EventError::Malformed { expected, source },
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::fmt::Debug;
    use std::time::SystemTime;

    use super::*;

    pub(in crate::model::topics) fn record(payload: impl Into<Bytes>) -> LogRecord {
        LogRecord {
            offset: 0,
            at: SystemTime::UNIX_EPOCH,
            key: None,
            payload: payload.into(),
            headers: Vec::new(),
        }
    }

    /// An event is written exactly like the documented example, and read back from it.
    pub(in crate::model::topics) fn assert_written_as<P>(event: &Event<P>, documented: &str)
    where
        P: Payload + PartialEq + Debug,
    {
        let compact: serde_json::Value = serde_json::from_str(documented).unwrap();
        let written = event.encode();
        assert_eq!(std::str::from_utf8(&written.payload).unwrap(), compact.to_string());
        assert_eq!(written.key.as_deref(), Some(event.payload.chat_id().as_str().as_bytes()));
        assert_eq!(&Event::decode(&record(documented.to_owned())).unwrap(), event);
    }
}

#[cfg(test)]
mod tests {
    use super::testing::record;
    use super::*;
    use crate::model::topics::{ChatCreated, MembershipChanged};

    #[test]
    fn what_is_not_the_event_is_refused_with_the_reason() {
        let refused =
            |payload: &str| ChatCreated::decode(&record(payload.to_owned())).unwrap_err().to_string();
        let changed = MembershipChanged::EXAMPLE;
        assert_eq!(
            refused(changed),
            "the record is a 'MembershipChanged' event and not a ChatCreated; look at which topic is read"
        );
        assert!(refused("{\"event_type\": \"ChatCreated\"}").contains("missing field `event_id`"));
        assert!(refused("zzz").starts_with("the record is not a ChatCreated event: expected value"));
        let elsewhere =
            changed.replace("\"partition_key\": \"chat_abc123\"", "\"partition_key\": \"chat_x\"");
        let error = MembershipChanged::decode(&record(elsewhere)).unwrap_err().to_string();
        assert_eq!(error, "the MembershipChanged event of chat 'chat_abc123' has the partition key 'chat_x'");
        // the payload would fit, the type does not
        let renamed = changed.replace("MembershipChanged", "MembershipForgotten");
        let error = MembershipChanged::decode(&record(renamed)).unwrap_err();
        assert!(matches!(error, EventError::OtherType { .. }), "{error}");
    }

    #[test]
    fn fields_of_a_later_version_are_passed_over() {
        for field in ["\"event_id\"", "\"role\""] {
            let later = MembershipChanged::EXAMPLE.replace(field, &format!("\"reason\": \"moved\", {field}"));
            MembershipChanged::decode(&record(later)).unwrap();
        }
    }
}
