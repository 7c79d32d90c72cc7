//! Closing the sockets of sessions that have ended.
//!
//! Their connections are taken out of live state, so that nothing more is delivered to them, and every gateway is told
//! to close them. Both are tried a few times and then left to the gateways, which ask the store before they
//! register a connection again: a sign-out does not fail because live state does.

use std::time::Duration;

use courant_connectors::live::{Channel, Connections as _, LiveError, Publish as _};
use courant_connectors::model::frames::Revoked;
use courant_connectors::model::tables::sessions::Session;
use courant_connectors::model::{DeviceId, SessionId, UserId};
use tokio::time::{sleep, timeout};

use super::Accounts;

const TRIES: u32 = 3;
/// Between one try and the next: a server that was restarted is back by then, or it takes longer than a client waits.
const PAUSE: Duration = Duration::from_millis(200);
/// For one try. Two sockets away, so this is a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sessions of a user that have ended.
#[derive(Clone, Copy)]
pub(super) enum Ended<'a> {
    All,
    These(&'a [Session]),
    /// One of which only the name is known.
    Gone(&'a SessionId),
}

impl Ended<'_> {
    fn is_on(&self, device: &DeviceId) -> bool {
        match self {
            Self::All => true,
            Self::These(sessions) => sessions.iter().any(|session| session.device_id == *device),
            Self::Gone(_) => false,
        }
    }

    fn session_ids(&self) -> Vec<SessionId> {
        match self {
            Self::All => Vec::new(),
            Self::These(sessions) => sessions.iter().map(|session| session.session_id.clone()).collect(),
            Self::Gone(session) => vec![(*session).clone()],
        }
    }
}

impl Accounts {
    pub(super) async fn cut_off(&self, user: &UserId, ended: Ended<'_>) {
        let mut why = "it does not answer".to_owned();
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(PAUSE).await;
            }
            match timeout(PATIENCE, self.try_to_cut_off(user, ended)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => why = error.to_string(),
                Err(_elapsed) => {}
            }
        }
        tracing::warn!(%user, error = %why, "sessions ended and live state cannot be told, their sockets close later");
    }

    async fn try_to_cut_off(&self, user: &UserId, ended: Ended<'_>) -> Result<(), LiveError> {
        let connections = self.live.connections_of(std::slice::from_ref(user)).await?;
        let theirs: Vec<_> =
            connections.into_iter().flatten().filter(|connection| ended.is_on(&connection.device)).collect();
        if !theirs.is_empty() {
            self.live.unregister(&theirs).await?;
        }
        let revoked = Revoked { user_id: user.clone(), session_ids: ended.session_ids() };
        let told = serde_json::to_vec(&revoked).map_err(|error| LiveError::Invalid(error.to_string()))?;
        self.live.publish(&[(Channel::revoked_sessions(), told.into())]).await?;
        Ok(())
    }
}
