//! Messages between processes, sharded on a cluster.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use redis::{Cmd, cmd};

use super::Redis;
use super::listener::{RedisListener, Transport};
use crate::live::{Channel, Listener, Publish, Result, Subscribe};

#[async_trait]
impl Publish for Redis {
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        if !self.0.link.is_cluster() {
            let commands: Vec<Cmd> = messages.iter().map(|message| self.send(message)).collect();
            return self.0.link.in_order(&commands).await;
        }
        // One pipeline per channel, since only commands of one pipeline keep their order on a cluster.
        let mut by_channel = BTreeMap::<&Channel, Vec<usize>>::new();
        for (index, (channel, _)) in messages.iter().enumerate() {
            by_channel.entry(channel).or_default().push(index);
        }
        let publish = |indexes: Vec<usize>| async move {
            let commands: Vec<Cmd> = indexes.iter().map(|&index| self.send(&messages[index])).collect();
            let heard: Vec<u64> = self.0.link.in_order(&commands).await?;
            Ok(indexes.into_iter().zip(heard).collect::<Vec<_>>())
        };
        let mut heard: Vec<(usize, u64)> =
            try_join_all(by_channel.into_values().map(publish)).await?.into_iter().flatten().collect();
        heard.sort_unstable();
        Ok(heard.into_iter().map(|(_, heard)| heard).collect())
    }
}

#[async_trait]
impl Subscribe for Redis {
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>> {
        Ok(Box::new(RedisListener::open(self.0.dial.clone(), channels, self.0.limits).await?))
    }
}

impl Redis {
    fn send(&self, (channel, payload): &(Channel, Bytes)) -> Cmd {
        let publish = match self.0.dial.transport() {
            Transport::Sharded => "SPUBLISH",
            Transport::Plain => "PUBLISH",
        };
        cmd(publish).arg(channel.as_str()).arg(&payload[..]).take()
    }
}
