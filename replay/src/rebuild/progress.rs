//! How far a rebuild is.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub phase: Phase,
    /// Records of this phase, of this run.
    pub done: u64,
    /// Of how many, where that is known; a guess.
    pub of: Option<u64>,
    /// What it waits for, if it does not move.
    pub trouble: Option<String>,
}

/// What is being done, in this order; catching up and comparing may come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    Building,
    Expecting,
    Walking,
    CatchingUp,
    /// The live pipeline stands still.
    Swapping,
}

impl Phase {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Expecting => "asking the authority",
            Self::Walking => "walking what was built",
            Self::CatchingUp => "catching up",
            Self::Swapping => "swapping",
        }
    }
}
