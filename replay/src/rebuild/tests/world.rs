//! A chat's history on the embedded engine, and a pipeline that makes a table of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::embedded::{Clock, Engine as StoreEngine, Options};
use courant_connectors::files::keyed::KeyedTable;
use courant_connectors::log::AdminLog as _;
use courant_connectors::model::tables::TABLES;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{self, MessagePersisted, messages_persisted};
use courant_connectors::model::{MessageId, Timestamp};
use courant_connectors::store::{AdminStore as _, Transaction};
use courant_pipeline::config::{Loader, Topology};
use courant_pipeline::runtime::{Host, Runtime};
use courant_pipeline::{Services, clock};
use courant_stages::derived::{DerivedHome, OpenTables};
use courant_stages::host::{DeadLetterStore, PositionFiles};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::rebuild::{Engine, From, Receipt, Request, Result, To};

/// Every message by its name, and the last one of each chat: a key with one entry, and a key with many.
pub(super) const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"] }
[[pipeline.stage]]
kind = "map"
params = { expr = 'if .payload.content == "poison" then error("poison") else .payload end' }
[[pipeline.stage]]
kind = "table"
name = "all"
params = { key = '"\(.chat_id)/\(.sequence)"', at = '.created_at' }
[[pipeline.stage]]
kind = "table"
name = "last"
input = "map"
params = { key = '.chat_id', version = '.sequence', at = '.created_at' }
"#;

/// For [`PIPELINE`]: how often each message came, also if it was published again.
pub(super) const COUNTED: &str = r#"
[[pipeline.stage]]
kind = "window"
name = "times"
input = "map"
params = { size = "1m", lateness = "30d", time = ".created_at", emit = "updates", group_by = { chat_id = ".chat_id", sequence = ".sequence", created_at = ".created_at" }, aggregates = { times = "count" } }
[[pipeline.stage]]
kind = "table"
name = "counted"
params = { key = '"\(.chat_id)/\(.sequence)"', at = '.created_at' }
"#;

pub(super) struct World {
    pub(super) host: Host,
    pub(super) connected: Arc<Connected>,
    engine: Arc<StoreEngine>,
    /// Milliseconds that the engine's clock is behind.
    behind: Arc<AtomicU64>,
    pub(super) topologies: Vec<Topology>,
    pub(super) stop: CancellationToken,
    numbers: AtomicU64,
    /// How often each message was published.
    published: Mutex<BTreeMap<String, u64>>,
    folder: TempDir,
}

pub(super) type Rows = BTreeMap<String, (u64, String)>;

impl World {
    pub(super) async fn new() -> Self {
        Self::with(PIPELINE).await
    }

    pub(super) async fn with(pipelines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (engine, behind) = engine_in(folder.path()).await;
        let embedded = EmbeddedConnection { path: folder.path().join("unused") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        let mut connected = connections.open().await.unwrap();
        (connected.store, connected.log) = (Arc::clone(&engine) as _, Arc::clone(&engine) as _);
        let connected = Arc::new(connected);
        let dead_letters = Arc::new(DeadLetterStore::open(folder.path().join("dead-letters")).await.unwrap());
        let positions = Arc::new(PositionFiles::open(folder.path().join("positions")).await.unwrap());
        let services = Services::default()
            .with(Arc::clone(&connected))
            .with(Arc::clone(&dead_letters))
            .with(Arc::clone(&positions))
            .with(Arc::new(DerivedHome::new(folder.path().join("derived"))))
            .with(Arc::new(OpenTables::default()));
        let loader = Loader::new(courant_stages::registry(), services.clone());
        let topologies = loader.load_str("pipelines.toml", pipelines, []).unwrap().topologies;
        let host = Host { services, dead_letters, positions, drain_deadline: Duration::from_secs(10) };
        let (stop, numbers) = (CancellationToken::new(), AtomicU64::new(0));
        let published = Mutex::default();
        Self { host, connected, engine, behind, topologies, stop, numbers, published, folder }
    }

    /// Lets the engine live so long ago; what it has kept for too long goes when it is back.
    pub(super) async fn go_back(&self, time: Duration) {
        self.behind.store(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
        self.engine.sweep().await;
    }

    /// Until then the engine has it in memory, and cannot say how large it is.
    pub(super) async fn flush(&self) {
        self.engine.compact(|_| {}).await.unwrap();
    }

    /// The pipelines at work.
    pub(super) async fn live(&self) -> Runtime {
        let runtime = Runtime::new(self.host.clone());
        runtime.apply(self.topologies.clone()).await;
        runtime
    }

    /// One of the pipelines at work.
    pub(super) async fn live_only(&self, pipeline: &str) -> Runtime {
        let runtime = Runtime::new(self.host.clone());
        let wanted = self.topologies.iter().filter(|topology| *topology.name == *pipeline);
        runtime.apply(wanted.cloned().collect()).await;
        runtime
    }

    pub(super) fn engine<'a>(&'a self, runtime: Option<&'a Runtime>) -> Engine<'a> {
        Engine {
            topologies: &self.topologies,
            host: &self.host,
            runtime,
            stop: &self.stop,
            progress: &|_| {},
        }
    }

    pub(super) async fn rebuild(&self, from: From, to: To) -> Result<Receipt> {
        self.engine(None).start(request(from, to)).await
    }

    pub(super) fn message(&self, chat: u64, content: &str) -> Message {
        self.message_of(chat, content, clock::unix_millis())
    }

    pub(super) fn message_of(&self, chat: u64, content: &str, at: u64) -> Message {
        let sequence = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        Message {
            chat_id: format!("chat_{chat}").into(),
            sequence,
            message_id: MessageId::generate(),
            sender_id: "user_1".into(),
            client_message_id: format!("c-{sequence}").into(),
            content: content.into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(at),
        }
    }

    pub(super) async fn store(&self, messages: &[Message]) {
        for part in messages.chunks(50) {
            let writes = part.iter().map(messages::put_write).collect();
            self.connected.store.transact(Transaction { writes, token: None }).await.unwrap();
        }
    }

    pub(super) async fn publish(&self, messages: &[Message]) {
        let events = messages.iter().map(|message| MessagePersisted::of(message.clone()).encode()).collect();
        for appended in self.connected.log.produce(&messages_persisted::NAME.into(), events).await {
            appended.unwrap();
        }
        let mut published = self.published.lock().unwrap();
        for message in messages {
            *published.entry(key(message)).or_default() += 1;
        }
    }

    /// Stored and published, in some chats.
    pub(super) async fn send(&self, count: u64) -> Vec<Message> {
        let messages: Vec<_> = (0..count).map(|n| self.message(n % 7, &format!("message {n}"))).collect();
        self.store(&messages).await;
        self.publish(&messages).await;
        messages
    }

    /// The same, with the engine's clock set back, which stays there.
    pub(super) async fn sent_ago(&self, ago: Duration, count: u64) -> Vec<Message> {
        self.go_back(ago).await;
        let then = clock::unix_millis() - u64::try_from(ago.as_millis()).unwrap();
        let messages: Vec<_> = (0..count).map(|n| self.message_of(n % 7, "sent", then)).collect();
        self.store(&messages).await;
        self.publish(&messages).await;
        messages
    }

    /// Waits until the live pipeline has read all that there is.
    pub(super) async fn settled(&self, runtime: &Runtime) {
        self.settled_of("p", runtime).await;
    }

    pub(super) async fn settled_of(&self, pipeline: &str, runtime: &Runtime) {
        let topic = messages_persisted::NAME.into();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let ends: u64 =
                self.connected.log.watermarks(&topic).await.unwrap().iter().map(|marks| marks.high).sum();
            let committed: u64 = self.connected.log.committed(pipeline, &topic).await.unwrap().values().sum();
            if committed == ends {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{committed} of {ends}: {:?}", runtime.health());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) fn stage_folder(&self, generation: &str, stage: &str) -> PathBuf {
        self.folder_of("p", generation, stage)
    }

    pub(super) fn folder_of(&self, pipeline: &str, generation: &str, stage: &str) -> PathBuf {
        self.folder.path().join("derived").join(pipeline).join(generation).join(stage)
    }

    /// What a table of a generation holds, that nobody has open.
    pub(super) fn rows(&self, generation: &str, stage: &str) -> Rows {
        Self::rows_in(&self.stage_folder(generation, stage))
    }

    pub(super) fn rows_in(folder: &Path) -> Rows {
        let table = KeyedTable::open_now(folder).unwrap();
        let mut rows = Rows::new();
        let value = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        table.each(|row| drop(rows.insert(row.key, (row.version, value(&row.value))))).unwrap();
        rows
    }

    /// How often each message was counted by [`COUNTED`].
    pub(super) fn counted(&self, generation: &str) -> BTreeMap<String, u64> {
        let times = |value: &str| serde_json::from_str::<serde_json::Value>(value).unwrap()["times"].as_u64();
        let rows = self.rows(generation, "counted").into_iter();
        rows.map(|(key, (_, value))| (key, times(&value).unwrap())).collect()
    }

    /// Nothing is missing, and what came more than once was published more than once.
    #[track_caller]
    pub(super) fn assert_counted_once(&self, generation: &str, messages: &[Message]) {
        let (counted, published) = (self.counted(generation), self.published.lock().unwrap());
        assert_eq!(counted.len(), messages.len());
        for key in messages.iter().map(key) {
            let (times, most) = (counted.get(&key).copied().unwrap_or(0), published[&key]);
            assert!((1..=most).contains(&times), "{key} came {times} times, and was published {most} times");
        }
    }

    /// What the tables of a generation should hold for these messages.
    pub(super) fn expected(messages: &[Message]) -> (Rows, Rows) {
        let (mut all, mut last) = (Rows::new(), Rows::new());
        for message in messages {
            let event = MessagePersisted::of(message.clone()).encode();
            let event: serde_json::Value = serde_json::from_slice(&event.payload).unwrap();
            let (payload, chat, sequence) =
                (event["payload"].to_string(), message.chat_id.to_string(), message.sequence);
            all.insert(format!("{chat}/{sequence}"), (0, payload.clone()));
            let row = last.entry(chat).or_insert((0, String::new()));
            if sequence >= row.0 {
                *row = (sequence, payload);
            }
        }
        (all, last)
    }

    #[track_caller]
    pub(super) fn assert_holds(&self, generation: &str, messages: &[Message]) {
        let (all, last) = Self::expected(messages);
        let found = self.rows(generation, "all");
        let missing: Vec<_> = all.keys().filter(|key| !found.contains_key(*key)).collect();
        assert!(missing.is_empty(), "{missing:?} are missing");
        assert_eq!(found, all);
        assert_eq!(self.rows(generation, "last"), last);
    }
}

/// As the tables have it.
fn key(message: &Message) -> String {
    format!("{}/{}", message.chat_id, message.sequence)
}

/// An engine whose clock can be set back.
async fn engine_in(folder: &Path) -> (Arc<StoreEngine>, Arc<AtomicU64>) {
    let behind = Arc::new(AtomicU64::new(0));
    let by = Arc::clone(&behind);
    let reading = move || clock::now() - Duration::from_millis(by.load(Ordering::Relaxed));
    let options = Options { clock: Clock::from_fn(reading), ..Options::default() };
    let engine = StoreEngine::open(folder.join("engine"), options).await.unwrap();
    for schema in TABLES {
        engine.create_table(schema).await.unwrap();
    }
    for topic in topics::all() {
        engine.create_topic(&topic).await.unwrap();
    }
    (engine, behind)
}

/// Everything is compared, however new.
pub(super) fn request(from: From, to: To) -> Request {
    Request { grace: Duration::ZERO, ..Request::new("p", from, to) }
}
