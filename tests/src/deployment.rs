//! The product as several processes on DynamoDB, Kafka and Redis: two gateways, one that ingests, two that fan out.
//!
//! The servers stand behind proxies, so that a call can be harmed or held at a point that a test names, and the process
//! that made it killed there. Servers and processes can be ended and started again, with what they had on disk.

use std::collections::BTreeMap;

use courant_client::SignedIn;
use courant_conformance::servers::redis::RedisServer;
use courant_conformance::servers::{self, Dynoxide, FaultyProxy, KafkaProxy, Tansu, free_address, free_port};
use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::dynamodb::{DynamoDb, DynamoDbConfig};
use serde_json::Value;

use crate::chat::{TOPOLOGIES, shipped_on};
use crate::{Courant, Ended, Home, LIMIT, Signal};

/// The servers, and every process of the product on them.
pub struct Deployment {
    pub gateways: [Node; 2],
    pub ingest: Node,
    pub workers: [Node; 2],
    pub redis: RedisServer,
    /// In front of the store: throttles, breaks and holds calls when asked to.
    pub before_store: FaultyProxy,
    /// In front of the broker: holds what is published when asked to.
    pub before_kafka: KafkaProxy,
    pub kafka: Tansu,
    dynoxide: Dynoxide,
    /// The configuration up to the pipelines: which servers there are.
    settings: String,
}

/// Credentials for a store that anybody may use.
pub const ANYBODY: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "anybody"), ("AWS_SECRET_ACCESS_KEY", "nothing")];

const SECRET: &str = "a secret that is long enough for everybody here";

/// Which pipelines there are, and who runs them.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    file: &'static str,
    /// A pipeline that is not there, and those that are instead.
    without: Option<&'static str>,
    more: &'static str,
    ingest: &'static str,
    workers: &'static str,
}

/// What is stored is published, and workers consume that.
pub const WRITTEN_TWICE: Layout = Layout {
    file: TOPOLOGIES[0],
    without: None,
    more: "",
    ingest: "ingest,chats,accounts,acks,repair",
    workers: "fanout,memberships",
};

/// What is stored is all, and workers follow that.
pub const EVENT_BUS: Layout = Layout {
    file: TOPOLOGIES[1],
    without: None,
    more: "",
    ingest: "ingest,chats,accounts,acks",
    workers: "fanout,memberships,publish-messages,publish-chats",
};

impl Layout {
    /// With other pipelines in place of one, and these in the workers.
    #[must_use]
    pub const fn instead(self, without: &'static str, more: &'static str, workers: &'static str) -> Self {
        Self { without: Some(without), more, workers, ..self }
    }

    fn pipelines(&self, on_servers: &str) -> String {
        const PIPELINE: &str = "[[pipeline]]\n";
        let is_out =
            |part: &&str| self.without.is_none_or(|name| !part.starts_with(&format!("name = \"{name}\"\n")));
        let parts: Vec<&str> = on_servers.split(PIPELINE).filter(is_out).collect();
        format!("{}\n{}", parts.join(PIPELINE), self.more)
    }
}

impl Deployment {
    /// Starts everything; `home` makes a folder for a process.
    pub async fn start(home: impl Fn() -> Home) -> Self {
        Self::start_as(WRITTEN_TWICE, home).await
    }

    pub async fn start_as(layout: Layout, home: impl Fn() -> Home) -> Self {
        let (dynoxide, redis, broker) = (Dynoxide::start(), RedisServer::start(), free_address());
        let before_kafka = KafkaProxy::before(broker).await;
        let kafka = Tansu::behind(broker, before_kafka.address());
        let before_store = FaultyProxy::before(dynoxide.address()).await;
        let pipelines = layout.pipelines(&on_servers(layout.file, &before_store, &kafka, &redis));
        let relay_port = free_port();
        let relay = |rest: String| format!("\n[edge.relay]\nsecret_env = 'RELAY_SECRET'\n{rest}\n");
        let listening = format!("{pipelines}{}", relay(format!("listen = '127.0.0.1:{relay_port}'")));
        let ingest = Node::new(home(), &listening, &["--without-edge", "--only", layout.ingest]);
        ingest.make_tables_and_topics();
        // The same file: who takes no commands does not listen for them.
        let worker = || Node::new(home(), &listening, &["--without-edge", "--only", layout.workers]);
        let workers = [worker(), worker()];
        let end = pipelines.find("[[pipeline]]").expect("the shipped file has pipelines");
        let tail = "\n[edge.limits]\nenabled = false\n";
        let relayed = relay(format!("to = ['127.0.0.1:{relay_port}']"));
        let settings = pipelines[..end].to_owned();
        let gateway = || Node::new(home(), &format!("{settings}{tail}{relayed}"), &[]);
        let gateways = [gateway(), gateway()];
        let mut started =
            Self { gateways, ingest, workers, redis, before_store, before_kafka, kafka, dynoxide, settings };
        started.start_processes();
        started
    }

    fn start_processes(&mut self) {
        self.ingest.start();
        for node in self.workers.iter_mut().chain(&mut self.gateways) {
            node.start();
        }
        for gateway in &mut self.gateways {
            gateway.process().wait_ready();
        }
    }

    /// One more process on the same servers, with pipelines of its own; to be started.
    pub fn beside(&self, home: Home, pipelines: &str) -> Node {
        Node::new(home, &format!("{}{pipelines}", self.settings), &["--without-edge"])
    }

    /// What `courant verify` finds wrong, without waiting for anything that is late: how often, by check. Beside it
    /// everything goes on.
    #[track_caller]
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let (ended, report) = self.look();
        let wrong = found(&report, |check| check["severity"] == "error");
        assert_eq!(ended.code, Some(if wrong.is_empty() { 0 } else { 6 }), "{report}");
        wrong
    }

    /// Fails unless the events of each chat are in the log in the order of their sequences.
    #[track_caller]
    pub fn events_are_in_order(&self) {
        let (_, report) = self.look();
        assert_eq!(found(&report, |check| check["id"] == "event-order"), BTreeMap::new(), "{report}");
    }

    #[track_caller]
    fn look(&self) -> (Ended, Value) {
        let ended = self.ingest.run(&["verify", "--grace", "0s", "--json"]);
        let report: Value = serde_json::from_str(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ended.stdout, ended.stderr));
        let looked_at = report["figures"]["items"]["messages"].as_u64();
        assert!(looked_at > Some(0), "it looked at nothing: {report}");
        (ended, report)
    }

    /// Fails unless store and log are in order.
    #[track_caller]
    pub fn verify(&self) {
        assert_eq!(self.errors(), BTreeMap::new());
    }

    /// What is stored, past every proxy.
    pub async fn store(&self) -> DynamoDb {
        let unprefixed = |config| DynamoDbConfig { table_prefix: String::new(), ..config };
        servers::connect(self.dynoxide.address(), unprefixed).await
    }

    /// Somebody new, signed in at a gateway.
    pub async fn person(&mut self, gateway: usize, name: &str) -> SignedIn {
        self.gateways[gateway].process().person(name).await
    }

    /// The same person at another gateway.
    pub fn at(&mut self, gateway: usize, person: &SignedIn) -> SignedIn {
        let token = person.client.token().expect("they signed in");
        SignedIn { client: self.gateways[gateway].process().client().with_token(token), ..person.clone() }
    }
}

/// How often these checks found something, where they did.
fn found(report: &Value, wanted: impl Fn(&Value) -> bool) -> BTreeMap<String, u64> {
    let checks = report["checks"].as_array().expect("a list of checks").iter();
    let found = checks.filter(|check| wanted(check)).filter_map(|check| {
        let found = check["found"].as_u64().filter(|found| *found > 0)?;
        Some((check["id"].as_str()?.to_owned(), found))
    });
    found.collect()
}

/// One process of the product in its folder: running, or to be started.
pub struct Node {
    home: Home,
    arguments: Vec<&'static str>,
    process: Option<Courant>,
}

impl Node {
    fn new(home: Home, config: &str, arguments: &[&'static str]) -> Self {
        home.replace_config(config);
        Self { home, arguments: [&["run"], arguments].concat(), process: None }
    }

    pub fn start(&mut self) {
        self.process = Some(Courant::spawn(self.command(&self.arguments)));
    }

    #[track_caller]
    pub fn process(&mut self) -> &mut Courant {
        self.process.as_mut().expect("the process was started")
    }

    /// Ends it without warning, in the middle of whatever it does.
    #[track_caller]
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the process was started");
        process.signal(Signal::KILL);
        assert_eq!(process.wait(LIMIT), None, "a signal ended it");
    }

    /// Lets it come to its end.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("the process was started");
        assert_eq!(process.stop(), Some(0), "{}", process.stderr());
    }

    /// Runs a command with the process's configuration.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.home.finish(self.command(arguments))
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.home.command(arguments);
        command.envs(ANYBODY).env("SIGNING_KEY", SECRET).env("RELAY_SECRET", SECRET);
        command
    }

    fn make_tables_and_topics(&self) {
        for what in ["tables", "topics"] {
            self.run(&[what, "create"]).ok();
        }
    }
}

/// Does something to what the embedded engine of a home holds, while no process has it open.
pub async fn at_rest<T>(home: &Home, act: impl AsyncFnOnce(&Connected) -> T) -> T {
    let embedded = EmbeddedConnection { path: home.path("data") };
    let connections = Connections {
        store: StoreConnection::Embedded(embedded.clone()),
        log: LogConnection::Embedded(embedded),
        ..Connections::default()
    };
    let connected = connections.open().await.expect("nobody has the folder open");
    let done = act(&connected).await;
    connected.close().await;
    done
}

/// A shipped topology with these servers in place of the embedded engine.
fn on_servers(file: &str, store: &FaultyProxy, kafka: &Tansu, redis: &RedisServer) -> String {
    let connections = format!(
        "[connections.store]\nkind = 'dynamodb'\nendpoint = 'http://{}'\nregion = 'eu-central-1'\n\
         [connections.log]\nkind = 'kafka'\nbrokers = '{}'\n\
         [connections.live]\nkind = 'redis'\nurl = '{}'\n",
        store.address(),
        kafka.config().brokers,
        redis.url(),
    );
    let keys = "[auth]\nsigning_keys = [{ id = 'k1', secret_env = 'SIGNING_KEY' }]\n";
    shipped_on(file, &connections).replace("[auth]\n", keys)
}
