//! dynoxide, a server that speaks DynamoDB's protocol, in the test's own process.
//!
//! On a thread and a runtime of its own: it runs SQLite on its workers, and a test must not wait behind that.
//! Each one has its own empty database in memory, and a free port.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use courant_connectors::dynamodb::{Credentials, DynamoDb, DynamoDbConfig};
use dynoxide::Database;
use tokio::sync::oneshot;

use crate::LIMIT;

pub struct Dynoxide {
    address: SocketAddr,
    /// Sent or dropped: the server stops.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Dynoxide {
    /// Returns when it listens.
    pub fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        listener.set_nonblocking(true).expect("a socket can be told not to block");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime can be made").block_on(async move {
                let listener =
                    tokio::net::TcpListener::from_std(listener).expect("the socket does not block");
                let database = Database::memory().expect("memory can hold an empty database");
                let serving = dynoxide::server::serve_with_shutdown(listener, database, async {
                    stopped.await.ok();
                });
                serving.await.expect("nothing but the shutdown ends the server");
            });
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client with connections of its own.
    pub async fn connect(&self) -> DynamoDb {
        connect(self.address, |config| config).await
    }
}

impl Drop for Dynoxide {
    fn drop(&mut self) {
        // A connection that is still open keeps the server's shutdown waiting, so its thread is left to end
        // alone.
        drop(self.stop.take());
        drop(self.thread.take());
    }
}

/// A client of whatever listens there, configured differently than usual if need be.
pub async fn connect(
    address: SocketAddr,
    configured: impl FnOnce(DynamoDbConfig) -> DynamoDbConfig,
) -> DynamoDb {
    let config = configured(DynamoDbConfig {
        endpoint: Some(format!("http://{address}")),
        region: Some("eu-central-1".into()),
        table_prefix: "test-".into(),
        // A hundred tests on two cores are slow, and not for what they test.
        attempt_timeout: LIMIT,
        operation_timeout: LIMIT,
        ..DynamoDbConfig::default()
    });
    let anybody = Credentials::new("anybody", "nothing", None, None, "test");
    DynamoDb::open_as(&config, &[], anybody).await.expect("opening makes no call")
}
