//! Live state that counts what it is asked, so that a case can tell that something never came that far.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::live::{
    Channel, Connection, Connections, Count, Counters, FillToken, Listener, Live, MembershipCache, Presence,
    PresenceBoard, Publish, Result, Subscribe,
};
use courant_connectors::model::{ChatId, ConnectionId, GatewayId, UserId};

pub(super) struct CountingLive {
    live: Arc<dyn Live>,
    asked: AtomicUsize,
}

impl CountingLive {
    pub(super) fn before(live: Arc<dyn Live>) -> Arc<Self> {
        Arc::new(Self { live, asked: AtomicUsize::new(0) })
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn count_it(&self) -> &dyn Live {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &*self.live
    }
}

#[async_trait]
impl Connections for CountingLive {
    async fn register(&self, connection: &Connection) -> Result<()> {
        self.count_it().register(connection).await
    }

    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>> {
        self.count_it().heartbeat(connections).await
    }

    async fn unregister(&self, connections: &[Connection]) -> Result<()> {
        self.count_it().unregister(connections).await
    }

    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        self.count_it().connections_of(users).await
    }

    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>> {
        self.count_it().connections_on(gateway).await
    }
}

#[async_trait]
impl MembershipCache for CountingLive {
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        self.count_it().members(chats).await
    }

    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken> {
        self.count_it().begin_fill(chat).await
    }

    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool> {
        self.count_it().fill(token, members).await
    }

    async fn invalidate(&self, chats: &[ChatId]) -> Result<()> {
        self.count_it().invalidate(chats).await
    }
}

#[async_trait]
impl PresenceBoard for CountingLive {
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()> {
        self.count_it().set_presence(user, presence).await
    }

    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>> {
        self.count_it().presence_of(users).await
    }
}

#[async_trait]
impl Counters for CountingLive {
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count> {
        self.count_it().count(counter, by, window).await
    }
}

#[async_trait]
impl Publish for CountingLive {
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        self.count_it().publish(messages).await
    }
}

#[async_trait]
impl Subscribe for CountingLive {
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>> {
        self.count_it().subscribe(channels).await
    }
}
