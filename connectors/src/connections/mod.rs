//! `[connections]`: where store, log and live state are. The doc comments are the user's documentation.
//!
//! Each is a server or the embedded engine, which needs none. Without a word about it everything is embedded in one
//! folder, so that a fresh machine can run the product; naming a server changes one table and no pipeline. Reading the
//! table connects to nothing.

mod open;
pub(crate) mod span;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dynamodb::DynamoDbConfig;
use crate::kafka::KafkaConfig;
use crate::redis::RedisConfig;

pub use open::{ConnectError, Connected};

/// Where the data is: the store is the truth, the log what happened to it, live state what may be forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Connections {
    /// The tables. Level 1: the truth.
    pub store: StoreConnection,
    /// The topics. Level 2: what happened, derived from the store.
    pub log: LogConnection,
    /// Connections, caches and messages between processes. Level 3: can be lost at any moment.
    pub live: LiveConnection,
}

/// `"embedded"` or `"dynamodb"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum StoreConnection {
    /// In this process and a folder of its own.
    Embedded(EmbeddedConnection),
    /// Amazon DynamoDB, or a server that speaks its protocol.
    DynamoDb(DynamoDbConfig),
}

/// `"embedded"` or `"kafka"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LogConnection {
    /// In this process and a folder of its own; in the store's folder, both share one journal.
    Embedded(EmbeddedConnection),
    /// Apache Kafka, or brokers that speak its protocol.
    Kafka(Box<KafkaConfig>),
}

/// `"embedded"` or `"redis"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum LiveConnection {
    /// In this process's memory, for as long as it runs. Only for a single process: others would not know who is
    /// connected here.
    Embedded {},
    /// A Redis server or cluster.
    Redis(RedisConfig),
}

/// The embedded engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmbeddedConnection {
    /// Its folder is `engine` in here, created if it is missing. One process per folder.
    pub path: PathBuf,
}

impl EmbeddedConnection {
    /// Where the engine's own files are: apart from what else a process keeps under the path, which has a lock of its own.
    pub fn engine_folder(&self) -> PathBuf {
        self.path.join("engine")
    }
}

impl Default for EmbeddedConnection {
    fn default() -> Self {
        Self { path: PathBuf::from("data") }
    }
}

impl Default for StoreConnection {
    fn default() -> Self {
        Self::Embedded(EmbeddedConnection::default())
    }
}

impl Default for LogConnection {
    fn default() -> Self {
        Self::Embedded(EmbeddedConnection::default())
    }
}

impl Default for LiveConnection {
    fn default() -> Self {
        Self::Embedded {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_word_everything_is_embedded_in_one_folder() {
        let defaults = serde_json::to_value(Connections::default()).unwrap();
        assert_eq!(
            defaults,
            json!({
                "store": {"kind": "embedded", "path": "data"},
                "log": {"kind": "embedded", "path": "data"},
                "live": {"kind": "embedded"},
            })
        );
        assert_eq!(serde_json::from_value::<Connections>(json!({})).unwrap(), Connections::default());
    }

    #[test]
    fn servers_are_named_by_kind() {
        let table = json!({
            "store": {"kind": "dynamodb", "endpoint": "http://127.0.0.1:8000", "table_prefix": "dev_"},
            "log": {"kind": "kafka", "brokers": "a:9092,b:9092"},
            "live": {"kind": "redis", "url": "redis://127.0.0.1:6379"},
        });
        let read: Connections = serde_json::from_value(table.clone()).unwrap();
        assert!(matches!(&read.store, StoreConnection::DynamoDb(store) if store.table_prefix == "dev_"));
        assert!(matches!(&read.log, LogConnection::Kafka(log) if log.brokers == "a:9092,b:9092"));
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["live"]["url"], table["live"]["url"]);
        assert_eq!(serde_json::from_value::<Connections>(written).unwrap(), read);
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        for table in [
            json!({"store": {"kind": "embedded", "region": "eu-central-1"}}),
            json!({"log": {"kind": "kafka", "brokers": "a:9092", "path": "data"}}),
            json!({"live": {"kind": "embedded", "path": "data"}}),
            json!({"stor": {"kind": "embedded"}}),
        ] {
            assert!(serde_json::from_value::<Connections>(table.clone()).is_err(), "{table}");
        }
    }
}
