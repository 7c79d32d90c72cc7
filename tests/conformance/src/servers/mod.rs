//! The servers that suites run on, and a proxy that does them harm. Each is started by the test that needs it and ends
//! with it.

mod dynoxide;
mod mock_kafka;
mod proxy;
pub mod redis;
mod shared;
mod tansu;

pub use dynoxide::{Dynoxide, connect};
pub use mock_kafka::MockKafka;
pub use proxy::{Fault, FaultyProxy};
pub use shared::Shared;
pub use tansu::Tansu;
