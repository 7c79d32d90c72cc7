//! Why live state did not do as asked.

use smol_str::SmolStr;

use crate::store::Remedy;

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("live state is not available: {0}")]
    Unavailable(String),
    #[error("{0}")]
    Invalid(String),
    #[error("live state refused: {0}")]
    Refused(String),
    /// More than this handle was given.
    #[error("this handle may not {access} '{name}'")]
    NotAllowed { access: &'static str, name: SmolStr },
}

impl LiveError {
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Unavailable(_) => Remedy::Retry,
            Self::Invalid(_) => Remedy::GiveUp,
            Self::Refused(_) | Self::NotAllowed { .. } => Remedy::Stop,
        }
    }
}
