//! Why live state did not do as asked.

use crate::store::Remedy;

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("live state is not available: {0}")]
    Unavailable(String),
    #[error("{0}")]
    Invalid(String),
    #[error("live state refused: {0}")]
    Refused(String),
}

impl LiveError {
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Unavailable(_) => Remedy::Retry,
            Self::Invalid(_) => Remedy::GiveUp,
            Self::Refused(_) => Remedy::Stop,
        }
    }
}
