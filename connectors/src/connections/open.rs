//! From configuration to open handles.
//!
//! The embedded engine gets the model's tables and topics when it is opened, so that a fresh machine needs no command
//! before the first one. On servers they are made on purpose, with `courant tables create` and `courant topics create`,
//! since they cost money and somebody decides on them.

use std::path::Path;
use std::sync::Arc;

use super::{Connections, LiveConnection, LogConnection, StoreConnection};
use crate::dynamodb::DynamoDb;
use crate::embedded::{Engine, MemoryLive, OpenError, Options};
use crate::kafka::Kafka;
use crate::live::{Live, LiveError};
use crate::log::{AdminLog, Log, LogError};
use crate::model::tables::TABLES;
use crate::model::topics;
use crate::redis::Redis;
use crate::store::{AdminStore, Store, StoreError, TableSchema};

/// What was being connected; the source says why it failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("opening the embedded engine")]
    Embedded(#[from] OpenError),
    #[error("connecting to the store")]
    Store(#[from] StoreError),
    #[error("connecting to the log")]
    Log(#[from] LogError),
    #[error("connecting to live state")]
    Live(#[from] LiveError),
}

/// Handles on everything, and the engines behind them that are to be closed.
#[derive(Clone)]
pub struct Connected {
    pub store: Arc<dyn Store>,
    pub log: Arc<dyn Log>,
    pub live: Arc<dyn Live>,
    store_engine: Option<Arc<Engine>>,
    log_engine: Option<Arc<Engine>>,
}

impl Connected {
    /// The embedded engines behind the handles; none if all are servers.
    pub fn engines(&self) -> impl Iterator<Item = &Arc<Engine>> {
        let is_stores = |engine: &Arc<Engine>| {
            self.store_engine.as_ref().is_some_and(|stores| Arc::ptr_eq(stores, engine))
        };
        self.store_engine.iter().chain(self.log_engine.iter().filter(move |engine| !is_stores(engine)))
    }

    /// Why the embedded store takes no more writes, though it still answers.
    pub fn store_trouble(&self) -> Option<String> {
        self.store_engine.as_ref()?.trouble()
    }

    /// The same of the embedded log.
    pub fn log_trouble(&self) -> Option<String> {
        self.log_engine.as_ref()?.trouble()
    }

    /// Puts on disk what the embedded engine holds. Servers need no good-bye.
    pub async fn close(&self) {
        for engine in self.engines() {
            engine.close().await;
        }
    }
}

impl Connections {
    pub async fn open(&self) -> Result<Connected, ConnectError> {
        let (mut store_engine, mut log_engine) = (None, None);
        let store: Arc<dyn Store> = match &self.store {
            StoreConnection::Embedded(embedded) => {
                let engine = Engine::open(embedded.engine_folder(), Options::default()).await?;
                for schema in TABLES {
                    engine.create_table(schema).await?;
                }
                Arc::clone(store_engine.insert(engine)) as _
            }
            StoreConnection::DynamoDb(config) => Arc::new(DynamoDb::open(config, &schemas()).await?),
        };
        let log: Arc<dyn Log> = match &self.log {
            LogConnection::Embedded(embedded) => {
                let engine = or_open(store_engine.as_ref(), &embedded.engine_folder()).await?;
                for spec in &topics::all() {
                    engine.create_topic(spec).await?;
                }
                Arc::clone(log_engine.insert(engine)) as _
            }
            LogConnection::Kafka(config) => Arc::new(Kafka::open((**config).clone()).await?),
        };
        let live = self.open_live().await?;
        Ok(Connected { store, log, live, store_engine, log_engine })
    }

    /// The store alone, for commands that need no more; with what is to be closed after it.
    pub async fn open_store(&self) -> Result<(Arc<dyn Store>, Option<Arc<Engine>>), ConnectError> {
        match &self.store {
            StoreConnection::Embedded(embedded) => {
                let engine = Engine::open(embedded.engine_folder(), Options::default()).await?;
                Ok((Arc::clone(&engine) as Arc<dyn Store>, Some(engine)))
            }
            StoreConnection::DynamoDb(config) => {
                Ok((Arc::new(DynamoDb::open(config, &schemas()).await?), None))
            }
        }
    }

    /// Live state alone, for commands that need no more.
    pub async fn open_live(&self) -> Result<Arc<dyn Live>, ConnectError> {
        Ok(match &self.live {
            LiveConnection::Embedded {} => Arc::new(MemoryLive::new()),
            LiveConnection::Redis(config) => Arc::new(Redis::open(config).await?),
        })
    }

    /// The log alone, for commands that need no more; with what is to be closed after it.
    pub async fn open_log(&self) -> Result<(Arc<dyn Log>, Option<Arc<Engine>>), ConnectError> {
        match &self.log {
            LogConnection::Embedded(embedded) => {
                let engine = Engine::open(embedded.engine_folder(), Options::default()).await?;
                Ok((Arc::clone(&engine) as Arc<dyn Log>, Some(engine)))
            }
            LogConnection::Kafka(config) => Ok((Arc::new(Kafka::open((**config).clone()).await?), None)),
        }
    }
}

fn schemas() -> Vec<TableSchema> {
    TABLES.into_iter().cloned().collect()
}

/// Store and log in one folder are one engine, so that they share a journal.
async fn or_open(engine: Option<&Arc<Engine>>, path: &Path) -> Result<Arc<Engine>, OpenError> {
    match engine.filter(|engine| engine.folder() == path) {
        Some(engine) => Ok(Arc::clone(engine)),
        None => Engine::open(path, Options::default()).await,
    }
}

#[cfg(test)]
mod tests {
    use crate::connections::{Connections, EmbeddedConnection, LogConnection, StoreConnection};

    #[tokio::test]
    async fn a_fresh_folder_has_the_models_tables_and_topics() {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        for _ in 0..2 {
            let connected = connections.open().await.unwrap();
            assert_eq!(connected.engines().count(), 1, "one folder is one engine");
            assert_eq!(connected.store.tables().await.unwrap().len(), crate::model::tables::TABLES.len());
            assert_eq!(connected.log.topics().await.unwrap().len(), 4);
            connected.close().await;
        }
    }
}
