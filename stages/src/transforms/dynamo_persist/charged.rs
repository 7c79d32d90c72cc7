//! The store, counting what DynamoDB would count: calls, items read and units written.
//!
//! The same on every store, so that what a flow will cost can be seen before it runs on AWS: `courant bench chat` prints it
//! per message.

use async_trait::async_trait;
use courant_connectors::store::{
    BatchWrite, Consistency, Durability, Get, Item, Page, Query, ReadStore, Result, Returning, Transaction,
    Write, WriteStore,
};

use crate::metrics;

/// Keys of one BatchGetItem, writes of one BatchWriteItem.
const GETS_PER_CALL: usize = 100;
const WRITES_PER_CALL: usize = 25;
/// A write unit is a kilobyte, begun; in a transaction it counts twice.
const UNIT_BYTES: usize = 1024;
const TRANSACTED: usize = 2;

pub(super) struct Charged<S>(pub(super) S);

#[async_trait]
impl<S: ReadStore> ReadStore for Charged<S> {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        read(1, std::iter::once(&get));
        self.0.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        read(gets.len().div_ceil(GETS_PER_CALL), gets.iter());
        self.0.batch_get(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        metrics::store_calls(1);
        self.0.query(query).await
    }
}

#[async_trait]
impl<S: WriteStore> WriteStore for Charged<S> {
    async fn write(&self, write: Write, returning: Returning, how: Durability) -> Result<Option<Item>> {
        metrics::store_calls(1);
        metrics::store_write_units(units(&write));
        self.0.write(write, returning, how).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        metrics::store_calls(writes.len().div_ceil(WRITES_PER_CALL));
        metrics::store_write_units(writes.len());
        self.0.batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        metrics::store_calls(1);
        metrics::store_write_units(TRANSACTED * transaction.writes.iter().map(units).sum::<usize>());
        self.0.transact(transaction).await
    }
}

/// What is looked up here is smaller than the four kilobytes that a read unit covers.
fn read<'a>(calls: usize, gets: impl Iterator<Item = &'a Get>) {
    let (mut eventual, mut strong) = (0, 0);
    for get in gets {
        match get.consistency {
            Consistency::Eventual => eventual += 1,
            Consistency::Strong => strong += 1,
        }
    }
    metrics::store_calls(calls);
    metrics::store_reads(eventual, strong);
}

/// What is not a whole item is a counter's update.
fn units(write: &Write) -> usize {
    match write {
        Write::Put { item, .. } => item.size().div_ceil(UNIT_BYTES),
        Write::Update { .. } | Write::Delete { .. } | Write::Check { .. } => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begun_kilobyte_is_a_unit() {
        let put = |bytes: usize| Write::put("t", Item::new().with("k", "x".repeat(bytes - 1)));
        assert_eq!([1, 1024, 1025, 4096].map(|bytes| units(&put(bytes.max(2)))), [1, 1, 2, 4]);
    }
}
