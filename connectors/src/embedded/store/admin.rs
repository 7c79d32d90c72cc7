//! Making, describing and dropping tables.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::super::shared::Shared;
use super::table::{Table, TableEntry};
use super::{read_error, settle};
use crate::store::{AdminStore, Created, Name, Result, StoreError, TableDescription, TableSchema};

/// In the catalog's keyspace; followed by the table's name.
const TABLE: &str = "table/";

#[async_trait]
impl AdminStore for Engine {
    async fn tables(&self) -> Result<Vec<Name>> {
        let tables = self.shared.tables();
        let mut names: Vec<Name> = tables.keys().cloned().collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn create_table(&self, schema: &TableSchema) -> Result<Created> {
        let (reply, answer) = oneshot::channel();
        let job = CreateTable {
            shared: Arc::clone(&self.shared),
            schema: schema.clone(),
            outcome: Ok(None),
            reply,
        };
        self.answered(Box::new(job), answer).await
    }

    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>> {
        let Some(table) = self.shared.tables().get(table).cloned() else { return Ok(None) };
        Ok(Some(TableDescription {
            schema: table.schema.clone(),
            unknown: Vec::new(),
            items: u64::try_from(table.rows.approximate_len()).ok(),
            bytes: Some(table.rows.disk_space()), // as elsewhere, without indexes and changes
        }))
    }

    async fn drop_table(&self, table: &Name) -> Result<()> {
        let table = self.table(table)?;
        let (reply, answer) = oneshot::channel();
        let job = DropTable { shared: Arc::clone(&self.shared), table, outcome: Ok(()), reply };
        self.answered(Box::new(job), answer).await
    }
}

/// Opens every table of the catalog.
pub(in crate::embedded) fn open_tables(shared: &Shared) -> Result<()> {
    for row in shared.catalog_rows.prefix(TABLE) {
        let value = row.value().map_err(read_error)?;
        let entry: TableEntry = postcard::from_bytes(&value).map_err(|error| {
            StoreError::Damaged(format!("a table of the catalog cannot be read: {error}"))
        })?;
        let table = Table::open(&shared.database, &entry, &shared.numbering).map_err(read_error)?;
        shared.add_table(Arc::new(table));
    }
    Ok(())
}

fn catalog_key(table: &Name) -> Vec<u8> {
    format!("{TABLE}{table}").into_bytes()
}

struct CreateTable {
    shared: Arc<Shared>,
    schema: TableSchema,
    outcome: Result<Option<Arc<Table>>>,
    reply: oneshot::Sender<Result<Created>>,
}

impl CreateTable {
    fn create(&self, group: &mut Group) -> Result<Option<Arc<Table>>> {
        let key = catalog_key(&self.schema.name);
        if group.get(&self.shared.catalog_rows, &key).map_err(read_error)?.is_some() {
            return Ok(None);
        }
        let number = self.shared.next_number(group).map_err(read_error)?;
        let entry = TableEntry { number, schema: self.schema.clone() };
        let table = Table::open(&self.shared.database, &entry, &self.shared.numbering).map_err(read_error)?;
        let bytes = postcard::to_allocvec(&entry).expect("a table's entry can always be written to memory");
        group.put(&self.shared.catalog_rows, key, bytes);
        Ok(Some(Arc::new(table)))
    }
}

impl Job for CreateTable {
    fn bytes(&self) -> usize {
        1024
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.create(group);
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let created = settle(self.outcome, committed).map(|table| match table {
            Some(table) => {
                self.shared.add_table(table);
                Created::New { warnings: Vec::new() }
            }
            None => Created::Existing,
        });
        // a caller that went away does not want to know
        let _ = self.reply.send(created);
    }
}

struct DropTable {
    shared: Arc<Shared>,
    table: Arc<Table>,
    outcome: Result<()>,
    reply: oneshot::Sender<Result<()>>,
}

impl Job for DropTable {
    fn bytes(&self) -> usize {
        1024
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.table.check_exists();
        if self.outcome.is_ok() {
            self.table.dropped.store(true, Ordering::Relaxed);
            group.remove(&self.shared.catalog_rows, catalog_key(&self.table.schema.name));
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let dropped = settle(self.outcome, committed).and_then(|()| {
            self.shared.remove_table(&self.table.schema.name);
            // emptied and not deleted: see `Shared::empty_leftovers`
            self.table.keyspaces().try_for_each(|keyspace| keyspace.clear().map_err(read_error))
        });
        // a caller that went away does not want to know
        let _ = self.reply.send(dropped);
    }
}
