//! The servers that suites run on, and proxies that do them harm. Each is started by the test that needs it and ends
//! with it.

mod dynoxide;
mod forwarder;
mod kafka_proxy;
mod mock_kafka;
mod proxy;
pub mod redis;
mod shared;
mod tansu;

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

use crate::{LIMIT, until};

pub use dynoxide::{Dynoxide, connect};
pub use forwarder::Forwarder;
pub use kafka_proxy::{KafkaProxy, Point};
pub use mock_kafka::MockKafka;
pub use proxy::{Fault, FaultyProxy};
pub use shared::Shared;
pub use tansu::{Tansu, free_address};

/// The ports that were given to somebody, as long as this process lives.
static GIVEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Below those that systems give to clients: there, a client that looks for a server that is down could be given the
/// server's own port and keep it from starting again.
///
/// Nobody else is given it, in this process or another: a socket of the other protocol keeps it while the server for which
/// it is meant does not run.
pub fn free_port() -> u16 {
    until("a free port", LIMIT, || {
        let port = rand::random_range(10_000..30_000);
        let address = (Ipv4Addr::LOCALHOST, port);
        let given = UdpSocket::bind(address).ok()?;
        TcpListener::bind(address).ok()?;
        GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(given);
        Some(port)
    })
}
