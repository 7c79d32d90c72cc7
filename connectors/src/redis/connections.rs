//! `connection:…`, `user_connections:…` and `gateway_connections:…`.
//!
//! A set outlives its members: it lives as long as the youngest of them. So every list is checked against the
//! metadata, and members without any are taken out. Between looking and taking out, the connection may have come
//! back; so after taking it out one looks again, and puts it back if it is there. That holds because registering
//! writes the metadata before the sets.

use std::collections::HashMap;

use async_trait::async_trait;
use redis::{Cmd, cmd};
use serde::{Deserialize, Serialize};

use super::{Redis, keys};
use crate::live::{Connection, Connections, Result};
use crate::model::{ConnectionId, DeviceId, GatewayId, UserId};

/// Connections that one script adds to a set, or one transaction forgets: Lua's stack holds some 8000 members, and
/// nobody else is served meanwhile.
const CONNECTIONS_AT_ONCE: usize = 1000;

/// Adds members to a set and gives it its time, so that no crash leaves a set that never ends.
const ADD_FOR: &str =
    "redis.call('SADD', KEYS[1], unpack(ARGV, 2)) return redis.call('PEXPIRE', KEYS[1], ARGV[1])";

/// The JSON under `connection:…`.
#[derive(Serialize, Deserialize)]
struct StoredConnection {
    user_id: UserId,
    device_id: DeviceId,
    gateway_id: GatewayId,
    connected_at: String,
}

/// A member of a set that has no metadata.
struct Stale {
    set: String,
    id: ConnectionId,
}

#[async_trait]
impl Connections for Redis {
    async fn register(&self, connection: &Connection) -> Result<()> {
        let sets = [keys::gateway_connections(&connection.gateway), keys::user_connections(&connection.user)];
        let metadata = self.set_metadata(connection);
        if self.0.link.is_cluster() {
            let add = |set: &String| self.add_for(set, [&connection.id]);
            self.0.link.one::<()>(&metadata).await?;
            self.0.link.each::<()>(sets.iter().map(add).collect()).await?;
            return Ok(());
        }
        let mut commands = vec![metadata];
        for set in &sets {
            commands.push(cmd("SADD").arg(set).arg(connection.id.as_str()).take());
            commands.push(cmd("PEXPIRE").arg(set).arg(self.connection_millis()).take());
        }
        self.0.link.at_once(&commands).await
    }

    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>> {
        let extend = |connection: &Connection| {
            cmd("PEXPIRE").arg(keys::connection(&connection.id)).arg(self.connection_millis()).take()
        };
        let extended: Vec<bool> = self.0.link.each(connections.iter().map(extend).collect()).await?;
        let (mut sets, mut unknown) = (HashMap::<String, Vec<&ConnectionId>>::new(), Vec::new());
        for (connection, extended) in connections.iter().zip(extended) {
            if extended {
                sets.entry(keys::user_connections(&connection.user)).or_default().push(&connection.id);
                sets.entry(keys::gateway_connections(&connection.gateway)).or_default().push(&connection.id);
            } else {
                unknown.push(connection.id.clone());
            }
        }
        // Added again and not only extended: a set may have been evicted although its members' metadata was not.
        let add = |(set, ids): (&String, &Vec<&ConnectionId>)| {
            ids.chunks(CONNECTIONS_AT_ONCE)
                .map(|ids| self.add_for(set, ids.iter().copied()))
                .collect::<Vec<_>>()
        };
        self.0.link.each::<()>(sets.iter().flat_map(add).collect()).await?;
        Ok(unknown)
    }

    async fn unregister(&self, connections: &[Connection]) -> Result<()> {
        for connections in connections.chunks(CONNECTIONS_AT_ONCE) {
            let from_sets = connections.iter().flat_map(|connection| {
                let sets = [
                    keys::user_connections(&connection.user),
                    keys::gateway_connections(&connection.gateway),
                ];
                sets.map(|set| cmd("SREM").arg(set).arg(connection.id.as_str()).take())
            });
            let metadata =
                connections.iter().map(|connection| cmd("DEL").arg(keys::connection(&connection.id)).take());
            if self.0.link.is_cluster() {
                self.0.link.each::<()>(from_sets.collect()).await?;
                self.0.link.each::<()>(metadata.collect()).await?;
            } else {
                self.0.link.at_once(&from_sets.chain(metadata).collect::<Vec<_>>()).await?;
            }
        }
        Ok(())
    }

    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        let sets: Vec<String> = users.iter().map(keys::user_connections).collect();
        let found = self.alive(&sets).await?;
        // One that changed hands is still in the set of its former user.
        let of_user = |(found, user): (Vec<Connection>, &UserId)| {
            found.into_iter().filter(|connection| connection.user == *user).collect()
        };
        Ok(found.into_iter().zip(users).map(of_user).collect())
    }

    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>> {
        let found = self.alive(&[keys::gateway_connections(gateway)]).await?;
        let here = found.into_iter().flatten().filter(|connection| connection.gateway == *gateway);
        Ok(here.map(|connection| connection.id).collect())
    }
}

impl Redis {
    /// The connections in each set; members without metadata are taken out on the way.
    async fn alive(&self, sets: &[String]) -> Result<Vec<Vec<Connection>>> {
        let members: Vec<Vec<String>> =
            self.0.link.each(sets.iter().map(|set| cmd("SMEMBERS").arg(set).take()).collect()).await?;
        let ids: Vec<Vec<ConnectionId>> =
            members.into_iter().map(|set| set.into_iter().map(Into::into).collect()).collect();
        let mut metadata = self.metadata(ids.iter().flatten()).await?.into_iter();
        let (mut alive, mut stale) = (Vec::with_capacity(sets.len()), Vec::new());
        for (set, ids) in sets.iter().zip(ids) {
            let mut found = Vec::with_capacity(ids.len());
            for (id, connection) in ids.into_iter().zip(metadata.by_ref()) {
                match connection {
                    Some(connection) => found.push(connection),
                    None => stale.push(Stale { set: set.clone(), id }),
                }
            }
            alive.push(found);
        }
        // Whoever asked has the answer; members that stay are met again by the next one who asks.
        if let Err(error) = self.take_out(stale).await {
            tracing::debug!(%error, "stale connections stay in their sets");
        }
        Ok(alive)
    }

    async fn take_out(&self, stale: Vec<Stale>) -> Result<()> {
        if stale.is_empty() {
            return Ok(());
        }
        let remove = |stale: &Stale| cmd("SREM").arg(&stale.set).arg(stale.id.as_str()).take();
        self.0.link.each::<()>(stale.iter().map(remove).collect()).await?;
        let metadata = self.metadata(stale.iter().map(|stale| &stale.id)).await?;
        let back = stale.iter().zip(metadata).filter(|(_, connection)| connection.is_some());
        let restore = |(stale, _): (&Stale, _)| self.add_for(&stale.set, [&stale.id]);
        self.0.link.each::<()>(back.map(restore).collect()).await?;
        Ok(())
    }

    async fn metadata<'a>(
        &self,
        ids: impl Iterator<Item = &'a ConnectionId> + Clone,
    ) -> Result<Vec<Option<Connection>>> {
        let get = ids.clone().map(|id| cmd("GET").arg(keys::connection(id)).take());
        let stored: Vec<Option<String>> = self.0.link.each(get.collect()).await?;
        Ok(ids.zip(stored).map(|(id, json)| parse(id, &json?)).collect())
    }

    fn set_metadata(&self, connection: &Connection) -> Cmd {
        let stored = StoredConnection {
            user_id: connection.user.clone(),
            device_id: connection.device.clone(),
            gateway_id: connection.gateway.clone(),
            connected_at: humantime::format_rfc3339_millis(connection.connected_at).to_string(),
        };
        let json = serde_json::to_string(&stored).expect("text fields have a JSON form");
        cmd("SET")
            .arg(keys::connection(&connection.id))
            .arg(json)
            .arg("PX")
            .arg(self.connection_millis())
            .take()
    }

    fn add_for<'a>(&self, set: &str, ids: impl IntoIterator<Item = &'a ConnectionId>) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(ADD_FOR).arg(1).arg(set).arg(self.connection_millis());
        for id in ids {
            command.arg(id.as_str());
        }
        command
    }

    fn connection_millis(&self) -> u64 {
        super::millis(self.0.limits.connection_ttl)
    }
}

/// What cannot be read counts as not there: it ends by itself, and one entry must not stop a delivery to others.
fn parse(id: &ConnectionId, json: &str) -> Option<Connection> {
    let stored: StoredConnection = serde_json::from_str(json)
        .inspect_err(
            |error| tracing::warn!(connection = %id, %error, "ignored a connection that cannot be read"),
        )
        .ok()?;
    let connected_at = humantime::parse_rfc3339_weak(&stored.connected_at)
        .inspect_err(
            |error| tracing::warn!(connection = %id, %error, "ignored a connection that cannot be read"),
        )
        .ok()?;
    Some(Connection {
        id: id.clone(),
        user: stored.user_id,
        device: stored.device_id,
        gateway: stored.gateway_id,
        connected_at,
    })
}
