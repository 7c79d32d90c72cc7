//! tansu: a broker that speaks Kafka's protocol, as a process of its own.
//!
//! With its SQLite storage in a folder of the test: its storage in memory (0.6) counts batches where it
//! should count records, so that watermarks are wrong and reading cannot start within a batch.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::Log;
use tempfile::TempDir;

use crate::log::LogServer;
use crate::{LIMIT, until};

/// Ends the broker when the pipe to it closes, so that it goes even if the tests are killed.
const GUARD: &str = r#""$@" & broker=$!; read -r _; kill -9 "$broker"; wait "$broker""#;

pub struct Tansu {
    guard: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Tansu {
    /// Starts one with a folder of its own.
    ///
    /// # Panics
    /// If it is not installed, or does not listen in time.
    pub fn start() -> Self {
        let binary = binary();
        assert!(binary.exists(), "there is no {}; tests/run installs it", binary.display());
        let folder = tempfile::tempdir().expect("a folder for tansu");
        let address = free_address();
        let tansu = Self { guard: spawn(&folder, address), address, folder };
        until("tansu listens", LIMIT, || TcpStream::connect(address).ok());
        tansu
    }

    /// Ends it without warning. What it has acknowledged is on disk.
    pub fn kill(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }

    /// Starts it again after [`Tansu::kill`], at the same address and with what it had.
    pub fn start_again(&mut self) {
        self.guard = spawn(&self.folder, self.address);
        until("tansu listens again", LIMIT, || TcpStream::connect(self.address).ok());
    }

    pub fn config(&self) -> KafkaConfig {
        KafkaConfig::at(self.address.to_string())
    }
}

impl Drop for Tansu {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(folder: &TempDir, address: SocketAddr) -> Child {
    let url = format!("tcp://{address}");
    let log = std::fs::File::create(folder.path().join("log")).expect("a file for tansu's log");
    Command::new("sh")
        .args(["-c", GUARD, "tansu-guard"])
        .arg(binary())
        .args(["broker", "--silent", "--storage-engine", "sqlite://tansu.db"])
        .args(["--listener-url", &url, "--advertised-listener-url", &url])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(log.try_clone().expect("a file can be shared"))
        .stderr(log)
        .spawn()
        .expect("a shell starts tansu")
}

#[async_trait]
impl LogServer for Tansu {
    async fn log(&self) -> Arc<dyn Log> {
        Arc::new(Kafka::open(self.config()).await.expect("tansu answers"))
    }
}

/// Where `tests/run` puts it.
fn binary() -> PathBuf {
    let cache = std::env::var_os("COURANT_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/courant"),
        PathBuf::from,
    );
    cache.join("tansu/bin/tansu")
}

/// Nobody else takes a port that was just free: the system hands them out in turn.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it listens")
}
