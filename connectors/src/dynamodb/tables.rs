//! Table names below the prefix, and what must be known of a table to read it: its keys, and when items end.
//!
//! The data model tells its schemas at the start; any other table is asked for once, when it is first used,
//! and remembered. So no read costs a second call, and a table that the model does not know still hides what
//! has ended.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use super::DynamoDb;
use super::error::Doing;
use crate::store::{Item, Name, Result, StoreError, TableSchema};

#[derive(Debug)]
pub(super) struct KnownTables {
    prefix: String,
    /// Held for a look or an insert only.
    schemas: RwLock<HashMap<Name, Arc<TableSchema>>>,
}

impl KnownTables {
    pub(super) fn new(prefix: String, schemas: &[TableSchema]) -> Self {
        let known = schemas.iter().map(|schema| (schema.name.clone(), Arc::new(schema.clone())));
        Self { prefix, schemas: RwLock::new(known.collect()) }
    }

    /// The table's name as DynamoDB has it.
    pub(super) fn full_name(&self, table: &Name) -> String {
        format!("{}{table}", self.prefix)
    }

    /// The name below the prefix, or `None` for a table of somebody else.
    pub(super) fn own_name(&self, full_name: &str) -> Option<Name> {
        full_name.strip_prefix(&self.prefix).map(Name::from)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn remember(&self, schema: TableSchema) -> Arc<TableSchema> {
        let schema = Arc::new(schema);
        let mut schemas = self.schemas.write().unwrap_or_else(PoisonError::into_inner);
        schemas.insert(schema.name.clone(), Arc::clone(&schema));
        schema
    }

    pub(super) fn forget(&self, table: &Name) {
        self.schemas.write().unwrap_or_else(PoisonError::into_inner).remove(table);
    }

    fn get(&self, table: &Name) -> Option<Arc<TableSchema>> {
        self.schemas.read().unwrap_or_else(PoisonError::into_inner).get(table).cloned()
    }
}

impl DynamoDb {
    pub(super) async fn schema(&self, table: &Name) -> Result<Arc<TableSchema>> {
        if let Some(known) = self.tables.get(table) {
            return Ok(known);
        }
        let doing = Doing::new("learn the keys", table);
        match self.describe_keys_and_ttl(&doing).await? {
            Some(schema) => Ok(self.tables.remember(schema)),
            None => Err(StoreError::NoSuchTable { table: table.clone() }),
        }
    }
}

/// Hides what has ended, whether or not DynamoDB has removed it yet; it may take days.
pub(super) fn unless_ended(schema: &TableSchema, item: Item) -> Option<Item> {
    (!schema.has_ended(&item, since_1970())).then_some(item)
}

#[allow(clippy::disallowed_methods, reason = "connectors know no pipeline, whose clock it would be")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
