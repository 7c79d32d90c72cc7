//! A small world for the tests of fan-out: chats in an embedded store, events in an embedded log, gateways that listen,
//! and live state that can be switched off.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::connections::{
    Connected, Connections as Configured, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::live::{
    Channel, Connection, Connections, Count, Counters, FillToken, Heard, Listener, Live, LiveError,
    MembershipCache, Presence, PresenceBoard, Publish, Result, Subscribe,
};
use courant_connectors::log::{Header, NewRecord, Topic};
use courant_connectors::model::commands::ORIGIN;
use courant_connectors::model::frames::read_deliveries;
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::topics::chats_created::CreatedChat;
use courant_connectors::model::topics::memberships_changed::{ChangeType, ChangedMembership};
use courant_connectors::model::topics::messages_persisted::{self, PersistedMessage};
use courant_connectors::model::topics::{ChatCreated, MembershipChanged, MessagePersisted};
use courant_connectors::model::{ChatId, ConnectionId, GatewayId, Timestamp, UserId};
use courant_pipeline::spec::Part;
use courant_pipeline::{Record, Services, Stage, StageSpec};
use futures::future::BoxFuture;
use serde_json::Value;

use crate::testing::build;

pub(crate) struct World {
    pub(crate) connected: Arc<Connected>,
    pub(crate) live: Arc<Switched>,
    pub(crate) folder: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Configured {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Configured::default()
        };
        let mut connected = connections.open().await.unwrap();
        let live = Arc::new(Switched::on(Arc::clone(&connected.live)));
        connected.live = Arc::clone(&live) as _;
        Self { connected: Arc::new(connected), live, folder }
    }

    pub(crate) fn services(&self) -> Services {
        Services::default().with(Arc::clone(&self.connected))
    }

    /// A stage that is open.
    pub(crate) async fn stage(&self, spec: &StageSpec, params: Value) -> Arc<dyn Stage> {
        let Ok(Part::Stage(stage)) = build(spec, params, &self.services()).map(|built| built.part) else {
            panic!("`{}` cannot be built", spec.kind)
        };
        stage.open().await.unwrap();
        stage
    }

    pub(crate) async fn join(&self, chat: &str, users: &[&str]) {
        for user in users {
            let membership = Membership {
                chat_id: chat.into(),
                user_id: (*user).into(),
                role: Role::Member,
                joined_at: time(),
                muted_until: None,
            };
            chat_memberships::add(&*self.connected.store, &membership).await.unwrap();
        }
    }

    pub(crate) async fn leave(&self, chat: &str, user: &str) {
        chat_memberships::remove(&*self.connected.store, &chat.into(), &user.into()).await.unwrap();
    }

    /// Connects a user; the connection is named after user and device.
    pub(crate) async fn connect(&self, user: &str, device: &str, gateway: &str) {
        let connection = Connection {
            id: format!("conn_{user}_{device}").into(),
            user: user.into(),
            device: device.into(),
            gateway: gateway.into(),
            connected_at: SystemTime::UNIX_EPOCH,
        };
        self.live.register(&connection).await.unwrap();
    }

    pub(crate) async fn gateway(&self, id: &str) -> Gateway {
        let channel = Channel::deliver(&id.into());
        Gateway(self.connected.live.subscribe(&[channel]).await.unwrap())
    }

    /// Appends the messages of a chat to the log, in this order.
    pub(crate) async fn publish(&self, chat: &str, sequences: std::ops::RangeInclusive<u64>) {
        self.append(sequences.map(|sequence| message(chat, sequence)).collect()).await;
    }

    /// Appends messages to the log.
    pub(crate) async fn append(&self, records: Vec<NewRecord>) {
        let topic = Topic::from(messages_persisted::NAME);
        for answer in self.connected.log.produce(&topic, records).await {
            answer.unwrap();
        }
    }

    /// The offsets that a group has committed for messages, together.
    pub(crate) async fn committed(&self, group: &str) -> u64 {
        let topic = Topic::from(messages_persisted::NAME);
        self.connected.log.committed(group, &topic).await.unwrap().values().sum()
    }
}

/// One that listens.
pub(crate) struct Gateway(Box<dyn Listener>);

/// A frame as it arrived: connection, chat, sequence.
pub(crate) type Arrived = (String, String, Option<u64>);

impl Gateway {
    /// The deliveries of the next publish, one for each connection.
    pub(crate) async fn hear(&mut self) -> Vec<Arrived> {
        let heard =
            tokio::time::timeout(Duration::from_secs(30), self.0.next()).await.expect("nothing is heard");
        let Heard::Message { payload, .. } = heard.unwrap() else { panic!("missed something") };
        let mut arrived = Vec::new();
        for delivery in read_deliveries(&payload) {
            let delivery = delivery.unwrap();
            let frame: Value = serde_json::from_slice(&delivery.frame).unwrap();
            assert_eq!(frame["chat_id"], delivery.chat_id.as_str());
            assert_eq!(frame["sequence"].as_u64(), delivery.sequence);
            let to = |id: &ConnectionId| (id.to_string(), delivery.chat_id.to_string(), delivery.sequence);
            arrived.extend(delivery.connections.iter().map(to));
        }
        arrived
    }

    pub(crate) fn hears_nothing(&mut self) -> bool {
        futures::FutureExt::now_or_never(self.0.next()).is_none()
    }
}

pub(crate) fn time() -> Timestamp {
    Timestamp::from_unix_millis(1_769_783_400_000)
}

/// The event of a message of `user_1`, who sent it from `conn_user_1_phone`.
pub(crate) fn message(chat: &str, sequence: u64) -> NewRecord {
    let event = MessagePersisted {
        event_id: format!("evt_{sequence}").into(),
        event_time: time(),
        payload: PersistedMessage {
            message_id: format!("msg_{sequence}").into(),
            chat_id: chat.into(),
            sequence,
            sender_id: "user_1".into(),
            content: "hello".into(),
            content_type: "text/plain".into(),
            created_at: time(),
        },
    };
    let mut record = event.encode();
    let origin = Bytes::from_static(b"conn_user_1_phone");
    record.headers.push(Header { name: ORIGIN.into(), value: origin });
    record
}

pub(crate) fn changed(chat: &str, user: &str, change_type: ChangeType) -> NewRecord {
    let payload = ChangedMembership {
        chat_id: chat.into(),
        user_id: user.into(),
        change_type,
        role: Role::Member,
        changed_by: "user_1".into(),
    };
    MembershipChanged { event_id: "evt_1".into(), event_time: time(), payload }.encode()
}

pub(crate) fn created(chat: &str) -> NewRecord {
    let payload = CreatedChat {
        chat_id: chat.into(),
        chat_type: courant_connectors::model::tables::chats::ChatType::Group,
        name: Some("Team".to_owned()),
        created_by: "user_1".into(),
        initial_members: vec!["user_1".into()],
    };
    ChatCreated { event_id: "evt_1".into(), event_time: time(), payload }.encode()
}

/// An event of the log as a record of a pipeline.
pub(crate) fn record(event: NewRecord) -> Record {
    let key = String::from_utf8(event.key.unwrap().to_vec()).unwrap();
    let mut record = Record::new(event.payload).with_key(key);
    for header in event.headers {
        record.headers.set(header.name.to_string(), std::str::from_utf8(&header.value).unwrap());
    }
    record
}

/// Live state with a switch, and a count of what it was asked.
pub(crate) struct Switched {
    live: Arc<dyn Live>,
    down: AtomicBool,
    pub(crate) asked_members: AtomicU64,
    pub(crate) asked_connections: AtomicU64,
    pub(crate) published: AtomicU64,
    /// Happens once, between a read of the store and the fill that follows it.
    before_fill: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Switched {
    fn on(live: Arc<dyn Live>) -> Self {
        Self {
            live,
            down: AtomicBool::new(false),
            asked_members: AtomicU64::new(0),
            asked_connections: AtomicU64::new(0),
            published: AtomicU64::new(0),
            before_fill: Mutex::default(),
        }
    }

    pub(crate) fn before_fill(&self, what: BoxFuture<'static, ()>) {
        *self.before_fill.lock().unwrap() = Some(what);
    }

    pub(crate) fn is_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn ask(&self) -> Result<&dyn Live> {
        if self.down.load(Ordering::SeqCst) {
            return Err(LiveError::Unavailable("switched off".to_owned()));
        }
        Ok(&*self.live)
    }
}

#[async_trait]
impl Connections for Switched {
    async fn register(&self, connection: &Connection) -> Result<()> {
        self.ask()?.register(connection).await
    }
    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>> {
        self.ask()?.heartbeat(connections).await
    }
    async fn unregister(&self, connections: &[Connection]) -> Result<()> {
        self.ask()?.unregister(connections).await
    }
    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>> {
        self.asked_connections.fetch_add(1, Ordering::SeqCst);
        self.ask()?.connections_of(users).await
    }
    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>> {
        self.ask()?.connections_on(gateway).await
    }
}

#[async_trait]
impl MembershipCache for Switched {
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>> {
        self.asked_members.fetch_add(1, Ordering::SeqCst);
        self.ask()?.members(chats).await
    }
    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken> {
        self.ask()?.begin_fill(chat).await
    }
    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool> {
        let first = self.before_fill.lock().unwrap().take();
        if let Some(first) = first {
            first.await;
        }
        self.ask()?.fill(token, members).await
    }
    async fn invalidate(&self, chats: &[ChatId]) -> Result<()> {
        self.ask()?.invalidate(chats).await
    }
}

#[async_trait]
impl PresenceBoard for Switched {
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()> {
        self.ask()?.set_presence(user, presence).await
    }
    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>> {
        self.ask()?.presence_of(users).await
    }
}

#[async_trait]
impl Counters for Switched {
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count> {
        self.ask()?.count(counter, by, window).await
    }
}

#[async_trait]
impl Publish for Switched {
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>> {
        self.published.fetch_add(messages.len() as u64, Ordering::SeqCst);
        self.ask()?.publish(messages).await
    }
}

#[async_trait]
impl Subscribe for Switched {
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>> {
        self.ask()?.subscribe(channels).await
    }
}
