//! Who is asking.

mod config;

use courant_connectors::model::commands::Refusal;
use courant_connectors::model::{DeviceId, SessionId, UserId};

pub use config::AuthConfig;

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
