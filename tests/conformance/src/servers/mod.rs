//! The servers that suites run on, and proxies that do them harm. Each is started by the test that needs it and ends
//! with it.

mod dynoxide;
mod kafka_proxy;
mod mock_kafka;
mod proxy;
pub mod redis;
mod shared;
mod tansu;

use std::net::TcpListener;

use crate::{LIMIT, until};

pub use dynoxide::{Dynoxide, connect};
pub use kafka_proxy::{KafkaProxy, Point};
pub use mock_kafka::MockKafka;
pub use proxy::{Fault, FaultyProxy};
pub use shared::Shared;
pub use tansu::{Tansu, free_address};

/// Below those that systems give to clients: there, a client that looks for a server that is down could be given the
/// server's own port and keep it from starting again.
pub fn free_port() -> u16 {
    until("a free port", LIMIT, || {
        let port = rand::random_range(10_000..30_000);
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}
