//! Where records come from.

pub mod dead_letter_read;
pub mod dynamo_scan;
pub mod dynamo_stream;
pub mod file;
pub mod generate;
pub mod kafka_consume;
pub mod kafka_read;
pub mod rest_ingest;
pub mod unpublished;
pub mod ws_ingest;
