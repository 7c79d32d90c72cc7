//! The store on DynamoDB, or on any server that speaks its protocol.
//!
//! Requests become expressions with placeholders, answers become items, and errors become [`StoreError`]s
//! that say whether a write happened: a refused one did not, and one that was sent and not answered has an
//! unknown outcome. The SDK tries again what is safe to repeat; the rest only when it was refused (see
//! `attempts`). What comes back unprocessed from a batch is sent again a bounded number of times. Ended items
//! are hidden from every read.
//!
//! Rejected: typed items through `serde_dynamo`. Values here are already typed, and decimals would pass
//! through floats.

mod admin;
mod attempts;
mod batch;
mod client;
mod config;
mod convert;
mod describe;
mod error;
mod expression;
mod limits;
mod read;
mod stream;
mod tables;
mod transact;
mod write;

use std::sync::Arc;

pub use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::config::SharedCredentialsProvider;

pub use config::DynamoDbConfig;

use client::Clients;
use tables::KnownTables;

use crate::store::{StoreError, TableSchema};

/// Tables of DynamoDB below one prefix. Clones share connections.
#[derive(Debug, Clone)]
pub struct DynamoDb {
    clients: Clients,
    tables: Arc<KnownTables>,
}

impl DynamoDb {
    /// Prepares connections; the first call makes one. `schemas` are the tables that are known beforehand.
    pub async fn open(config: &DynamoDbConfig, schemas: &[TableSchema]) -> Result<Self, StoreError> {
        Self::open_with(config, schemas, None).await
    }

    /// Like [`open`](Self::open) with these credentials instead of those of the environment: for a server
    /// that does not look at them, such as a stand-in in a test.
    pub async fn open_as(
        config: &DynamoDbConfig,
        schemas: &[TableSchema],
        credentials: Credentials,
    ) -> Result<Self, StoreError> {
        Self::open_with(config, schemas, Some(SharedCredentialsProvider::new(credentials))).await
    }

    async fn open_with(
        config: &DynamoDbConfig,
        schemas: &[TableSchema],
        credentials: Option<SharedCredentialsProvider>,
    ) -> Result<Self, StoreError> {
        let clients = Clients::new(config, credentials).await?;
        Ok(Self { clients, tables: Arc::new(KnownTables::new(config.table_prefix.clone(), schemas)) })
    }
}
