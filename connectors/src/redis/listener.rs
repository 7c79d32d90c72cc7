//! Listening to channels, through lost connections.
//!
//! Every listener has connections of its own: dropping it closes them, which is all there is to unsubscribing, and a
//! slow one holds up nobody. A process has few of them, so sharing a connection would save little. On a cluster a
//! sharded channel is heard only at the node that owns it; the listener asks any node and follows where it points.
//!
//! A connection that is silent may be dead, so it is asked for a sign of life now and then. When one is lost, all are
//! made again with back-off. The [`Heard::Gap`] is queued at the moment a subscription stands again, not when the
//! connection was lost: whoever catches up on hearing it misses nothing that was published in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::select_ok;
use redis::aio::{MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, PushKind, RedisError,
    RedisResult, Value, cmd,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::config::{ChannelMode, RedisConfig, Servers, Topology};
use super::link::{FIRST_PAUSE, within};
use crate::live::{Channel, Heard, Limits, Listener, ListenerQueue, Result};

/// Between two signs of life, in time-outs of a command.
const SILENCE: u32 = 5;
/// Longest pause before connecting again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Nodes that are asked for one channel before its place counts as unknown.
const REDIRECTS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Sharded,
    Plain,
}

/// How listeners connect.
#[derive(Clone)]
pub(super) struct Dial {
    servers: Servers,
    transport: Transport,
    connect_timeout: Duration,
    command_timeout: Duration,
}

impl Dial {
    /// Asks a server what it can do.
    pub(super) async fn probe(servers: Servers, config: &RedisConfig) -> Result<Self> {
        let (connect_timeout, command_timeout) = (config.connect_timeout, config.command_timeout);
        let mut dial = Self { servers, transport: Transport::Plain, connect_timeout, command_timeout };
        let server = dial.servers.name();
        dial.transport = within(connect_timeout + command_timeout, &server, async {
            let (_, mut connection) = dial.connect_to_any(None).await?;
            Ok(match (config.channels, dial.servers.topology) {
                (ChannelMode::Sharded, _) => Transport::Sharded,
                (ChannelMode::Plain, _) | (ChannelMode::Auto, Topology::Single) => Transport::Plain,
                (ChannelMode::Auto, Topology::Cluster) => known_transport(&mut connection).await?,
            })
        })
        .await?;
        Ok(dial)
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    async fn connect_to_any(
        &self,
        ear: Option<&Ear>,
    ) -> RedisResult<(ConnectionInfo, MultiplexedConnection)> {
        // All at once, so that a node that says nothing does not keep one from the others.
        let attempt = |node: &ConnectionInfo| {
            let node = node.clone();
            Box::pin(async move { self.connect(&node, ear).await.map(|connection| (node, connection)) })
        };
        let (first, _) = select_ok(self.servers.nodes.iter().map(attempt)).await?;
        Ok(first)
    }

    async fn connect(&self, node: &ConnectionInfo, ear: Option<&Ear>) -> RedisResult<MultiplexedConnection> {
        let mut settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.command_timeout));
        if let Some(ear) = ear.cloned() {
            settings = settings.set_push_sender(move |push| -> std::result::Result<(), SendError> {
                ear.take(push);
                Ok(())
            });
        }
        Client::open(node.clone())?.get_multiplexed_async_connection_with_config(&settings).await
    }
}

/// What the nodes of a cluster have in common is what one of them knows.
async fn known_transport(connection: &mut MultiplexedConnection) -> RedisResult<Transport> {
    let known: Vec<Value> = cmd("COMMAND").arg("INFO").arg("SPUBLISH").query_async(connection).await?;
    Ok(match known.first() {
        None | Some(Value::Nil) => Transport::Plain,
        Some(_) => Transport::Sharded,
    })
}

/// Takes in what a connection of a listener brings, without ever waiting.
#[derive(Clone)]
struct Ear {
    queue: Arc<ListenerQueue>,
    beginning: Beginning,
    lost: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    First,
    AfterLoss,
}

impl Ear {
    fn take(&self, push: PushInfo) {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(heard) = message(push.data) {
                    self.queue.push(heard);
                }
            }
            // Comes before the first message of the subscription.
            PushKind::Subscribe | PushKind::SSubscribe if self.beginning == Beginning::AfterLoss => {
                self.queue.push(Heard::Gap);
            }
            // A node says the last two when the slot of a channel moves to another node.
            PushKind::Disconnection | PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                self.lost.notify_one();
            }
            _ => {}
        }
    }
}

fn message(data: Vec<Value>) -> Option<Heard> {
    let [Value::BulkString(channel), Value::BulkString(payload)] = <[Value; 2]>::try_from(data).ok()? else {
        return None;
    };
    let channel = Channel::named(&String::from_utf8(channel).ok()?);
    Some(Heard::Message { channel, payload: Bytes::from(payload) })
}

/// Connections on which all channels are subscribed; dropping it closes them.
struct Subscription {
    connections: BTreeMap<String, MultiplexedConnection>,
    lost: Arc<Notify>,
}

impl Subscription {
    async fn open(
        dial: &Dial,
        channels: &BTreeSet<Channel>,
        queue: &Arc<ListenerQueue>,
        beginning: Beginning,
    ) -> Result<Self> {
        let ear = Ear { queue: Arc::clone(queue), beginning, lost: Arc::default() };
        let mut subscription = Self { connections: BTreeMap::new(), lost: Arc::clone(&ear.lost) };
        // To any node, and from there to those that own the channels.
        let limit = dial.connect_timeout * 2 + dial.command_timeout;
        within(limit, &dial.servers.name(), subscription.subscribe(dial, channels, &ear)).await?;
        Ok(subscription)
    }

    async fn subscribe(&mut self, dial: &Dial, channels: &BTreeSet<Channel>, ear: &Ear) -> RedisResult<()> {
        let (node, mut connection) = dial.connect_to_any(Some(ear)).await?;
        self.connections.insert(node.addr().to_string(), connection.clone());
        match dial.transport {
            Transport::Plain => {
                let names: Vec<&str> = channels.iter().map(Channel::as_str).collect();
                // Redis knows no subscription to nothing.
                if names.is_empty() { Ok(()) } else { connection.subscribe(names).await }
            }
            Transport::Sharded => {
                for channel in channels {
                    self.subscribe_at_owner(dial, &node, channel, ear).await?;
                }
                Ok(())
            }
        }
    }

    async fn subscribe_at_owner(
        &mut self,
        dial: &Dial,
        start: &ConnectionInfo,
        channel: &Channel,
        ear: &Ear,
    ) -> RedisResult<()> {
        let mut node = start.clone();
        for _ in 0..REDIRECTS {
            let address = node.addr().to_string();
            if !self.connections.contains_key(&address) {
                self.connections.insert(address.clone(), dial.connect(&node, Some(ear)).await?);
            }
            let connection =
                self.connections.get_mut(&address).expect("it was there or has just been inserted");
            let subscribed = cmd("SSUBSCRIBE").arg(channel.as_str()).query_async::<Value>(connection).await;
            let Err(error) = subscribed else { return Ok(()) };
            node = redirected(&node, &error).ok_or(error)?;
        }
        Err(RedisError::from((ErrorKind::Io, "the nodes of the cluster disagree about who owns a channel")))
    }

    /// Returns when a connection is lost or gives no sign of life.
    async fn until_lost(&mut self, command_timeout: Duration) {
        loop {
            tokio::select! {
                () = self.lost.notified() => return,
                () = tokio::time::sleep(command_timeout * SILENCE) => {}
            }
            for connection in self.connections.values_mut() {
                // Bounded by the connection's own time-out.
                if cmd("PING").query_async::<Value>(connection).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The node that MOVED names. It names no host if that is the one that was asked.
fn redirected(asked: &ConnectionInfo, error: &RedisError) -> Option<ConnectionInfo> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let moved_to = match asked.addr() {
        ConnectionAddr::Tcp(asked_host, _) => {
            ConnectionAddr::Tcp(if host.is_empty() { asked_host.clone() } else { host.to_owned() }, port)
        }
        ConnectionAddr::TcpTls { host: asked_host, insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: if host.is_empty() { asked_host.clone() } else { host.to_owned() },
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => return None,
    };
    Some(asked.clone().set_addr(moved_to))
}

pub(super) struct RedisListener {
    queue: Arc<ListenerQueue>,
    keeper: AbortHandle,
}

impl RedisListener {
    /// Returns once every channel is subscribed.
    pub(super) async fn open(dial: Dial, channels: &[Channel], limits: Limits) -> Result<Self> {
        let channels: BTreeSet<Channel> = channels.iter().cloned().collect();
        let queue = Arc::new(ListenerQueue::new(limits));
        let subscription = Subscription::open(&dial, &channels, &queue, Beginning::First).await?;
        let keeper = tokio::spawn(keep(dial, channels, Arc::clone(&queue), subscription)).abort_handle();
        Ok(Self { queue, keeper })
    }
}

#[async_trait]
impl Listener for RedisListener {
    /// Never fails: what keeps it from listening may be repaired at any time, and then it goes on with a gap.
    async fn next(&mut self) -> Result<Heard> {
        Ok(self.queue.next().await)
    }
}

impl Drop for RedisListener {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(
    dial: Dial,
    channels: BTreeSet<Channel>,
    queue: Arc<ListenerQueue>,
    mut subscription: Subscription,
) {
    let server = dial.servers.name();
    loop {
        subscription.until_lost(dial.command_timeout).await;
        drop(subscription);
        tracing::warn!(%server, "lost a subscription, connecting again");
        let mut pause = FIRST_PAUSE;
        subscription = loop {
            // Jitter, so that all processes do not come back at the same moment.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.5))).await;
            match Subscription::open(&dial, &channels, &queue, Beginning::AfterLoss).await {
                Ok(subscription) => break subscription,
                Err(error) => tracing::debug!(%server, %error, "cannot subscribe yet"),
            }
            pause = LONGEST_PAUSE.min(pause * 2);
        };
        tracing::info!(%server, "subscribed again");
    }
}
