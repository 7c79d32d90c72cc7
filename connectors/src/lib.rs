//! Clients for what pipelines read and write, and their twins that need no server.
//!
//! This crate knows no pipeline: it offers plain types and named operations, and `courant-stages` makes stages
//! of them.
//!
//! - [`store`], [`log`], [`live`]: what can be asked of the three levels of authority, as narrow traits.
//! - [`model`]: the tables, topics and key families, and every access pattern as a named function.
//! - [`capability`]: handles on them that cannot do more than was granted.
//! - [`embedded`]: all three without a server: store and log in a folder, live state in memory.
//! - [`dynamodb`]: the store on DynamoDB, or on what speaks its protocol.
//! - [`kafka`]: the log on Apache Kafka.
//! - [`redis`]: live state on Redis.
//! - [`stream`]: following a table's changes together with others.
//! - [`connections`]: the configuration that says where store, log and live state are.
//! - [`http`]: posting to an address on the web.
//! - [`files`]: what lives in a folder of its own on the local disk: dead letters, kept positions, JSON lines.
//! - [`search`]: full-text search over messages, in a folder too.

pub mod capability;
pub mod connections;
pub mod dynamodb;
pub mod embedded;
pub mod files;
pub mod http;
pub mod kafka;
pub mod live;
pub mod log;
pub mod model;
pub mod redis;
pub mod search;
pub mod store;
pub mod stream;
