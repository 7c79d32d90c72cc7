//! The connection to a single server.
//!
//! The client of the `redis` crate connects again when a connection is lost, and only then. A refusal that it met while
//! connecting it repeats for ever, even if the login is there a moment later; and it stays with a server that has
//! become a replica, although the address may lead to another by now. So after such an answer a new one takes its
//! place; what is under way ends on the old one.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisError, RedisResult};
use tokio::time::Instant;

use super::RedisConfig;
use super::config::Servers;
use super::error::is_stuck;
use super::link::FIRST_PAUSE;

/// Attempts before those who wait are told; the next call begins anew. About half a second in all.
const ATTEMPTS: usize = 3;
/// At least this long between two clients: a server that goes on refusing has other things to do.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Single {
    client: Client,
    settings: ConnectionManagerConfig,
    /// Held for a look or an exchange only.
    current: Mutex<Current>,
}

struct Current {
    connection: ConnectionManager,
    since: Instant,
}

impl Current {
    fn new(connection: ConnectionManager) -> Self {
        Self { connection, since: Instant::now() }
    }
}

impl Single {
    pub(super) async fn open(servers: &Servers, config: &RedisConfig) -> RedisResult<Self> {
        let client = Client::open(servers.first().clone())?;
        let settings = ConnectionManagerConfig::new()
            .set_min_delay(FIRST_PAUSE)
            .set_number_of_retries(ATTEMPTS)
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.command_timeout));
        let connection = ConnectionManager::new_with_config(client.clone(), settings.clone()).await?;
        Ok(Self { client, settings, current: Mutex::new(Current::new(connection)) })
    }

    pub(super) fn connection(&self) -> ConnectionManager {
        self.lock().connection.clone()
    }

    /// Passes on what was answered over the connection, which is given up if only another can do better.
    pub(super) async fn heed<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        answer.await.inspect_err(|error| {
            if is_stuck(error) {
                self.replace(error);
            }
        })
    }

    fn replace(&self, why: &RedisError) {
        let mut current = self.lock();
        if current.since.elapsed() < PAUSE {
            return;
        }
        // It connects when it is first used. Making it fails only while the runtime ends.
        let fresh = ConnectionManager::new_lazy_with_config(self.client.clone(), self.settings.clone());
        if let Ok(fresh) = fresh {
            let server = self.client.get_connection_info().addr();
            tracing::warn!(%server, error = %why, "redis refuses, connecting anew");
            *current = Current::new(fresh);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
