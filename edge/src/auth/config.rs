//! The `[auth]` table; its doc comments are the user's documentation.

use std::path::PathBuf;

use courant_pipeline::units::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How people sign in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuthConfig {
    /// Nobody signs in before they have proved that the phone number is theirs. Without it an account is in use from its
    /// registration on: whoever registers a number first has it.
    pub require_verification: bool,
    /// Put verification codes into the answer of a registration. For development only: whoever registers a number is
    /// then believed to own it.
    pub reveal_codes: bool,
    /// How long a device stays signed in without refreshing its tokens.
    pub session_lifetime: Span,
    /// Whom access tokens are for. Tokens for another audience are refused, even if signed with the same key.
    pub audience: String,
    /// What access tokens are signed with. The first signs, all are good: put a new one first and remove the old one
    /// a quarter of an hour later. Every process that holds sockets or answers requests needs the same. If left out, a
    /// random key is made and kept in the data folder, which is good for a single process only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signing_keys: Vec<SigningKeyConfig>,
}

/// One key, with the place where its secret is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SigningKeyConfig {
    /// Stands in the head of every token it signed; any name that was not used before.
    pub id: String,
    /// The environment variable that holds the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// The file that holds it; a line break at its end does not count. Instead of `secret_env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
}

/// A device that is used once a month stays signed in.
const DEFAULT_SESSION_LIFETIME: Span = Span::secs(30 * 86_400);

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            require_verification: true,
            reveal_codes: false,
            session_lifetime: DEFAULT_SESSION_LIFETIME,
            audience: "courant".to_owned(),
            signing_keys: Vec::new(),
        }
    }
}
