//! One dead letter, as it is kept and shown.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What is known of a letter when it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewLetter {
    pub pipeline: String,
    /// The stage that gave up.
    pub stage: String,
    /// How the error was treated: `retry`, `reject` or `fatal`.
    pub class: String,
    pub error: String,
    pub attempts: u32,
    /// Milliseconds since 1970.
    pub failed_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Written as a string, or as `{"base64": …}` if it is not UTF-8.
    #[serde(with = "payload_form")]
    pub payload: Bytes,
}

/// A letter that waits in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLetter {
    /// `dl_` and a ULID. Later letters have greater ids unless the clock was set back, so ids say which letter and not
    /// how far.
    pub id: String,
    pub queue: String,
    #[serde(flatten)]
    pub letter: NewLetter,
}

/// Payloads are nearly always JSON text, which should stay readable in the file.
mod payload_form {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Binary { base64: String },
    }

    pub(super) fn serialize<S: Serializer>(payload: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(payload) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Form::Binary { base64: STANDARD.encode(payload) }.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(Bytes::from(text)),
            Form::Binary { base64 } => STANDARD.decode(base64).map(Bytes::from).map_err(D::Error::custom),
        }
    }
}
