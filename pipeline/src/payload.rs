//! What a record carries: JSON text as it was read, or a decoded Rust value.
//!
//! Neighbouring stages that agree on a Rust type hand the value on without printing and parsing it again; a
//! stage that meets text decodes it where it needs it. Every payload can be shown as JSON, so taps, dead
//! letters and tests work on any record.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A decoded value that records can carry.
pub trait Native: Any + Send + Sync {
    fn to_json(&self) -> Bytes;

    fn from_json(text: &[u8]) -> Result<Self, DecodeError>
    where
        Self: Sized;

    /// Roughly what it weighs, for batch limits. One that holds much elsewhere says so.
    fn weight(&self) -> usize {
        size_of_val(self)
    }
}

/// The payload is not what the stage takes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

#[derive(Clone)]
pub enum Payload {
    /// JSON text, not yet looked at; may be anything.
    Text(Bytes),
    /// A decoded value.
    Value(Arc<dyn Native>),
}

impl Payload {
    pub fn value<T: Native>(value: T) -> Self {
        Self::Value(Arc::new(value))
    }

    pub fn from_static(text: &'static str) -> Self {
        Self::Text(Bytes::from_static(text.as_bytes()))
    }

    /// The payload as JSON text; free if it is text already.
    pub fn to_json(&self) -> Bytes {
        match self {
            Self::Text(text) => text.clone(),
            Self::Value(value) => value.to_json(),
        }
    }

    /// The payload if it is a `T` already: looking at it costs nothing.
    pub fn as_value<T: Native>(&self) -> Option<&T> {
        match self {
            Self::Text(_) => None,
            Self::Value(value) => (value.as_ref() as &dyn Any).downcast_ref(),
        }
    }

    /// The payload as `T`: shared if it is one already, decoded otherwise.
    pub fn decode<T: Native>(&self) -> Result<Arc<T>, DecodeError> {
        match self {
            Self::Text(text) => T::from_json(text).map(Arc::new),
            Self::Value(value) => {
                let any: Arc<dyn Any + Send + Sync> = Arc::clone(value) as _;
                match any.downcast::<T>() {
                    Ok(value) => Ok(value),
                    Err(_other_type) => T::from_json(&value.to_json()).map(Arc::new),
                }
            }
        }
    }

    /// Roughly what it weighs, for batch limits.
    pub fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Value(value) => value.weight(),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Text(Bytes::new())
    }
}

impl From<Bytes> for Payload {
    fn from(text: Bytes) -> Self {
        Self::Text(text)
    }
}

impl From<String> for Payload {
    fn from(text: String) -> Self {
        Self::Text(Bytes::from(text))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.to_json()))
    }
}

/// Any type with a JSON form as a payload: for values that those who make and those who read records both know, while
/// the crate that defines them knows no pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Native for Json<T> {
    fn to_json(&self) -> Bytes {
        serde_json::to_vec(&self.0).map(Bytes::from).unwrap_or_default()
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(text).map(Self).map_err(|error| DecodeError(error.to_string()))
    }
}

/// Any JSON document, for stages that want no schema.
impl Native for serde_json::Value {
    fn to_json(&self) -> Bytes {
        Bytes::from(self.to_string())
    }

    fn from_json(text: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(text).map_err(|error| DecodeError(format!("not JSON: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_value_is_shared_and_text_is_decoded() {
        let shared = Payload::value(json!({"n": 1}));
        let (one, two) = (shared.decode::<Value>().unwrap(), shared.decode::<Value>().unwrap());
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(*Payload::from_static(r#"{"n":1}"#).decode::<Value>().unwrap(), json!({"n": 1}));
    }

    #[test]
    fn garbage_is_an_error_and_not_a_panic() {
        assert!(Payload::from_static("{nope").decode::<Value>().is_err());
    }
}
