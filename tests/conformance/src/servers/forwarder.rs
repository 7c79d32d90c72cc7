//! An address on loopback that leads to a server, and later to another, as a name or a balancer does after a failover.
//!
//! Connections that are open stay with the server they came to. It counts those that come, so that a test can tell
//! how often a client tried.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Ends when it is dropped.
pub struct Forwarder {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    port: AtomicU16,
    accepted: AtomicU64,
}

impl Forwarder {
    /// Leads to this port of loopback.
    pub async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { port: port.into(), accepted: AtomicU64::default() });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections go that come from now on.
    pub fn lead_to(&self, port: u16) {
        self.shared.port.store(port, Ordering::SeqCst);
    }

    /// How many connections came so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends the connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let port = shared.port.load(Ordering::SeqCst);
        // An error is a connection that one side or the other ended.
        connections.spawn(async move { pass(client, port).await.ok() });
        while connections.try_join_next().is_some() {}
    }
}

/// Until both sides end.
async fn pass(mut client: TcpStream, port: u16) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
