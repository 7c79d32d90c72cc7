//! Where records end.

pub mod blackhole;
pub mod delivery_ack;
pub mod file;
pub mod kafka_publish;
pub mod parquet_write;
pub mod redis_deliver;
pub mod search_index;
pub mod stdout;
pub mod table;
pub mod webhook;
