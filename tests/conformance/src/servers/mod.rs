//! The servers that suites run on. Each is started by the test that needs it and ends with it.

mod mock_kafka;
mod shared;
mod tansu;

pub use mock_kafka::MockKafka;
pub use shared::Shared;
pub use tansu::Tansu;
