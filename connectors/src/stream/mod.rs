//! Following a table's changes together with others: a group of workers shares the shards, each read by one of them.
//!
//! Who reads a shard and how far it was read is a *lease* in the store
//! ([`stream_leases`](crate::model::tables::stream_leases)). A worker hands out changes of a shard only while it is sure
//! that nobody else does; what it says is done is written with the term of its lease, so that one that was replaced
//! while it slept moves nothing. A child shard is read once everything of its parent is done, whoever read that. So the
//! changes of one item come in order, and after a crash those come again that were not done, to whoever takes over.
//!
//! Changes have numbers, counted from the first one of their shard that the group was given, and kept with the place: a
//! change that is read again has the number it had, although the store's own places are text that says nothing of
//! distance.
//!
//! Where changes were lost, since nobody read them for a day, all workers let go, one of them scans the table and hands
//! out every item as it is, and then the shards are read on from what is left of them. Of the changes until then only
//! those are handed out that leave an item as it is now: the others are older than what the scan gave. A group that has no
//! use for items as they are goes on at once instead ([`InPlaceOfLost`]).
//!
//! Rejected: a task per shard. What is handed out waits for one caller anyway; only the signs of life must not wait for it,
//! so they have a task (`keeper`).

mod compare;
mod feed;
mod keeper;
mod leases;
mod read;
mod share;
mod shared;
mod worker;

use std::time::{Duration, SystemTime};

pub use worker::StreamWorker;

use crate::model::WorkerId;
use crate::store::{Change, ChangeStream, Name, ReadWriteStore, ScanStore, ShardId};

/// What a worker needs of the store.
pub trait StreamStore: ReadWriteStore + ScanStore + ChangeStream {}
impl<T: ReadWriteStore + ScanStore + ChangeStream + ?Sized> StreamStore for T {}

#[derive(Debug, Clone)]
pub struct StreamOptions {
    pub table: Name,
    /// The attributes that name an item.
    pub keys: Vec<Name>,
    /// Those of one name share the shards of the table.
    pub group: String,
    /// Different for each that runs at the same time. One that comes again has its leases back at once.
    pub worker: WorkerId,
    pub start: StreamStart,
    pub in_place_of_lost: InPlaceOfLost,
    pub pace: Pace,
    /// How long a worker that gives no sign of life keeps its shards.
    pub lease: Duration,
    /// How long to wait before a shard is read again that had nothing more; doubled while it stays so.
    pub idle_wait: Duration,
    pub longest_idle_wait: Duration,
    /// How often to look for new shards, beside whenever one ends.
    pub list_shards_every: Duration,
}

/// Where a group begins that has never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStart {
    /// With everything that is kept.
    Oldest,
    /// With what happens from now on.
    Latest,
}

/// What is handed out in place of changes that were removed before they were read. The same for all of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlaceOfLost {
    /// Every item of the table as it is.
    Scan,
    /// Nothing: the shards are read on from what is left of them.
    Nothing,
}

/// When to read a shard again that had nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// As soon as a store tells of changes, if it can: somebody waits for them.
    AtOnce,
    /// After the wait, whatever happens meanwhile: fewer and larger reads.
    InTurn,
}

impl StreamOptions {
    /// With the waits that suit DynamoDB, which allows five reads of a shard per second. Somebody waits for what is read,
    /// so a quiet shard is left alone for twice as long and no longer.
    pub fn new(table: Name, keys: Vec<Name>, group: impl Into<String>, worker: WorkerId) -> Self {
        Self {
            table,
            keys,
            group: group.into(),
            worker,
            start: StreamStart::Oldest,
            in_place_of_lost: InPlaceOfLost::Scan,
            pace: Pace::AtOnce,
            lease: Duration::from_secs(10),
            idle_wait: Duration::from_millis(200),
            longest_idle_wait: Duration::from_millis(400),
            list_shards_every: Duration::from_secs(10),
        }
    }
}

#[derive(Debug)]
pub enum StreamEvent {
    Changes(Handed),
    /// Shards that are not this worker's any more. What was handed out of them is no more its business.
    Gone(Vec<ShardId>),
}

/// Changes of one shard in order, at least one, each with its number.
#[derive(Debug)]
pub struct Handed {
    pub shard: ShardId,
    pub changes: Vec<(u64, Change)>,
    /// These are items as a scan found them, in place of changes that are lost.
    pub is_scanned: bool,
}

#[allow(clippy::disallowed_methods, reason = "connectors know no pipeline, whose clock it would be")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
