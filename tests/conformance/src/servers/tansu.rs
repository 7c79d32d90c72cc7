//! tansu: a broker that speaks Kafka's protocol, as a process of its own.
//!
//! With its SQLite storage in a folder of the test: its storage in memory (0.6) counts batches where it
//! should count records, so that watermarks are wrong and reading cannot start within a batch.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::Log;
use tempfile::TempDir;

use super::free_port;
use crate::log::LogServer;
use crate::{LIMIT, until};

/// Ends the broker when the pipe to it closes, so that it goes even if the tests are killed.
const GUARD: &str = r#""$@" & broker=$!; read -r _; kill -9 "$broker"; wait "$broker""#;

pub struct Tansu {
    /// None while it is killed.
    guard: Option<Child>,
    address: SocketAddr,
    advertised: SocketAddr,
    folder: TempDir,
}

impl Tansu {
    /// Starts one with a folder of its own.
    ///
    /// # Panics
    /// If it is not installed, or does not listen in time.
    pub fn start() -> Self {
        let address = free_address();
        Self::behind(address, address)
    }

    /// Starts one that listens at `address`, a free one, and tells clients to come to another.
    ///
    /// # Panics
    /// If it is not installed, or does not listen in time.
    pub fn behind(address: SocketAddr, advertised: SocketAddr) -> Self {
        let binary = binary();
        assert!(binary.exists(), "there is no {}; tests/run installs it", binary.display());
        let folder = tempfile::tempdir().expect("a folder for tansu");
        let mut tansu = Self { guard: None, address, advertised, folder };
        tansu.start_again();
        tansu
    }

    pub fn config(&self) -> KafkaConfig {
        KafkaConfig::at(self.advertised.to_string())
    }

    /// Ends it without warning. What it acknowledged is on disk.
    pub fn kill(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }

    /// Starts it after it was killed: at the same address, with what it had.
    ///
    /// # Panics
    /// If it does not listen in time.
    pub fn start_again(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("a file for tansu's log");
        let guard = Command::new("sh")
            .args(["-c", GUARD, "tansu-guard"])
            .arg(binary())
            .args(["broker", "--silent", "--storage-engine", "sqlite://tansu.db"])
            .args(["--listener-url", &format!("tcp://{}", self.address)])
            .args(["--advertised-listener-url", &format!("tcp://{}", self.advertised)])
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("a shell starts tansu");
        self.guard = Some(guard);
        until("tansu listens", LIMIT, || TcpStream::connect(self.address).ok());
    }
}

impl Drop for Tansu {
    fn drop(&mut self) {
        self.kill();
    }
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

/// One where nobody listens now.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}
