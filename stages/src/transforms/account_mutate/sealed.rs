//! Commands with secrets, on their way through this stage.
//!
//! A record that a stage gives up on is kept as JSON, and whoever looks at dead letters has no business with codes and
//! hashes. So the payload is exchanged for one that knows the command and shows it without them. Such a letter cannot be
//! run again, since what it lacks is required; the client has long been told to try again by then.

use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::model::commands::Command;
use courant_pipeline::{DecodeError, Json, Native, Payload, Record, StageError};

use crate::commands;

struct Sealed(Arc<Json<Command>>);

impl Native for Sealed {
    fn to_json(&self) -> Bytes {
        let Ok(mut shown) = serde_json::to_value(&self.0.0) else { return Bytes::new() };
        if let Some(fields) = shown.as_object_mut() {
            fields.retain(|name, _| !Command::SECRETS.contains(&name.as_str()));
        }
        Bytes::from(shown.to_string())
    }

    fn from_json(_: &[u8]) -> Result<Self, DecodeError> {
        Err(DecodeError("a sealed command cannot be read again".to_owned()))
    }
}

/// Hides the secrets of a record's command; anything else is left as it is.
pub(super) fn seal(record: &mut Record) {
    if record.payload.as_value::<Sealed>().is_none()
        && let Ok(command) = commands::command(record)
    {
        record.payload = Payload::value(Sealed(command));
    }
}

/// The command of a record, sealed or not.
pub(super) fn open(record: &Record) -> Result<Arc<Json<Command>>, StageError> {
    match record.payload.as_value::<Sealed>() {
        Some(sealed) => Ok(Arc::clone(&sealed.0)),
        None => commands::command(record),
    }
}
