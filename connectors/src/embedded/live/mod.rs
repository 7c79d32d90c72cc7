//! Live state in this process's memory: gone with the process, which costs its clients a reconnect.
//!
//! One plain mutex per key family. Every critical section is a few map operations and never waits, so a lock is held
//! for microseconds; sharding the maps would buy nothing before thousands of sockets reconnect at the same moment on
//! many cores, and would cost the guarantee that a whole connection appears at once.
//!
//! Time is tokio's, so tests can pause it. What is expired is never returned; it is removed when its map has doubled
//! since the last sweep (see [`expiring`]), so memory stays within twice what is alive and no task has to run.

mod channels;
mod connections;
mod expiring;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use smol_str::{SmolStr, ToSmolStr};
use tokio::time::Instant;

use crate::live::{
    Channel, Connection, Connections, Count, Counters, FillToken, Limits, Listener, MembershipCache,
    Presence, PresenceBoard, Publish, Result, Subscribe, check_window,
};
use crate::model::{ChatId, ConnectionId, GatewayId, UserId};
use channels::Channels;
use connections::ConnectionTable;
use expiring::Expiring;

/// Clones share the state.
#[derive(Clone)]
pub struct MemoryLive(Arc<Families>);

struct Families {
    limits: Limits,
    connections: Mutex<ConnectionTable>,
    members: Mutex<MemberTable>,
    presence: Mutex<Expiring<UserId, Presence>>,
    counters: Mutex<Expiring<SmolStr, u64>>,
    channels: Arc<Channels>,
}

#[derive(Default)]
struct MemberTable {
    chats: Expiring<ChatId, CachedChat>,
    permissions: u64,
}

#[derive(Default)]
struct CachedChat {
    /// Those who fill share it; gone with the first fill and with an invalidation.
    permission: Option<u64>,
    members: Option<BTreeSet<UserId>>,
}

impl MemoryLive {
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> Self {
        Self(Arc::new(Families {
            limits,
            connections: Mutex::default(),
            members: Mutex::default(),
            presence: Mutex::default(),
            counters: Mutex::default(),
            channels: Arc::default(),
        }))
    }
}

impl Default for MemoryLive {
    fn default() -> Self {
        Self::new()
    }
}

/// A panic in between leaves whole entries, so what is there can still be used.
fn lock<T>(family: &Mutex<T>) -> MutexGuard<'_, T> {
    family.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Connections for MemoryLive {
    async fn register(&self, connection: &Connection) -> Result<()> {
        lock(&self.0.connections).insert(connection.clone(), Instant::now() + self.0.limits.connection_ttl);
        Ok(())
    }

    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>> {
        let until = Instant::now() + self.0.limits.connection_ttl;
        let mut table = lock(&self.0.connections);
        let unknown = connections.iter().filter(|connection| !table.extend(&connection.id, until));
        Ok(unknown.map(|connection| connection.id.clone()).collect())
    }

    async fn unregister(&self, connections: &[Connection]) -> Result<()> {
        let mut table = lock(&self.0.connections);
        for connection in connections {
            table.remove(&connection.id);
        }
        Ok(())
    }

    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        let now = Instant::now();
        let table = lock(&self.0.connections);
        Ok(users.iter().map(|user| table.of_user(user, now).cloned().collect()).collect())
    }

    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>> {
        let now = Instant::now();
        let table = lock(&self.0.connections);
        Ok(table.on_gateway(gateway, now).map(|connection| connection.id.clone()).collect())
    }
}

#[async_trait]
impl MembershipCache for MemoryLive {
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        let table = lock(&self.0.members);
        let members = |chat| Some(table.chats.get(chat)?.members.as_ref()?.iter().cloned().collect());
        Ok(chats.iter().map(members).collect())
    }

    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken> {
        let until = Instant::now() + self.0.limits.fill_ttl;
        let mut table = lock(&self.0.members);
        table.permissions += 1;
        let new_permission = table.permissions;
        let cached = table.chats.get_or_insert_default(chat, until);
        let permission = *cached.permission.get_or_insert(new_permission);
        if cached.members.is_none() {
            table.chats.extend(chat, until);
        }
        Ok(FillToken { chat: chat.clone(), token: permission.to_smolstr() })
    }

    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool> {
        let until = Instant::now() + self.0.limits.members_ttl;
        let mut table = lock(&self.0.members);
        let Some(cached) = table.chats.get(&token.chat) else { return Ok(false) };
        if cached.permission.map(|permission| permission.to_smolstr()) != Some(token.token) {
            // Void, but another filler may have been faster.
            return Ok(cached.members.is_some());
        }
        let members = Some(members.iter().cloned().collect());
        table.chats.insert(token.chat, CachedChat { permission: None, members }, until);
        Ok(true)
    }

    async fn invalidate(&self, chats: &[ChatId]) -> Result<()> {
        let mut table = lock(&self.0.members);
        for chat in chats {
            table.chats.remove(chat);
        }
        Ok(())
    }
}

#[async_trait]
impl PresenceBoard for MemoryLive {
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()> {
        let until = Instant::now() + self.0.limits.presence_ttl;
        lock(&self.0.presence).insert(user.clone(), presence, until);
        Ok(())
    }

    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>> {
        let board = lock(&self.0.presence);
        Ok(users.iter().map(|user| board.get(user).cloned()).collect())
    }
}

#[async_trait]
impl Counters for MemoryLive {
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count> {
        check_window(counter, window)?;
        let mut counters = lock(&self.0.counters);
        let now = Instant::now();
        let (before, ends) = match counters.get_with_end(counter) {
            Some((before, ends)) => (*before, ends),
            None => (0, now + window),
        };
        let value = before.saturating_add(by.into());
        counters.insert(counter.into(), value, ends);
        Ok(Count { value, resets_in: ends - now })
    }
}

#[async_trait]
impl Publish for MemoryLive {
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        Ok(self.0.channels.publish(messages))
    }
}

#[async_trait]
impl Subscribe for MemoryLive {
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>> {
        Ok(Box::new(Channels::subscribe(&self.0.channels, channels, self.0.limits)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::time::advance;

    use super::*;
    use crate::live::Status;

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_a_minute_after_its_last_heartbeat() {
        let live = MemoryLive::new();
        let connection = Connection {
            id: "c".into(),
            user: "u".into(),
            device: "d".into(),
            gateway: "g".into(),
            connected_at: SystemTime::UNIX_EPOCH,
        };
        live.register(&connection).await.unwrap();
        advance(Duration::from_secs(60).saturating_sub(MOMENT)).await;
        assert!(live.heartbeat(std::slice::from_ref(&connection)).await.unwrap().is_empty());
        advance(Duration::from_secs(60).saturating_sub(MOMENT)).await;
        assert_eq!(live.connections_on(&"g".into()).await.unwrap(), ["c".into()]);
        advance(MOMENT).await;
        assert_eq!(live.connections_on(&"g".into()).await.unwrap(), []);
        assert_eq!(live.connections_of(&["u".into()]).await.unwrap(), [vec![]]);
        assert_eq!(live.heartbeat(&[connection]).await.unwrap(), ["c".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn members_end_after_five_minutes_and_permissions_after_ten_seconds() {
        let live = MemoryLive::new();
        let chat = ChatId::from("chat");
        let late = live.begin_fill(&chat).await.unwrap();
        advance(Duration::from_secs(10)).await;
        assert!(!live.fill(late, &[]).await.unwrap());
        let token = live.begin_fill(&chat).await.unwrap();
        advance(Duration::from_secs(10).saturating_sub(MOMENT)).await;
        assert!(live.fill(token, &[]).await.unwrap());
        advance(Duration::from_secs(300).saturating_sub(MOMENT)).await;
        assert_eq!(live.members(std::slice::from_ref(&chat)).await.unwrap(), [Some(vec![])]);
        advance(MOMENT).await;
        assert_eq!(live.members(&[chat]).await.unwrap(), [None]);
    }

    #[tokio::test(start_paused = true)]
    async fn presence_ends_after_half_a_minute() {
        let live = MemoryLive::new();
        let presence = Presence { status: Status::Online, last_seen: String::new() };
        live.set_presence(&"u".into(), presence.clone()).await.unwrap();
        advance(Duration::from_secs(30).saturating_sub(MOMENT)).await;
        assert_eq!(live.presence_of(&["u".into()]).await.unwrap(), [Some(presence)]);
        advance(MOMENT).await;
        assert_eq!(live.presence_of(&["u".into()]).await.unwrap(), [None]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_is_as_long_as_asked() {
        let (live, window) = (MemoryLive::new(), Duration::from_secs(5));
        assert_eq!(live.count("n", 1, window).await.unwrap(), Count { value: 1, resets_in: window });
        advance(window.saturating_sub(MOMENT)).await;
        assert_eq!(live.count("n", 2, window).await.unwrap(), Count { value: 3, resets_in: MOMENT });
        advance(MOMENT).await;
        assert_eq!(live.count("n", 1, window).await.unwrap(), Count { value: 1, resets_in: window });
    }
}
