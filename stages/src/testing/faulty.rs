//! A store whose writes go wrong when a test says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use courant_connectors::store::{
    AdminStore, BatchWrite, ChangeStream, Created, Durability, Get, Item, Name, Page, Query, ReadStore,
    Result, Returning, Scan, ScanStore, Shard, ShardId, ShardReader, ShardStart, Store, StoreError,
    TableDescription, TableSchema, Transaction, Write, WriteStore,
};
use tokio::sync::Barrier;

/// What happens to one write or transaction.
pub(crate) enum Fault {
    /// It is refused, and nothing is written.
    Refused(StoreError),
    /// It is written, and nobody learns of it: as if the process had died.
    Unheard,
    /// It waits until as many others have come as far.
    Meets(Arc<Barrier>),
}

pub(crate) struct FaultyStore {
    store: Arc<dyn Store>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writes: u32,
    faults: BTreeMap<u32, Fault>,
}

impl FaultyStore {
    pub(crate) fn before(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, state: Mutex::default() })
    }

    /// Lets a write of those to come go wrong; the next one is the first.
    pub(crate) fn nth(&self, nth: u32, fault: Fault) {
        let mut state = self.state.lock().unwrap();
        let at = state.writes + nth;
        state.faults.insert(at, fault);
    }

    /// How many writes and transactions there were.
    pub(crate) fn writes(&self) -> u32 {
        self.state.lock().unwrap().writes
    }

    async fn faulty<T>(&self, write: impl Future<Output = Result<T>>) -> Result<T> {
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.writes += 1;
            let at = state.writes;
            state.faults.remove(&at)
        };
        match fault {
            Some(Fault::Refused(error)) => return Err(error),
            Some(Fault::Unheard) => {
                write.await?;
                return Err(StoreError::UnknownOutcome("no answer".to_owned()));
            }
            Some(Fault::Meets(barrier)) => {
                barrier.wait().await;
            }
            None => {}
        }
        write.await
    }
}

#[async_trait]
impl ReadStore for FaultyStore {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        self.store.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        self.store.batch_get(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        self.store.query(query).await
    }
}

#[async_trait]
impl WriteStore for FaultyStore {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        self.faulty(self.store.write(write, returning, durability)).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        self.faulty(self.store.batch_write(writes)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        self.faulty(self.store.transact(transaction)).await
    }
}

#[async_trait]
impl ScanStore for FaultyStore {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        self.store.scan(scan).await
    }
}

#[async_trait]
impl ChangeStream for FaultyStore {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        self.store.shards(table).await
    }

    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        self.store.open_shard(table, shard, start).await
    }
}

#[async_trait]
impl AdminStore for FaultyStore {
    async fn tables(&self) -> Result<Vec<Name>> {
        self.store.tables().await
    }

    async fn create_table(&self, schema: &TableSchema) -> Result<Created> {
        self.store.create_table(schema).await
    }

    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>> {
        self.store.describe_table(table).await
    }

    async fn drop_table(&self, table: &Name) -> Result<()> {
        self.store.drop_table(table).await
    }
}
