//! What flows between the stage that finds out whom an event is for and the one that sends it there, and how it is sent.

mod send;

use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::model::{ChatId, UserId};
use courant_pipeline::{DecodeError, Native};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub(crate) use send::{Outgoing, send, send_access};

/// A frame and whom it is for. The connection that it came from is in the record's headers, as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addressed {
    pub chat_id: ChatId,
    /// Of a message.
    pub sequence: Option<u64>,
    /// One list for all records about a chat that were resolved together.
    pub users: Arc<[UserId]>,
    /// The frame's JSON, as clients get it.
    pub frame: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    chat_id: ChatId,
    sequence: Option<u64>,
    user_ids: Arc<[UserId]>,
    #[serde(borrow)]
    frame: &'a RawValue,
}

impl Native for Addressed {
    fn to_json(&self) -> Bytes {
        let write = || {
            let frame = serde_json::from_slice(&self.frame)?;
            let (chat_id, user_ids) = (self.chat_id.clone(), Arc::clone(&self.users));
            serde_json::to_vec(&Written { chat_id, sequence: self.sequence, user_ids, frame })
        };
        write().map(Bytes::from).unwrap_or_default()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        let read: Written<'_> =
            serde_json::from_slice(text).map_err(|error| DecodeError(format!("not a delivery: {error}")))?;
        Ok(Self {
            chat_id: read.chat_id,
            sequence: read.sequence,
            users: read.user_ids,
            frame: Bytes::copy_from_slice(read.frame.get().as_bytes()),
        })
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_reads_back_from_a_dead_letter() {
        let addressed = Addressed {
            chat_id: "chat_1".into(),
            sequence: Some(7),
            users: ["user_1", "user_2"].map(UserId::from).into(),
            frame: Bytes::from_static(br#"{"type":"message"}"#),
        };
        let json = addressed.to_json();
        assert_eq!(
            json,
            r#"{"chat_id":"chat_1","sequence":7,"user_ids":["user_1","user_2"],"frame":{"type":"message"}}"#
        );
        assert_eq!(Addressed::from_json(&json).unwrap(), addressed);
        assert!(Addressed::from_json(b"{nope").is_err());
    }
}
