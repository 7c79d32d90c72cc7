//! What the engine's parts share: the database below, the catalog of tables and topics, and the clock.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use fjall::{
    CompressionType, Database, DatabaseBuilder, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    Snapshot,
};
use rustc_hash::FxHashMap;

use super::clock::Clock;
use super::group::Group;
use super::log::{Groups, StoredTopic};
use super::moment::Moment;
use super::store::{Numbering, Table, Tokens};
use crate::log::Topic;
use crate::store::Name;

/// The highest number given to a table or topic, in the catalog's keyspace.
const LAST_ENTRY: &[u8] = b"last-entry";

pub(super) struct Shared {
    pub(super) database: Database,
    moment: Moment,
    /// What tables and topics there are, and single values of the engine itself.
    pub(super) catalog_rows: Keyspace,
    pub(super) tokens: Arc<Tokens>,
    pub(super) numbering: Arc<Numbering>,
    /// How far consumer groups have come.
    pub(super) group_offsets: Keyspace,
    pub(super) groups: Groups,
    pub(super) clock: Clock,
    tables: Catalog<Name, Table>,
    topics: Catalog<Topic, StoredTopic>,
}

impl Shared {
    pub(super) fn open(database: Database, clock: Clock) -> Result<Self, fjall::Error> {
        let keyspace = |name| open_keyspace(&database, name);
        let catalog_rows = keyspace("catalog")?;
        Ok(Self {
            tokens: Arc::new(Tokens(keyspace("tokens")?)),
            numbering: Arc::new(Numbering::open(&catalog_rows)?),
            group_offsets: keyspace("groups")?,
            groups: Groups::default(),
            moment: Moment::of(&database),
            catalog_rows,
            database,
            clock,
            tables: Catalog::default(),
            topics: Catalog::default(),
        })
    }

    /// What readers see now.
    pub(super) fn moment(&self) -> Arc<Snapshot> {
        self.moment.latest()
    }

    /// See [`Moment::advance`].
    pub(super) fn advance(&self) {
        self.moment.advance(&self.database);
    }

    pub(super) fn tables(&self) -> Arc<FxHashMap<Name, Arc<Table>>> {
        self.tables.all()
    }

    pub(super) fn add_table(&self, table: Arc<Table>) {
        self.tables.change(|tables| tables.insert(table.name().clone(), table));
    }

    pub(super) fn remove_table(&self, name: &Name) {
        self.tables.change(|tables| tables.remove(name));
    }

    pub(super) fn topics(&self) -> Arc<FxHashMap<Topic, Arc<StoredTopic>>> {
        self.topics.all()
    }

    pub(super) fn add_topic(&self, topic: Arc<StoredTopic>) {
        self.topics.change(|topics| topics.insert(topic.name().clone(), topic));
    }

    pub(super) fn remove_topic(&self, name: &Topic) {
        self.topics.change(|topics| topics.remove(name));
    }

    /// A number for a new table or topic, never given before.
    pub(super) fn next_number(&self, group: &mut Group) -> Result<u32, fjall::Error> {
        let last = group.get(&self.catalog_rows, LAST_ENTRY)?;
        let last = last.and_then(|bytes| Some(u32::from_be_bytes((*bytes).try_into().ok()?))).unwrap_or(0);
        group.put(&self.catalog_rows, LAST_ENTRY.to_vec(), (last + 1).to_be_bytes().to_vec());
        Ok(last + 1)
    }
}

/// How each folder is written, of the engine, of a backup and of what a stage keeps: whoever opens it later reads it the
/// same way.
pub(super) fn folder_builder(folder: &Path) -> DatabaseBuilder<Database> {
    Database::builder(folder)
        // who writes says when, in one place
        .manual_journal_persist(true)
        // what is synced is small or incompressible more often than not; files are compressed later
        .journal_compression(CompressionType::None)
}

/// A tree of its own for one kind of rows. Its newest rows are in memory up to this size, then they become a file; the
/// journal's limit bounds all trees together.
pub(super) fn open_keyspace(database: &Database, name: &str) -> Result<Keyspace, fjall::Error> {
    const IN_MEMORY_BYTES: u64 = 64 << 20;
    // What a group appends or changes is one large value, written once and read in order: kept out of the tree, it is
    // not copied again whenever the tree is tidied up.
    let has_large_values = name.ends_with(".chunks") || name.ends_with(".changes");
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(IN_MEMORY_BYTES)
            .manual_journal_persist(true) // the committer says when, in one place
            .with_kv_separation(has_large_values.then(KvSeparationOptions::default))
    };
    database.keyspace(name, options)
}

/// Read on every call and changed hardly ever, so readers share a map that is replaced as a whole.
struct Catalog<K, V>(RwLock<Arc<FxHashMap<K, Arc<V>>>>);

impl<K, V> Default for Catalog<K, V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Clone + Eq + std::hash::Hash, V> Catalog<K, V> {
    fn all(&self) -> Arc<FxHashMap<K, Arc<V>>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<R>(&self, change: impl FnOnce(&mut FxHashMap<K, Arc<V>>) -> R) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**current).clone();
        change(&mut changed);
        *current = Arc::new(changed);
    }
}
