//! The event of a message that was read from the store: printed only where somebody wants text.

use bytes::Bytes;
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::MessagePersisted;
use courant_pipeline::{DecodeError, Native};

/// As the log has it.
pub struct StoredEvent(pub MessagePersisted);

impl StoredEvent {
    pub fn of(message: Message) -> Self {
        Self(MessagePersisted::of(message))
    }
}

impl Native for StoredEvent {
    fn to_json(&self) -> Bytes {
        self.0.to_json()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        MessagePersisted::from_json(text).map(Self).map_err(|error| DecodeError(error.to_string()))
    }

    fn weight(&self) -> usize {
        size_of::<Self>() + self.0.payload.content.len()
    }
}
