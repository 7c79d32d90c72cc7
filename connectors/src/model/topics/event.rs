//! What all events have in common: the envelope, and how it becomes a record of the log and back.
//!
//! The type says which event it is and the payload what it is about, so neither can be wrong in an [`Event`]; they are
//! written out for readers in other languages, and checked when an event is read.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use crate::log::{LogRecord, NewRecord};
use crate::model::{EventId, Timestamp};

/// What an event tells.
pub trait Payload: Serialize + DeserializeOwned {
    const EVENT_TYPE: &'static str;

    /// The chat or user it is about. Decides the partition: what happens to one of them is read in order.
    fn key(&self) -> &str;
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
    #[error("the {expected} event of '{key}' has the partition key '{partition_key}'")]
    OtherKey { expected: &'static str, key: String, partition_key: String },
}

/// The event as it is written. The order of the fields is the documented one.
#[derive(Serialize)]
struct Written<'a, P> {
    event_type: &'static str,
    event_id: &'a EventId,
    event_time: Timestamp,
    partition_key: &'a str,
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
        let key = Some(Bytes::copy_from_slice(self.payload.key().as_bytes()));
        NewRecord { key, payload: self.to_json(), headers: Vec::new() }
    }

    /// The event as it stands in the log.
    pub fn to_json(&self) -> Bytes {
        let written = Written {
            event_type: P::EVENT_TYPE,
            event_id: &self.event_id,
            event_time: self.event_time,
            partition_key: self.payload.key(),
            payload: &self.payload,
        };
        serde_json::to_vec(&written).expect("an event has text keys, so it has a JSON form").into()
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
        let key = read.payload.key();
        if key != read.partition_key {
            let key = key.to_owned();
            return Err(EventError::OtherKey { expected, key, partition_key: read.partition_key });
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

/// The id of what happened at a moment to something: the same whenever it is told again.
pub(super) fn derived_id(at: Timestamp, what: &[&str]) -> EventId {
    let mut hash = Sha256::new();
    for part in what {
        // The length goes first, so that no two lists of parts are the same text.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut random = [0; 16];
    random.copy_from_slice(&hash.finalize()[..16]);
    EventId::from(format!("evt_{}", Ulid::from_parts(at.unix_millis(), u128::from_be_bytes(random))))
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
        assert_eq!(written.key.as_deref(), Some(event.payload.key().as_bytes()));
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
        assert_eq!(error, "the MembershipChanged event of 'chat_abc123' has the partition key 'chat_x'");
        // the payload would fit, the type does not
        let renamed = changed.replace("MembershipChanged", "MembershipForgotten");
        let error = MembershipChanged::decode(&record(renamed)).unwrap_err();
        assert!(matches!(error, EventError::OtherType { .. }), "{error}");
    }

    #[test]
    fn a_derived_id_is_of_its_moment_and_of_what_happened() {
        let at = Timestamp::from_unix_millis(1_769_783_400_000);
        let id = derived_id(at, &["chat_1", "user_1"]);
        assert_eq!(id, derived_id(at, &["chat_1", "user_1"]));
        assert_ne!(id, derived_id(at, &["chat_1u", "ser_1"]));
        assert_ne!(id, derived_id(Timestamp::from_unix_millis(1), &["chat_1", "user_1"]));
        let ulid = Ulid::from_string(id.as_str().strip_prefix("evt_").unwrap()).unwrap();
        assert_eq!(ulid.timestamp_ms(), at.unix_millis());
    }

    #[test]
    fn fields_of_a_later_version_are_passed_over() {
        for field in ["\"event_id\"", "\"role\""] {
            let later = MembershipChanged::EXAMPLE.replace(field, &format!("\"reason\": \"moved\", {field}"));
            MembershipChanged::decode(&record(later)).unwrap();
        }
    }
}
