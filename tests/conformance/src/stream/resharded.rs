//! A store whose change stream has other shards than it really has: they split, are trimmed and go away when told to.
//!
//! Neither the embedded engine nor dynoxide does any of that by itself, and on AWS nobody can ask for it. So what the
//! store says is cut up on its way: a shard here is those changes of a real one whose keys fall in its share, from
//! one sequence number to another. Everything else is the store's own.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock};

use async_trait::async_trait;
use courant_connectors::store::{
    BatchWrite, CancelReason, Change, ChangeStream, Durability, Get, Item, Key, Name, Page, Query, ReadStore,
    Result, Returning, Scan, ScanStore, SequenceNumber, Shard, ShardId, ShardRead, ShardReader, ShardStart,
    Store, StoreError, Transaction, Write, WriteStore,
};
use tokio::sync::Mutex;

pub(super) struct Resharded {
    store: Arc<dyn Store>,
    table: Name,
    /// Held while something is read, so that a split is at one moment for everybody.
    shards: Arc<Mutex<BTreeMap<ShardId, Part>>>,
    readers: Readers,
    /// What a server says that is behind.
    old_list: Lock<Option<Vec<Shard>>>,
    lists: AtomicUsize,
    is_broken: Arc<AtomicBool>,
    is_mute: AtomicBool,
    refuses_to_open: AtomicBool,
    /// Transactions that are still to be canceled.
    throttled: AtomicUsize,
}

/// Items of a page of a scan, so that few make several.
const PAGE: u32 = 7;

/// A shard: a share of a real one.
#[derive(Clone)]
struct Part {
    real: ShardId,
    parent: Option<ShardId>,
    /// Of so many shares of the keys, which one.
    share: (u64, u64),
    /// Behind this it begins, and with that it ends, if it does.
    after: Option<SequenceNumber>,
    through: Option<SequenceNumber>,
    /// Nothing up to this is kept.
    trimmed: Option<SequenceNumber>,
}

impl Part {
    fn has(&self, key: &Key) -> bool {
        let mut hasher = DefaultHasher::new();
        format!("{key:?}").hash(&mut hasher);
        hasher.finish() % self.share.1 == self.share.0
    }

    fn oldest(&self) -> Option<SequenceNumber> {
        self.after.iter().chain(&self.trimmed).max().cloned()
    }
}

/// How many read each shard at this moment, and how many at the most.
#[derive(Clone, Default)]
struct Readers(Arc<Lock<HashMap<ShardId, (usize, usize)>>>);

impl Readers {
    fn count(&self, shard: &ShardId, change: impl Fn(usize) -> usize) {
        let mut readers = self.0.lock().unwrap();
        let (now, most) = readers.entry(shard.clone()).or_default();
        *now = change(*now);
        *most = (*most).max(*now);
    }
}

impl Resharded {
    /// With the shards that the table has.
    pub(super) async fn of(store: Arc<dyn Store>, table: Name) -> Arc<Self> {
        let real = store.shards(&table).await.expect("the table has a stream");
        let parts = real.into_iter().map(|Shard { id, .. }| {
            let part = Part {
                real: id.clone(),
                parent: None,
                share: (0, 1),
                after: None,
                through: None,
                trimmed: None,
            };
            (id, part)
        });
        let shards = Arc::new(Mutex::new(parts.collect()));
        Arc::new(Self {
            store,
            table,
            shards,
            readers: Readers::default(),
            old_list: Lock::new(None),
            lists: AtomicUsize::new(0),
            is_broken: Arc::default(),
            is_mute: AtomicBool::new(false),
            refuses_to_open: AtomicBool::new(false),
            throttled: AtomicUsize::new(0),
        })
    }

    /// The same for somebody else, with breakdowns of their own.
    pub(super) fn beside(&self) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&self.store),
            table: self.table.clone(),
            shards: Arc::clone(&self.shards),
            readers: self.readers.clone(),
            old_list: Lock::new(None),
            lists: AtomicUsize::new(0),
            is_broken: Arc::default(),
            is_mute: AtomicBool::new(false),
            refuses_to_open: AtomicBool::new(false),
            throttled: AtomicUsize::new(0),
        })
    }

    /// Ends every open shard; each has two children from now on.
    pub(super) async fn split(&self) {
        let mut shards = self.shards.lock().await;
        let open: Vec<(ShardId, Part)> = open(&shards).map(|(id, part)| (id.clone(), part.clone())).collect();
        for (id, part) in open {
            let end = self.end_of(&part.real).await;
            shards.get_mut(&id).expect("it was there").through = Some(end.clone());
            for half in 0..2 {
                let share = (part.share.0 + half * part.share.1, part.share.1 * 2);
                let (parent, after) = (Some(id.clone()), Some(end.clone()));
                let child = Part { parent, share, after, ..part.clone() };
                // In the order of their names, children come before their parents.
                shards.insert(ShardId(format!("{half}-{}", id.0).into()), child);
            }
        }
    }

    /// Forgets everything that has happened: shards that have ended are gone, the others begin now.
    pub(super) async fn trim(&self) {
        let mut shards = self.shards.lock().await;
        shards.retain(|_, part| part.through.is_none());
        for part in shards.values_mut() {
            part.trimmed = Some(self.end_of(&part.real).await);
        }
    }

    /// The list as it should be.
    pub(super) async fn list(&self) -> Vec<Shard> {
        let shards = self.shards.lock().await;
        shards.iter().map(|(id, part)| Shard { id: id.clone(), parent: part.parent.clone() }).collect()
    }

    /// Every list is this one from now on.
    pub(super) fn always_lists(&self, old: Vec<Shard>) {
        *self.old_list.lock().unwrap() = Some(old);
    }

    /// Whether reads fail.
    pub(super) fn breaks(&self, is_broken: bool) {
        self.is_broken.store(is_broken, Ordering::SeqCst);
    }

    /// Whether nothing that is written arrives.
    pub(super) fn mutes(&self, is_mute: bool) {
        self.is_mute.store(is_mute, Ordering::SeqCst);
    }

    /// Whether no shard is opened, for a reason that says nothing of the shard.
    pub(super) fn refuses_to_open(&self, refuses: bool) {
        self.refuses_to_open.store(refuses, Ordering::SeqCst);
    }

    /// Cancels so many transactions from now on, as a store that is asked for too much.
    pub(super) fn throttles(&self, transactions: usize) {
        self.throttled.store(transactions, Ordering::SeqCst);
    }

    fn can_write(&self) -> Result<()> {
        if self.is_mute.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("told to be mute".into()));
        }
        Ok(())
    }

    /// How often shards were listed.
    pub(super) fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    /// How many read one shard at the same time, at the most.
    pub(super) fn most_readers(&self) -> usize {
        self.readers.0.lock().unwrap().values().map(|(_, most)| *most).max().unwrap_or_default()
    }

    /// The last change of a real shard so far.
    async fn end_of(&self, real: &ShardId) -> SequenceNumber {
        let opened = self.store.open_shard(&self.table, real, ShardStart::Oldest).await;
        let (mut reader, mut end) = (opened.expect("it is there"), SequenceNumber("0".into()));
        loop {
            let ShardRead::Changes(changes) = reader.read(1000).await.expect("it can be read") else {
                return end;
            };
            match changes.last() {
                Some(last) => end = last.sequence.clone(),
                None => return end,
            }
        }
    }
}

fn open(shards: &BTreeMap<ShardId, Part>) -> impl Iterator<Item = (&ShardId, &Part)> {
    shards.iter().filter(|(_, part)| part.through.is_none())
}

#[async_trait]
impl ChangeStream for Resharded {
    async fn shards(&self, table: &Name) -> Result<Vec<Shard>> {
        assert_eq!(*table, self.table, "nobody follows another");
        self.lists.fetch_add(1, Ordering::SeqCst);
        let right = self.list().await;
        Ok(self.old_list.lock().unwrap().clone().unwrap_or(right))
    }

    async fn open_shard(
        &self,
        table: &Name,
        id: &ShardId,
        start: ShardStart,
    ) -> Result<Box<dyn ShardReader>> {
        if self.refuses_to_open.load(Ordering::SeqCst) {
            return Err(StoreError::Invalid("told to refuse".into()));
        }
        let shards = self.shards.lock().await;
        let part = shards.get(id).ok_or_else(|| trimmed(table, id))?;
        let from = match start {
            ShardStart::Oldest => part.oldest(),
            ShardStart::After(after) if part.trimmed.as_ref().is_some_and(|trimmed| after < *trimmed) => {
                return Err(trimmed(table, id));
            }
            ShardStart::After(after) => Some(after),
            ShardStart::Latest => panic!("nobody begins there"),
        };
        let nothing = SequenceNumber("0".into());
        let real_start =
            from.clone().filter(|from| *from != nothing).map_or(ShardStart::Oldest, ShardStart::After);
        let real = self.store.open_shard(table, &part.real, real_start).await?;
        self.readers.count(id, |readers| readers + 1);
        Ok(Box::new(Reader {
            real,
            table: table.clone(),
            id: id.clone(),
            from,
            shards: Arc::clone(&self.shards),
            readers: self.readers.clone(),
            is_broken: Arc::clone(&self.is_broken),
        }))
    }
}

fn trimmed(table: &Name, id: &ShardId) -> StoreError {
    StoreError::Trimmed { table: table.clone(), position: format!("shard '{}'", id.0) }
}

struct Reader {
    real: Box<dyn ShardReader>,
    table: Name,
    id: ShardId,
    /// Behind what was read.
    from: Option<SequenceNumber>,
    shards: Arc<Mutex<BTreeMap<ShardId, Part>>>,
    readers: Readers,
    is_broken: Arc<AtomicBool>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.readers.count(&self.id, |readers| readers - 1);
    }
}

#[async_trait]
impl ShardReader for Reader {
    async fn read(&mut self, limit: usize) -> Result<ShardRead> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("told to break".into()));
        }
        let shards = self.shards.lock().await;
        let part = shards.get(&self.id).ok_or_else(|| trimmed(&self.table, &self.id))?;
        if part.trimmed.as_ref().is_some_and(|trimmed| self.from.as_ref() < Some(trimmed)) {
            return Err(trimmed(&self.table, &self.id));
        }
        loop {
            let ShardRead::Changes(changes) = self.real.read(limit).await? else {
                return Ok(ShardRead::Ended);
            };
            let is_within =
                |change: &Change| part.through.as_ref().is_none_or(|through| change.sequence <= *through);
            let is_at_end = part.through.is_some() && !changes.iter().any(is_within);
            let is_over = changes.is_empty();
            self.from = changes.last().map(|last| last.sequence.clone()).or(self.from.take());
            let ours: Vec<Change> =
                changes.into_iter().filter(|change| is_within(change) && part.has(&change.key)).collect();
            if is_at_end {
                return Ok(ShardRead::Ended);
            }
            if is_over || !ours.is_empty() {
                return Ok(ShardRead::Changes(ours));
            }
        }
    }

    fn has_more(&self) -> bool {
        self.real.has_more()
    }

    async fn wait(&mut self) {
        self.real.wait().await;
    }
}

#[async_trait]
impl ReadStore for Resharded {
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
impl WriteStore for Resharded {
    async fn write(
        &self,
        write: Write,
        returning: Returning,
        durability: Durability,
    ) -> Result<Option<Item>> {
        self.can_write()?;
        self.store.write(write, returning, durability).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<()> {
        self.can_write()?;
        self.store.batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<()> {
        self.can_write()?;
        let take_one = |left: usize| left.checked_sub(1);
        if self.throttled.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take_one).is_ok() {
            let reasons = transaction.writes.iter().map(|_| Some(CancelReason::Throttled)).collect();
            return Err(StoreError::TransactionCanceled { reasons });
        }
        self.store.transact(transaction).await
    }
}

#[async_trait]
impl ScanStore for Resharded {
    async fn scan(&self, scan: Scan) -> Result<Page> {
        self.store.scan(Scan { limit: Some(PAGE), ..scan }).await
    }
}
