//! Records kept aside with the reason why, so that nobody has to guess later.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Class, StageError};
use crate::record::Record;

/// A record that a stage could not process, everything needed to understand it and to run it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub pipeline: String,
    /// The stage that gave up; a redrive starts there.
    pub stage: String,
    /// The queue it is kept in: the stage's `dead_letter`, or the pipeline's name.
    pub queue: String,
    pub class: Class,
    pub error: String,
    pub attempts: u32,
    /// Milliseconds since 1970.
    pub failed_at: u64,
    pub key: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// As JSON if it had that form, else as it was read.
    pub payload: Bytes,
}

impl DeadLetter {
    pub(crate) fn of(record: &Record, error: &StageError, attempts: u32, at: Where<'_>) -> Self {
        Self {
            pipeline: at.pipeline.to_owned(),
            stage: at.stage.to_owned(),
            queue: at.queue.to_owned(),
            class: error.class,
            error: error.to_string(),
            attempts,
            failed_at: crate::clock::unix_millis(),
            key: record.key.as_ref().map(|key| key.as_str().to_owned()),
            headers: record.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            payload: record.payload.to_json(),
        }
    }
}

/// The place a record died at.
#[derive(Clone, Copy)]
pub(crate) struct Where<'a> {
    pub(crate) pipeline: &'a str,
    pub(crate) stage: &'a str,
    pub(crate) queue: &'a str,
}

/// Where dead letters are kept.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Returns once all are durable. Retried by the runtime, so a letter may come twice.
    async fn put(&self, letters: Vec<DeadLetter>) -> Result<(), StageError>;
}
