//! The product as several processes on DynamoDB, Kafka and Redis: two gateways, one that ingests, two that fan out. And
//! what a process on the embedded engine has left in its folder.

use courant_conformance::servers::redis::RedisServer;
use courant_conformance::servers::{Dynoxide, FaultyProxy, Tansu};
use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};

use crate::chat::shipped_pipelines_on;
use crate::{Courant, Home};

/// The servers, and every process of the product on them.
pub struct Deployment {
    pub gateways: [Courant; 2],
    pub ingest: Courant,
    pub workers: [Courant; 2],
    pub redis: RedisServer,
    /// In front of the store: throttles and breaks calls when asked to.
    pub store: FaultyProxy,
    homes: Vec<Home>,
    _servers: (Dynoxide, Tansu),
}

/// Credentials for a store that anybody may use.
pub const ANYBODY: [(&str, &str); 2] =
    [("AWS_ACCESS_KEY_ID", "anybody"), ("AWS_SECRET_ACCESS_KEY", "nothing")];

const SECRET: &str = "a secret that is long enough for everybody here";

impl Deployment {
    /// Starts everything; `home` makes a folder for a process.
    pub async fn start(home: impl Fn() -> Home) -> Self {
        let (dynoxide, tansu, redis) = (Dynoxide::start(), Tansu::start(), RedisServer::start());
        let store = FaultyProxy::before(dynoxide.address()).await;
        let connections = format!(
            "[connections.store]\nkind = 'dynamodb'\nendpoint = 'http://{}'\nregion = 'eu-central-1'\n\
             [connections.log]\nkind = 'kafka'\nbrokers = '{}'\n\
             [connections.live]\nkind = 'redis'\nurl = '{}'\n",
            store.address(),
            tansu.config().brokers,
            redis.url(),
        );
        let pipelines = shipped_pipelines_on(&connections);
        let keys = "signing_keys = [{ id = 'k1', secret_env = 'SIGNING_KEY' }]\n";
        let pipelines = pipelines.replace("[auth]\n", &format!("[auth]\n{keys}"));
        let port = free_port();
        let mut homes = Vec::new();
        let mut start = |config: String, arguments: &[&str]| {
            let home = home();
            home.replace_config(&config);
            let mut command = home.command(&[&["run"], arguments].concat());
            command.envs(ANYBODY).env("SIGNING_KEY", SECRET).env("RELAY_SECRET", SECRET);
            homes.push(home);
            Courant::spawn(command)
        };
        make_tables_and_topics(&home(), &pipelines);
        let relay = |rest: &str| format!("\n[edge.relay]\nsecret_env = 'RELAY_SECRET'\n{rest}\n");
        let ingest_config = format!("{pipelines}{}", relay(&format!("listen = '127.0.0.1:{port}'")));
        let ingest = start(ingest_config, &["--without-edge", "--only", "ingest,chats,accounts,acks,repair"]);
        let worker = ["--without-edge", "--only", "fanout,memberships"];
        let workers = [start(pipelines.clone(), &worker), start(pipelines.clone(), &worker)];
        let end = pipelines.find("[[pipeline]]").expect("the shipped file has pipelines");
        let tail = "\n[edge.limits]\nenabled = false\n";
        let gateway = format!("{}{tail}{}", &pipelines[..end], relay(&format!("to = ['127.0.0.1:{port}']")));
        let mut gateways = [start(gateway.clone(), &[]), start(gateway, &[])];
        for gateway in &mut gateways {
            gateway.wait_ready();
        }
        Self { gateways, ingest, workers, redis, store, homes, _servers: (dynoxide, tansu) }
    }

    /// A folder of one of the processes, for commands on the same servers.
    pub fn home(&self) -> &Home {
        &self.homes[0]
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

fn make_tables_and_topics(home: &Home, pipelines: &str) {
    home.replace_config(pipelines);
    for what in ["tables", "topics"] {
        let mut command = home.command(&[what, "create"]);
        command.envs(ANYBODY);
        home.finish(command).ok();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}
