//! A store that counts what it is asked, so that a case can tell that something never came that far.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use courant_connectors::store::{
    AdminStore, BatchWrite, ChangeStream, Created, Durability, Get, Item, Name, Page, Query, ReadStore,
    Result, Returning, Scan, ScanStore, Shard, ShardId, ShardReader, ShardStart, Store, TableDescription,
    TableSchema, Transaction, Write, WriteStore,
};

pub(super) struct CountingStore {
    store: Arc<dyn Store>,
    asked: AtomicUsize,
}

impl CountingStore {
    pub(super) fn before(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, asked: AtomicUsize::new(0) })
    }

    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn count(&self) -> &dyn Store {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &*self.store
    }
}

#[async_trait]
impl ReadStore for CountingStore {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        self.count().get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        self.count().batch_get(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        self.count().query(query).await
    }
}

#[async_trait]
impl WriteStore for CountingStore {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        self.count().write(write, returning, durability).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        self.count().batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        self.count().transact(transaction).await
    }
}

#[async_trait]
impl ScanStore for CountingStore {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        self.count().scan(scan).await
    }
}

#[async_trait]
impl ChangeStream for CountingStore {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        self.count().shards(table).await
    }

    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        self.count().open_shard(table, shard, start).await
    }
}

#[async_trait]
impl AdminStore for CountingStore {
    async fn tables(&self) -> Result<Vec<Name>> {
        self.count().tables().await
    }

    async fn create_table(&self, schema: &TableSchema) -> Result<Created> {
        self.count().create_table(schema).await
    }

    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>> {
        self.count().describe_table(table).await
    }

    async fn drop_table(&self, table: &Name) -> Result<()> {
        self.count().drop_table(table).await
    }
}
