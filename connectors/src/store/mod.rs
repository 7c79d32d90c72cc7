//! The store: items in tables, the truth of the system.
//!
//! Four narrow traits, so that a handle can be given out that cannot do more than its holder should: a
//! [`ReadStore`] has no method that writes. Requests are plain data; conditions and updates are typed trees that
//! DynamoDB gets as expression strings and the embedded engine evaluates. What a method promises, it promises for
//! every store; `tests/` runs one conformance suite on all of them.
//!
//! Every store hides items whose time has come, removed or not.

mod changes;
pub(crate) mod codec;
mod condition;
mod error;
mod number;
mod packed;
mod request;
mod schema;
mod update;
mod value;

use async_trait::async_trait;

pub use changes::{Change, ChangeStream, SequenceNumber, Shard, ShardId, ShardRead, ShardReader, ShardStart};
pub use condition::{Comparison, Condition};
pub use error::{CancelReason, Remedy, StoreError};
pub use number::{Number, NumberError};
pub use packed::{PackedAttributes, PackedItem, PackedValue, Place};
pub use request::{
    BatchWrite, Consistency, Direction, Durability, Get, Key, Page, PageToken, Query, Returning, Scan,
    Segment, SortRange, Transaction, Within, Write,
};
pub use schema::{Capacity, IndexSchema, KeyAttribute, KeyKind, Projection, Stream, TableSchema};
pub use update::{Action, Update};
pub use value::{Item, Name, Text, Value};

/// DynamoDB's limits, which hold for every store so that what works on one works on all.
pub const MAX_ITEM_BYTES: usize = 400 * 1024;
pub const MAX_TRANSACTION: usize = 100;
pub const MAX_TRANSACTION_BYTES: usize = 4 * 1024 * 1024;
pub const MAX_PARTITION_KEY_BYTES: usize = 2048;
pub const MAX_SORT_KEY_BYTES: usize = 1024;
/// A page ends after this much, whatever its limit.
pub const MAX_PAGE_BYTES: usize = 1024 * 1024;

pub type Result<T> = std::result::Result<T, StoreError>;

/// Looking up items by key.
#[async_trait]
pub trait ReadStore: Send + Sync {
    async fn get(&self, get: Get) -> Result<Option<Item>>;

    /// Any number of items, found or not in the order asked; the same key may be asked for twice. Strong reads for
    /// a table if any of its gets is.
    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>>;

    async fn query(&self, query: Query) -> Result<Page>;
}

/// Reading everything, which no request of a client may do.
#[async_trait]
pub trait ScanStore: Send + Sync {
    async fn scan(&self, scan: Scan) -> Result<Page>;

    /// The same, for those who go through everything and look at little of each item.
    async fn scan_packed(&self, scan: Scan) -> Result<Page<PackedItem>> {
        let Page { items, next } = self.scan(scan).await?;
        Ok(Page { items: items.iter().map(PackedItem::from).collect(), next })
    }
}

/// Changing items. When a call returns, the change is on disk and every later strong read sees it.
#[async_trait]
pub trait WriteStore: Send + Sync {
    /// One put, update or delete. Answers with what `returning` asks for, if there is such an item.
    async fn write(&self, write: Write, returning: Returning, durability: Durability)
    -> Result<Option<Item>>;

    /// Any number of puts and deletes, each on its own: an error may leave some of them done. The last one wins
    /// where a key comes twice.
    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()>;

    /// All writes or none; conditions are checked and changes made at one moment.
    async fn transact(&self, transaction: Transaction) -> Result<()>;
}

/// Making tables and looking at how they are made.
#[async_trait]
pub trait AdminStore: Send + Sync {
    async fn tables(&self) -> Result<Vec<Name>>;

    /// Creates the table and waits until it can be used.
    async fn create_table(&self, schema: &TableSchema) -> Result<Created>;

    /// The table as it is, or `None`; what the store has no notion of is as the schema would have it by default.
    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>>;

    /// Removes the table and all it holds.
    async fn drop_table(&self, table: &Name) -> Result<()>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// With what the store could not do, such as point-in-time recovery on a stand-in.
    New { warnings: Vec<String> },
    /// It was there; whether it is the same is another question.
    Existing,
    /// It was there without something that is set only after a table is made, and that is on now: what, as for people.
    Completed { turned_on: Vec<&'static str>, warnings: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDescription {
    pub schema: TableSchema,
    /// What the store does not tell, such as point-in-time recovery on a stand-in; not to be counted as drift.
    pub unknown: Vec<&'static str>,
    pub items: Option<u64>,
    pub bytes: Option<u64>,
}

/// For stages that look before they write.
pub trait ReadWriteStore: ReadStore + WriteStore {}
impl<T: ReadStore + WriteStore + ?Sized> ReadWriteStore for T {}

/// Everything a store can do.
pub trait Store: ReadWriteStore + ScanStore + ChangeStream + AdminStore {}
impl<T: ReadWriteStore + ScanStore + ChangeStream + AdminStore + ?Sized> Store for T {}
