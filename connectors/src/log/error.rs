//! Why a log did not do as asked.

use super::record::{Topic, TopicPartition};
use crate::store::Remedy;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("there is no topic '{topic}'; create it with 'courant topics create'")]
    NoSuchTopic { topic: Topic },
    #[error("topic '{}' has no partition {}", .0.topic, .0.partition)]
    NoSuchPartition(TopicPartition),
    /// Removed by retention, or not written yet.
    #[error("{partition} holds offsets from {low} up to {high}, and not {offset}")]
    OutOfRange { partition: TopicPartition, offset: u64, low: u64, high: u64 },
    /// Another member has the partition now.
    #[error("{0} is not assigned to this member any more")]
    NotAssigned(TopicPartition),
    #[error("a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// Not tried, because an earlier record of the same key failed.
    #[error("an earlier record of the same key failed")]
    EarlierFailed,
    /// It may or may not have been appended.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// Nothing was appended.
    #[error("the log is not available: {0}")]
    Unavailable(String),
    #[error("this handle may not {access} '{name}'")]
    NotAllowed { access: &'static str, name: String },
    #[error("{0}")]
    Invalid(String),
    /// What is stored cannot be read; it was not served.
    #[error("the stored data is damaged: {0}")]
    Damaged(String),
}

impl LogError {
    /// Appending twice is allowed, since consumers recognize events they know: an unknown outcome is retried.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Unavailable(_) | Self::UnknownOutcome(_) | Self::EarlierFailed => Remedy::Retry,
            Self::TooLarge { .. } | Self::Invalid(_) | Self::OutOfRange { .. } | Self::NotAssigned(_) => {
                Remedy::GiveUp
            }
            Self::NoSuchTopic { .. }
            | Self::NoSuchPartition(_)
            | Self::NotAllowed { .. }
            | Self::Damaged(_) => Remedy::Stop,
        }
    }
}
