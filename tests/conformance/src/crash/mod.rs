//! A process that writes to the embedded engine until it is killed, and what must be there afterwards.
//!
//! `writer` runs in the process to be killed and tells on its standard output, one line each, what was acknowledged.
//! `process` is the test's hold on it. `verify` runs in the test, on the folder that was left behind. What a row holds follows from its name and version,
//! so that every item found can be compared with what was written, byte by byte.
//!
//! A round is one such process. Each round is an hour later than the one before, so that over the rounds rows end,
//! records grow too old and the change stream is trimmed.

mod model;
mod process;
mod verify;
mod writer;

use std::time::{Duration, SystemTime};

use courant_connectors::embedded::Clock;
use courant_connectors::log::{Retention, TopicSpec};
use courant_connectors::store::{
    Capacity, IndexSchema, Item, KeyAttribute, Name, Projection, Stream, TableSchema,
};
use serde::{Deserialize, Serialize};

pub use model::Model;
pub use process::Writer;
pub use writer::write_until_killed;

/// What the process was told, or is about to ask for where that bounds what may be found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// It begins to open the folder.
    Opening,
    Row {
        id: u32,
        version: u64,
    },
    /// Two rows of two tables, changed in one transaction.
    Pair {
        id: u32,
        count: u64,
    },
    Record {
        topic: String,
        partition: u32,
        offset: u64,
        sender: u32,
        number: u64,
    },
    CommitAsked {
        partition: u32,
        offset: u64,
    },
    Committed {
        partition: u32,
        offset: u64,
    },
    Created {
        table: String,
    },
    DropAsked {
        table: String,
    },
    Dropped {
        table: String,
    },
}

pub(crate) const ROWS: u32 = 120;
pub(crate) const OWNERS: u64 = 5;
pub(crate) const PAIRS: u32 = 12;
pub(crate) const GROUP: &str = "readers";
pub(crate) const TOPICS: [(&str, u32); 2] = [("events", 3), ("audit", 1)];
/// Versions of a row count from here in each round.
pub(crate) const VERSIONS: u64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(60 * 60);

/// 2026, and some more for each round.
fn start_of(round: u64) -> Duration {
    Duration::from_secs(1_767_225_600) + HOUR * u32::try_from(round).expect("few rounds")
}

/// The time in a round: its start, and what has passed since.
pub(crate) fn clock_of(round: u64) -> Clock {
    let started = tokio::time::Instant::now();
    Clock::from_fn(move || SystemTime::UNIX_EPOCH + start_of(round) + started.elapsed())
}

/// Before everything, so that no row has ended for who looks with it.
pub(crate) fn clock_of_the_test() -> Clock {
    Clock::from_fn(|| SystemTime::UNIX_EPOCH)
}

fn table(name: &'static str, indexes: Vec<IndexSchema>, ttl: Option<&'static str>) -> TableSchema {
    TableSchema {
        name: Name::new_static(name),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: indexes.into(),
        ttl: ttl.map(Name::new_static),
        stream: Stream::OldAndNewImages,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

/// `rows` has everything a table can have; `left` and `right` are changed together.
pub(crate) fn tables() -> [TableSchema; 3] {
    let index = |name, projection| IndexSchema {
        name: Name::new_static(name),
        partition: KeyAttribute::text("owner"),
        sort: Some(KeyAttribute::number("version")),
        projection,
    };
    let rows =
        table("rows", vec![index("all", Projection::All), index("keys", Projection::KeysOnly)], Some("ends"));
    let by_count = IndexSchema {
        name: Name::new_static("by-count"),
        partition: KeyAttribute::number("count"),
        sort: None,
        projection: Projection::All,
    };
    let right = TableSchema { stream: Stream::Off, ..table("right", Vec::new(), None) };
    [rows, table("left", vec![by_count], None), right]
}

pub(crate) fn topics() -> [TopicSpec; 2] {
    // old chunks are removed while new ones are appended, and not so soon that a group could miss them
    let retention = Retention { age: Some(HOUR * 30), bytes: None };
    TOPICS.map(|(name, partitions)| TopicSpec { name: name.into(), partitions, retention, replication: 1 })
}

pub(crate) fn row_id(id: u32) -> String {
    format!("row-{id}")
}

/// What a row holds in this version; `None` if the version is its removal.
pub(crate) fn row(id: u32, version: u64) -> Option<Item> {
    if version % 7 == 6 {
        return None;
    }
    let round = start_of(version / VERSIONS).as_secs();
    let ends = match version % 5 {
        // in the middle of its round, and never in this test
        3 => Some(round + 1),
        4 => Some(round + 400 * 24 * 60 * 60),
        _ => None,
    };
    let item = Item::new()
        .with("id", row_id(id))
        .with("version", version)
        .with("owner", format!("owner-{}", (version + u64::from(id)) % OWNERS))
        .with("payload", bytes::Bytes::from(padding(version)));
    Some(item.with_some("ends", ends))
}

/// Mostly small; some fill several blocks.
pub(crate) fn padding(seed: u64) -> Vec<u8> {
    let length = match seed % 23 {
        0 => 30_000,
        1..=3 => 3_000,
        _ => 100,
    };
    (0..length).map(|position| (seed.wrapping_mul(31).wrapping_add(position) % 251) as u8).collect()
}
