//! The event of a message that was read from the store: printed only where somebody wants text.

use bytes::Bytes;
use courant_connectors::model::tables::messages::StoredMessage;
use courant_connectors::model::topics::MessagePersisted;
use courant_pipeline::{DecodeError, Native};

/// As the log has it.
pub struct StoredEvent(pub StoredMessage);

impl Native for StoredEvent {
    fn to_json(&self) -> Bytes {
        MessagePersisted::of(&self.0).to_json()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        let event = MessagePersisted::from_json(text).map_err(|error| DecodeError(error.to_string()))?;
        let message = StoredMessage::try_from(&event.payload);
        message.map(Self).map_err(|error| DecodeError(error.to_string()))
    }

    fn weight(&self) -> usize {
        self.0.size()
    }
}
