//! Who is asking, and how they prove it.
//!
//! Access tokens ([`Tokens`]) are signed and looked at without the store; refresh tokens are random and known to the
//! store as a hash only. Passwords are hashed here, so that neither a pipeline nor the log ever sees one.

mod config;
mod hs256;
mod passwords;
mod phone;
mod refresh;
mod signing_keys;
mod tokens;

use courant_connectors::model::commands::Refusal;
use courant_connectors::model::{DeviceId, SessionId, UserId};

pub use config::{AuthConfig, SigningKeyConfig};
pub use passwords::Passwords;
pub(crate) use passwords::{LONGEST_PASSWORD, SHORTEST_PASSWORD};
pub(crate) use phone::{CODE_LIFETIME, PhoneNumber, VerificationCode};
pub(crate) use refresh::RefreshToken;
pub use signing_keys::SigningKeyError;
pub use tokens::{ACCESS_LIFETIME, Tokens};

/// Somebody whose access token was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub user_id: UserId,
    pub session_id: SessionId,
    pub device_id: DeviceId,
}

/// Verifies access tokens.
pub trait Authenticate: Send + Sync {
    /// Who the token was given to, if it is ours and good now. Does not ask whether the session was ended since.
    fn authenticate(&self, access_token: &str) -> Result<Caller, Refusal>;
}
