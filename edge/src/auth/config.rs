//! The `[auth]` table; its doc comments are the user's documentation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How people sign in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Nobody signs in before they have proved that the phone number is theirs.
    pub require_verification: bool,
    /// Put verification codes into the answer of a registration. For development only: whoever registers a number is
    /// then believed to own it.
    pub reveal_codes: bool,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self { require_verification: true, reveal_codes: false }
    }
}
