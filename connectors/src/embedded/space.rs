//! How much the folder takes, and for what.

use serde::Serialize;

use super::Engine;
use super::care::{CareError, blocking};

/// Bytes on disk. What is in the journal only is counted there, until it becomes part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Space {
    pub tables: Vec<TableSpace>,
    pub topics: Vec<TopicSpace>,
    /// The engine's own: what tables and topics there are, tokens, offsets of groups.
    pub catalog_bytes: u64,
    pub journal_bytes: u64,
    pub total_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableSpace {
    pub name: String,
    /// With rows that were replaced and not yet cleaned up counted twice.
    pub rows_at_most: u64,
    pub rows_bytes: u64,
    pub indexes: Vec<IndexSpace>,
    pub expiry_bytes: u64,
    pub changes_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IndexSpace {
    pub name: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopicSpace {
    pub name: String,
    pub partitions: u32,
    /// That can be read, of all partitions.
    pub records: u64,
    pub bytes: u64,
}

impl TableSpace {
    pub fn total_bytes(&self) -> u64 {
        let indexes: u64 = self.indexes.iter().map(|index| index.bytes).sum();
        self.rows_bytes + indexes + self.expiry_bytes + self.changes_bytes
    }
}

impl Engine {
    /// What every table, index and topic takes, by name.
    pub async fn space(&self) -> Result<Space, CareError> {
        let shared = &self.shared;
        let mut tables: Vec<_> = shared.tables().values().map(|table| table.space()).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        let mut topics: Vec<_> = shared.topics().values().map(|topic| topic.space()).collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        let own = [&shared.catalog_rows, &shared.tokens.0, &shared.group_offsets];
        let catalog_bytes = own.iter().map(|keyspace| keyspace.disk_space()).sum();
        let database = shared.database.clone();
        let journal = blocking(move || database.journal_disk_space()).await;
        let journal_bytes = journal.map_err(|error| self.care_error(&error))?;
        let tables_bytes: u64 = tables.iter().map(TableSpace::total_bytes).sum();
        let topics_bytes: u64 = topics.iter().map(|topic| topic.bytes).sum();
        let total_bytes = tables_bytes + topics_bytes + catalog_bytes + journal_bytes;
        Ok(Space { tables, topics, catalog_bytes, journal_bytes, total_bytes })
    }
}
