//! Live state that cannot be reached.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::live::{
    Channel, Connection, Connections, Count, Counters, FillToken, Listener, LiveError, MembershipCache,
    Presence, PresenceBoard, Publish, Result, Subscribe,
};
use courant_connectors::model::{ChatId, ConnectionId, GatewayId, UserId};

pub(crate) struct DownLive;

fn down<T>() -> Result<T> {
    Err(LiveError::Unavailable("connection refused".to_owned()))
}

#[async_trait]
impl Connections for DownLive {
    async fn register(&self, _: &Connection) -> Result<()> {
        down()
    }

    async fn heartbeat(&self, _: &[Connection]) -> Result<Vec<ConnectionId>> {
        down()
    }

    async fn unregister(&self, _: &[Connection]) -> Result<()> {
        down()
    }

    async fn connections_of(&self, _: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        down()
    }

    async fn connections_on(&self, _: &GatewayId) -> Result<Vec<ConnectionId>> {
        down()
    }
}

#[async_trait]
impl MembershipCache for DownLive {
    async fn members(&self, _: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        down()
    }

    async fn begin_fill(&self, _: &ChatId) -> Result<FillToken> {
        down()
    }

    async fn fill(&self, _: FillToken, _: &[UserId]) -> Result<bool> {
        down()
    }

    async fn invalidate(&self, _: &[ChatId]) -> Result<()> {
        down()
    }
}

#[async_trait]
impl PresenceBoard for DownLive {
    async fn set_presence(&self, _: &UserId, _: Presence) -> Result<()> {
        down()
    }

    async fn presence_of(&self, _: &[UserId]) -> Result<Vec<Option<Presence>>> {
        down()
    }
}

#[async_trait]
impl Counters for DownLive {
    async fn count(&self, _: &str, _: u32, _: Duration) -> Result<Count> {
        down()
    }
}

#[async_trait]
impl Publish for DownLive {
    async fn publish(&self, _: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        down()
    }
}

#[async_trait]
impl Subscribe for DownLive {
    async fn subscribe(&self, _: &[Channel]) -> Result<Box<dyn Listener>> {
        down()
    }
}
