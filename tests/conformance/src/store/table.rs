//! A table of a case, and the requests that cases make most.

use std::borrow::Cow;
use std::sync::Arc;

use courant_connectors::store::{
    Capacity, Condition, Consistency, Created, Direction, Durability, Get, IndexSchema, Item, Key,
    KeyAttribute, Name, Page, Projection, Query, Result, Returning, Scan, Segment, Store, Stream,
    TableSchema, Transaction, Update, Write,
};

/// Never used before, here or on the server that an earlier run used.
pub(super) fn unique_name(case: &str) -> Name {
    Name::from(format!("{case}-{:016x}", rand::random::<u64>()))
}

/// Items by the text `k` alone.
pub(crate) fn plain() -> TableSchema {
    TableSchema {
        name: Name::default(),
        partition: KeyAttribute::text("k"),
        sort: None,
        indexes: Cow::Borrowed(&[]),
        ttl: None,
        stream: Stream::Off,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

/// Items by the text `p` and a sort key `s` of this kind.
pub(super) fn sorted_by(sort: KeyAttribute) -> TableSchema {
    TableSchema { partition: KeyAttribute::text("p"), sort: Some(sort), ..plain() }
}

/// By `owner` in the order of the number `rank`, with all attributes; by `tag` with the keys alone.
pub(super) const INDEXES: &[IndexSchema] = &[
    IndexSchema {
        name: Name::new_static("by-owner"),
        partition: KeyAttribute::text("owner"),
        sort: Some(KeyAttribute::number("rank")),
        projection: Projection::All,
    },
    IndexSchema {
        name: Name::new_static("by-tag"),
        partition: KeyAttribute::text("tag"),
        sort: None,
        projection: Projection::KeysOnly,
    },
];

pub(super) fn indexed() -> TableSchema {
    TableSchema { indexes: Cow::Borrowed(INDEXES), ..plain() }
}

/// The key of a table by `k`.
pub(super) fn key(k: &str) -> Key {
    Key::new("k", k)
}

/// An item of a table by `k`.
pub(crate) fn item(k: &str) -> Item {
    Item::new().with("k", k)
}

pub(crate) struct Table {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: Name,
}

impl Table {
    /// A new table like this one; its name is made from the case's.
    pub(crate) async fn create(store: &Arc<dyn Store>, case: &str, like: TableSchema) -> Self {
        let schema = TableSchema { name: unique_name(case), ..like };
        let created = store.create_table(&schema).await.expect("a new table can be made");
        assert!(matches!(created, Created::New { .. }), "{created:?}");
        Self { store: Arc::clone(store), name: schema.name }
    }

    pub(crate) async fn put(&self, item: Item) {
        self.write(Write::put(self.name.clone(), item), Returning::Nothing)
            .await
            .expect("a put without condition");
    }

    pub(super) async fn put_all(&self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            self.put(item).await;
        }
    }

    pub(super) async fn put_if(&self, item: Item, condition: Condition) -> Result<Option<Item>> {
        self.write(Write::put(self.name.clone(), item).only_if(condition), Returning::Nothing).await
    }

    pub(super) async fn update(
        &self,
        key: Key,
        update: Update,
        returning: Returning,
    ) -> Result<Option<Item>> {
        self.write(Write::update(self.name.clone(), key, update), returning).await
    }

    pub(super) async fn delete(&self, key: Key) {
        let delete = Write::delete(self.name.clone(), key);
        self.write(delete, Returning::Nothing).await.expect("a delete without condition");
    }

    pub(super) async fn write(&self, write: Write, returning: Returning) -> Result<Option<Item>> {
        self.store.write(write, returning, Durability::Synced).await
    }

    pub(super) async fn transact(&self, writes: Vec<Write>) -> Result<()> {
        self.store.transact(Transaction { writes, token: None }).await
    }

    pub(super) async fn get(&self, key: Key) -> Option<Item> {
        self.try_get(key).await.expect("a get by the table's key")
    }

    pub(super) async fn try_get(&self, key: Key) -> Result<Option<Item>> {
        self.store.get(self.strong(key)).await
    }

    pub(super) fn strong(&self, key: Key) -> Get {
        Get { table: self.name.clone(), key, consistency: Consistency::Strong }
    }

    /// A strong query for a partition of a table that is sorted.
    pub(super) fn partition(&self, p: &str) -> Query {
        Query { consistency: Consistency::Strong, ..Query::new(self.name.clone(), "p", p) }
    }

    /// A query for a partition of an index.
    pub(super) fn of_index(&self, index: &'static str, attribute: &'static str, value: &str) -> Query {
        Query { index: Some(Name::new_static(index)), ..Query::new(self.name.clone(), attribute, value) }
    }

    pub(super) async fn page(&self, query: Query) -> Page {
        self.store.query(query).await.expect("a query by the table's keys")
    }

    /// All pages of a query, of at most this many items each.
    pub(super) async fn all(&self, mut query: Query, limit: Option<u32>) -> Vec<Item> {
        query.limit = limit;
        let mut items = Vec::new();
        loop {
            let page = self.page(query.clone()).await;
            if let Some(limit) = limit {
                assert!(page.items.len() <= limit as usize, "a page of {} for {limit}", page.items.len());
            }
            items.extend(page.items);
            match page.next {
                Some(next) => query.start_after = Some(next),
                None => return items,
            }
        }
    }

    /// All pages of a part of the table.
    pub(super) async fn scan(&self, segment: Segment, limit: Option<u32>) -> Vec<Item> {
        let mut scan = self.scan_of(segment, limit);
        let mut items = Vec::new();
        loop {
            let page = self.store.scan(scan.clone()).await.expect("a scan of the table");
            let packed = self.store.scan_packed(scan.clone()).await.expect("a scan of the table");
            let unpacked: Vec<_> = packed.items.iter().map(|item| item.unpack().expect("an item")).collect();
            assert_eq!((&unpacked, &packed.next), (&page.items, &page.next), "packed or not");
            items.extend(page.items);
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => return items,
            }
        }
    }

    pub(super) fn scan_of(&self, segment: Segment, limit: Option<u32>) -> Scan {
        let (table, consistency) = (self.name.clone(), Consistency::Strong);
        Scan { table, segment, limit, start_after: None, consistency }
    }
}

/// Both, for what must hold in either.
pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Forward, Direction::Backward];

/// The numbers in an attribute, in the order of the items.
pub(super) fn numbers(items: &[Item], attribute: &str) -> Vec<u64> {
    items.iter().map(|item| item.u64(attribute).expect("the attribute is a number")).collect()
}

/// The texts in an attribute, in the order of the items.
pub(super) fn texts<'a>(items: &'a [Item], attribute: &str) -> Vec<&'a str> {
    items.iter().map(|item| item.text(attribute).expect("the attribute is a text")).collect()
}
