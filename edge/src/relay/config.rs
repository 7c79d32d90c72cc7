//! The `[edge.relay]` table; its doc comments are the user's documentation.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How commands get from the processes that hold sockets to those that carry them out. Not needed in a single process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RelayConfig {
    /// Take commands of other processes here, for the pipelines of this one. On a private network: commands say whom
    /// they are from, and are believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Hand commands that no pipeline of this process serves to these, such as `["ingest-1:7400", "ingest-2:7400"]`. Those
    /// of one chat go to the same, while it can be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// The environment variable that holds what both sides must know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
    /// The file that holds it; a line break at its end does not count. Instead of `secret_env`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum RelaySecretError {
    #[error("edge.relay needs one of 'secret_env' and 'secret_file', the same secret on both sides")]
    NotNamed,
    #[error("the environment variable '{0}' should hold the secret of edge.relay; set it")]
    NotSet(String),
    #[error("cannot read the secret of edge.relay from '{}': {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "the secret of edge.relay is shorter than {SHORTEST} characters; make one with `openssl rand -base64 48`"
    )]
    TooShort,
}

/// Nobody guesses this many characters.
const SHORTEST: usize = 16;

impl RelayConfig {
    pub fn secret(&self) -> Result<Arc<str>, RelaySecretError> {
        let secret = match (&self.secret_env, &self.secret_file) {
            (Some(variable), None) => {
                std::env::var(variable).map_err(|_| RelaySecretError::NotSet(variable.clone()))?
            }
            (None, Some(path)) => std::fs::read_to_string(path)
                .map_err(|source| RelaySecretError::Unreadable { path: path.clone(), source })?,
            _ => return Err(RelaySecretError::NotNamed),
        };
        let secret = secret.trim_end();
        if secret.len() < SHORTEST { Err(RelaySecretError::TooShort) } else { Ok(secret.into()) }
    }
}
