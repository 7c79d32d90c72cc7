//! A store behind a grant.

use std::sync::Arc;

use async_trait::async_trait;

use super::grant::{Access, Grant};
use crate::store::{
    AdminStore, BatchWrite, ChangeStream, Created, Durability, Get, Item, Name, PackedItem, Page, Query,
    ReadStore, Result, Returning, Scan, ScanStore, Shard, ShardId, ShardReader, ShardStart, Store,
    StoreError, TableDescription, TableSchema, Transaction, Write, WriteStore,
};

/// The same store, which refuses what is not granted before anything is sent. Clones share it.
#[derive(Clone)]
pub struct RestrictedStore {
    store: Arc<dyn Store>,
    grant: Arc<Grant>,
}

impl RestrictedStore {
    pub fn new(store: Arc<dyn Store>, grant: Arc<Grant>) -> Self {
        Self { store, grant }
    }

    fn check(&self, table: &Name, access: Access) -> Result<()> {
        if self.grant.allows_table(table, access) {
            return Ok(());
        }
        Err(StoreError::NotAllowed { access: access.verb(), name: table.clone() })
    }

    fn check_write(&self, write: &Write) -> Result<()> {
        match write {
            // It changes nothing, and tells what is there.
            Write::Check { table, .. } => self.check(table, Access::Read),
            _ => self.check(write.table(), Access::Write),
        }
    }
}

/// No grant is for making, describing or removing tables.
fn no_admin<T>(what: &str) -> Result<T> {
    Err(StoreError::NotAllowed { access: "administer", name: what.into() })
}

#[async_trait]
impl ReadStore for RestrictedStore {
    async fn get(&self, get: Get) -> Result<Option<Item>> {
        self.check(&get.table, Access::Read)?;
        self.store.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>> {
        gets.iter().try_for_each(|get| self.check(&get.table, Access::Read))?;
        self.store.batch_get(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page> {
        self.check(&query.table, Access::Read)?;
        self.store.query(query).await
    }
}

#[async_trait]
impl WriteStore for RestrictedStore {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        self.check_write(&write)?;
        self.store.write(write, returning, durability).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        writes.iter().try_for_each(|write| self.check(write.table(), Access::Write))?;
        self.store.batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        transaction.writes.iter().try_for_each(|write| self.check_write(write))?;
        self.store.transact(transaction).await
    }
}

#[async_trait]
impl ScanStore for RestrictedStore {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        self.check(&scan.table, Access::Scan)?;
        self.store.scan(scan).await
    }

    async fn scan_packed(&self, scan: Scan) -> Result<Page<PackedItem>> {
        self.check(&scan.table, Access::Scan)?;
        self.store.scan_packed(scan).await
    }
}

#[async_trait]
impl ChangeStream for RestrictedStore {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        self.check(table, Access::Stream)?;
        self.store.shards(table).await
    }

    async fn open_shard(
        &self,
        table: &Name,
        shard: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        self.check(table, Access::Stream)?;
        self.store.open_shard(table, shard, start).await
    }
}

#[async_trait]
impl AdminStore for RestrictedStore {
    async fn tables(&self) -> Result<Vec<Name>> {
        no_admin("tables")
    }

    async fn create_table(&self, schema: &TableSchema) -> Result<Created> {
        no_admin(&schema.name)
    }

    async fn describe_table(&self, table: &Name) -> Result<Option<TableDescription>> {
        no_admin(table)
    }

    async fn drop_table(&self, table: &Name) -> Result<()> {
        no_admin(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tables::{messages, users};
    use crate::store::{Condition, Consistency, Key, Segment};

    /// Every question that is let through reaches it and fails in a way of its own.
    struct Reached;

    fn reached<T>() -> Result<T> {
        Err(StoreError::Unavailable("reached".into()))
    }

    #[async_trait]
    impl ReadStore for Reached {
        async fn get(&self, _: Get) -> Result<Option<Item>> {
            reached()
        }
        async fn batch_get(&self, _: Vec<Get>) -> Result<Vec<Option<Item>>> {
            reached()
        }
        async fn query(&self, _: Query) -> Result<Page> {
            reached()
        }
    }

    #[async_trait]
    impl WriteStore for Reached {
        async fn write(&self, _: Write, _: Returning, _: Durability) -> Result<Option<Item>> {
            reached()
        }
        async fn batch_write(&self, _: Vec<BatchWrite>) -> Result<()> {
            reached()
        }
        async fn transact(&self, _: Transaction) -> Result<()> {
            reached()
        }
    }

    #[async_trait]
    impl ScanStore for Reached {
        async fn scan(&self, _: Scan) -> Result<Page> {
            reached()
        }
    }

    #[async_trait]
    impl ChangeStream for Reached {
        async fn shards(&self, _: &Name) -> Result<Vec<Shard>> {
            reached()
        }
        async fn open_shard(&self, _: &Name, _: &ShardId, _: ShardStart) -> Result<Box<dyn ShardReader>> {
            reached()
        }
    }

    #[async_trait]
    impl AdminStore for Reached {
        async fn tables(&self) -> Result<Vec<Name>> {
            reached()
        }
        async fn create_table(&self, _: &TableSchema) -> Result<Created> {
            reached()
        }
        async fn describe_table(&self, _: &Name) -> Result<Option<TableDescription>> {
            reached()
        }
        async fn drop_table(&self, _: &Name) -> Result<()> {
            reached()
        }
    }

    fn get(table: &str) -> Get {
        Get { table: table.into(), key: Key::new("k", "v"), consistency: Consistency::Eventual }
    }

    fn transaction(writes: Vec<Write>) -> Transaction {
        Transaction { writes, token: None }
    }

    /// Everything a store can be asked about table `t`, beside the access it takes.
    async fn ask_everything(store: &dyn Store) -> Vec<(&'static str, Result<()>)> {
        let t = || Name::new_static("t");
        let put = || Write::put(t(), Item::new());
        let check =
            || Write::Check { table: t(), key: Key::new("k", "v"), condition: Condition::exists("k") };
        let batch = || vec![BatchWrite::Delete { table: t(), key: Key::new("k", "v") }];
        let mut indexed = Query::new(t(), "k", "v");
        indexed.index = Some("i".into());
        let scan = Scan {
            table: t(),
            segment: Segment::WHOLE,
            limit: None,
            start_after: None,
            consistency: Consistency::Eventual,
        };
        let schema = TableSchema { name: t(), ..users::SCHEMA.clone() };
        let shard = ShardId("s".into());
        vec![
            ("read", store.get(get("t")).await.map(drop)),
            ("read", store.batch_get(vec![get("t")]).await.map(drop)),
            ("read", store.query(Query::new(t(), "k", "v")).await.map(drop)),
            ("read", store.query(indexed).await.map(drop)),
            ("read", store.transact(transaction(vec![check()])).await),
            ("write", store.write(put(), Returning::Nothing, Durability::Synced).await.map(drop)),
            ("write", store.batch_write(batch()).await),
            ("write", store.transact(transaction(vec![put()])).await),
            ("scan", store.scan(scan).await.map(drop)),
            ("follow the changes of", store.shards(&t()).await.map(drop)),
            ("follow the changes of", store.open_shard(&t(), &shard, ShardStart::Oldest).await.map(drop)),
            ("administer", store.tables().await.map(drop)),
            ("administer", store.create_table(&schema).await.map(drop)),
            ("administer", store.describe_table(&t()).await.map(drop)),
            ("administer", store.drop_table(&t()).await),
        ]
    }

    #[tokio::test]
    async fn each_access_allows_its_own_and_nothing_else() {
        let all = [Access::Read, Access::Write, Access::Scan, Access::Stream];
        for access in all {
            let (granted, grant) = (access.verb(), Grant::nothing().table("t", access));
            let store = RestrictedStore::new(Arc::new(Reached), Arc::new(grant));
            for (index, (takes, answer)) in ask_everything(&store).await.into_iter().enumerate() {
                match answer.unwrap_err() {
                    StoreError::Unavailable(_) => assert_eq!(takes, granted, "question {index}"),
                    StoreError::NotAllowed { access, .. } => {
                        assert_eq!(access, takes, "question {index}");
                        assert_ne!(takes, granted, "question {index}");
                    }
                    error => panic!("question {index}: {error}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn one_table_outside_the_grant_refuses_the_whole() {
        let grant = Grant::nothing().table("messages", Access::Write).table("messages", Access::Read);
        let store = RestrictedStore::new(Arc::new(Reached), Arc::new(grant));
        let inside = || Write::put(messages::SCHEMA.name.clone(), Item::new());
        let outside = || Write::put("users", Item::new());
        let refused = |result: Result<()>| match result {
            Err(StoreError::NotAllowed { name, .. }) => assert_eq!(name, "users"),
            other => panic!("{other:?}"),
        };
        refused(store.transact(transaction(vec![inside(), outside()])).await);
        refused(store.batch_get(vec![get("messages"), get("users")]).await.map(drop));
        let batch =
            ["messages", "users"].map(|table| BatchWrite::Put { table: table.into(), item: Item::new() });
        refused(store.batch_write(batch.into()).await);
        let let_through = store.transact(transaction(vec![inside()])).await;
        assert!(matches!(let_through, Err(StoreError::Unavailable(_))));
    }

    #[tokio::test]
    async fn a_refusal_says_what_and_which() {
        let store = RestrictedStore::new(Arc::new(Reached), Arc::new(Grant::nothing()));
        let error = store.shards(&"messages".into()).await.unwrap_err();
        assert_eq!(error.to_string(), "this handle may not follow the changes of 'messages'");
    }
}
