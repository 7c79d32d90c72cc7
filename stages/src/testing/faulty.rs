//! A store in front of another that counts its calls and has faults when a test wants them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use courant_connectors::store::{
    AdminStore, BatchWrite, ChangeStream, Consistency, Created, Durability, Get, Item, Name, Page, Query,
    ReadStore, Result, Returning, Scan, ScanStore, Shard, ShardId, ShardReader, ShardStart, Store,
    StoreError, TableDescription, TableSchema, Transaction, Write, WriteStore,
};
use tokio::sync::{Barrier, Notify};

/// What the store is asked.
pub(crate) enum Call<'a> {
    BatchGet,
    Write(&'a Write),
    BatchWrite,
    Transact(&'a Transaction),
}

/// What goes wrong with a call.
pub(crate) enum Fault {
    /// It is not done, and this is the answer.
    Refuse(StoreError),
    /// It is done, and this is the answer.
    Lose(StoreError),
    /// The process dies before it is done, or right after.
    CrashBefore,
    CrashAfter,
    /// Eventual reads find nothing.
    Stale,
    /// Somebody else is faster.
    Meanwhile(Transaction),
    /// It waits until as many others have come as far.
    Meets(Arc<Barrier>),
}

impl Fault {
    /// It is done, and nobody learns of it.
    pub(crate) fn unheard() -> Self {
        Self::Lose(StoreError::UnknownOutcome("no answer".to_owned()))
    }
}

type Plan = Box<dyn FnMut(Call<'_>) -> Option<Fault> + Send>;

pub(crate) struct FaultyStore {
    store: Arc<dyn Store>,
    plan: Mutex<Plan>,
    calls: Mutex<Vec<&'static str>>,
    writes: Mutex<Writes>,
    crashed: Notify,
}

/// Writes, batches of writes and transactions by number, and what goes wrong with some of them.
#[derive(Default)]
struct Writes {
    count: u32,
    faults: BTreeMap<u32, Fault>,
}

impl FaultyStore {
    pub(crate) fn before(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            plan: Mutex::new(Box::new(|_| None)),
            calls: Mutex::default(),
            writes: Mutex::default(),
            crashed: Notify::new(),
        }
    }

    /// Asks `plan` about each call from now on.
    pub(crate) fn plan(&self, plan: impl FnMut(Call<'_>) -> Option<Fault> + Send + 'static) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(plan);
    }

    pub(crate) fn works_again(&self) {
        self.plan(|_| None);
    }

    /// Has a fault the first time that a call is of this kind.
    pub(crate) fn once(&self, is: impl Fn(&Call<'_>) -> bool + Send + 'static, fault: Fault) {
        let mut fault = Some(fault);
        self.plan(move |call| if is(&call) { fault.take() } else { None });
    }

    /// Lets a write of those to come go wrong; the next one is the first.
    pub(crate) fn nth(&self, nth: u32, fault: Fault) {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let at = writes.count + nth;
        writes.faults.insert(at, fault);
    }

    /// How many writes, batches of writes and transactions there were.
    pub(crate) fn writes(&self) -> u32 {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// The calls since this was asked last.
    pub(crate) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a planned crash.
    pub(crate) async fn crashed(&self) {
        self.crashed.notified().await;
    }

    fn ask(&self, name: &'static str, call: Call<'_>) -> Option<Fault> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        if !matches!(call, Call::BatchGet) {
            let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
            writes.count += 1;
            let at = writes.count;
            if let Some(fault) = writes.faults.remove(&at) {
                return Some(fault);
            }
        }
        (self.plan.lock().unwrap_or_else(PoisonError::into_inner))(call)
    }

    async fn with<T>(&self, fault: Option<Fault>, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match fault {
            None | Some(Fault::Stale) => work.await,
            Some(Fault::Refuse(error)) => Err(error),
            Some(Fault::Lose(error)) => work.await.and(Err(error)),
            Some(Fault::Meanwhile(transaction)) => {
                self.store.transact(transaction).await.unwrap();
                work.await
            }
            Some(Fault::Meets(barrier)) => {
                barrier.wait().await;
                work.await
            }
            Some(Fault::CrashBefore) => self.crash().await,
            Some(Fault::CrashAfter) => {
                work.await?;
                self.crash().await
            }
        }
    }

    async fn crash<T>(&self) -> T {
        self.crashed.notify_one();
        std::future::pending().await
    }
}

#[async_trait]
impl ReadStore for FaultyStore {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        self.store.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        let fault = self.ask("batch_get", Call::BatchGet);
        let eventual: Vec<bool> = gets.iter().map(|get| get.consistency == Consistency::Eventual).collect();
        let stale = matches!(fault, Some(Fault::Stale));
        let mut found = self.with(fault, self.store.batch_get(gets)).await?;
        for (item, eventual) in found.iter_mut().zip(eventual) {
            item.take_if(|_| stale && eventual);
        }
        Ok(found)
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
        let fault = self.ask("write", Call::Write(&write));
        self.with(fault, self.store.write(write, returning, durability)).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        let fault = self.ask("batch_write", Call::BatchWrite);
        self.with(fault, self.store.batch_write(writes)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        let fault = self.ask("transact", Call::Transact(&transaction));
        self.with(fault, self.store.transact(transaction)).await
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
