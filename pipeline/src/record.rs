//! One unit of flow: a payload, the key that orders it, and the handle that answers for it.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

use crate::payload::Payload;

/// What orders records: those of one key are handled in the order they were read.
///
/// The hash travels with the text, since every lane choice and every parked-key look-up needs it. One word wide:
/// records are moved far more often than their keys are read.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<HashedText>);

#[derive(PartialEq, Eq)]
struct HashedText {
    hash: u64,
    text: Box<str>,
}

impl Key {
    pub fn new(text: impl Into<Box<str>>) -> Self {
        let text = text.into();
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write(text.as_bytes());
        Self(Arc::new(HashedText { hash: hasher.finish(), text }))
    }

    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    pub(crate) fn hash(&self) -> u64 {
        self.0.hash
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Facts about a record that are not part of its payload, such as where it came from.
///
/// Most records have none, so an empty set costs one word.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
#[allow(
    clippy::box_collection,
    reason = "a thin pointer: records are moved far more often than headers are read"
)]
pub struct Headers(Option<Box<Vec<Header>>>);

type Header = (Cow<'static, str>, Arc<str>);

impl Headers {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Sets `name`, replacing an earlier value.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) {
        let (name, value) = (name.into(), value.into());
        let all = self.0.get_or_insert_default();
        match all.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value,
            None => all.push((name, value)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|all| all.iter()).map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// A record on its way through a pipeline. Who answers for it is the runtime's business: a stage can neither lose nor
/// double that.
#[derive(Debug, Clone)]
pub struct Record {
    /// Records without a key share one lane, in order.
    pub key: Option<Key>,
    pub payload: Payload,
    pub headers: Headers,
    /// What a request/response source answers with; attached by the stage that knows it.
    pub receipt: Option<Box<Payload>>,
}

impl Record {
    #[inline]
    pub fn new(payload: impl Into<Payload>) -> Self {
        Self { key: None, payload: payload.into(), headers: Headers::default(), receipt: None }
    }

    #[must_use]
    pub fn with_key(mut self, key: impl Into<Box<str>>) -> Self {
        self.key = Some(Key::new(key));
        self
    }

    /// Like [`with_key`](Self::with_key), for several records of one key.
    #[must_use]
    pub fn with_shared_key(mut self, key: &Key) -> Self {
        self.key = Some(key.clone());
        self
    }

    /// Another record with the same key and headers, for [`Slot::replace`](crate::Slot::replace).
    #[must_use]
    pub fn derive(&self, payload: impl Into<Payload>) -> Self {
        Self {
            key: self.key.clone(),
            payload: payload.into(),
            headers: self.headers.clone(),
            receipt: self.receipt.clone(),
        }
    }

    pub(crate) fn key_hash(&self) -> u64 {
        self.key.as_ref().map_or(0, Key::hash)
    }

    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.payload.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stage moves records; growing one by a field slows all of them.
    #[test]
    fn a_record_stays_small() {
        assert!(size_of::<Record>() <= 56, "{}", size_of::<Record>());
        assert!(size_of::<crate::batch::Slot>() <= 96, "{}", size_of::<crate::batch::Slot>());
    }

    #[test]
    fn headers_replace_by_name() {
        let mut headers = Headers::default();
        headers.set("origin", "conn_1");
        headers.set("origin", "conn_2");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("origin", "conn_2")]);
    }
}
