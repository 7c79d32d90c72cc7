//! One read of a shard, or of a scan in its place: waits until there is something, and looks at what it found.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::sleep;

use super::leases::Leases;
use super::shared::Window;
use super::{InPlaceOfLost, Pace, StreamOptions, StreamStore};
use crate::model::tables::stream_leases::{At, Place, SCAN};
use crate::store::{
    Change, Consistency, Get, Item, Key, Name, PageToken, Result, Scan, Segment, SequenceNumber, ShardId,
    ShardRead, ShardReader, ShardStart, StoreError, Value,
};

/// What one read of DynamoDB returns at most.
const BATCH: usize = 1000;
/// How far the store's clock may be from ours. Where that matters, a change is rather looked at twice than passed over.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(300);

/// What a read brought.
pub(super) enum Found {
    /// At least one, or none of the first read of a reader: it can be read.
    Changes(Vec<FoundChange>),
    /// Items of a scan, possibly none, and the place behind them.
    Page(Vec<Change>, At),
    Ended,
}

pub(super) struct FoundChange {
    pub(super) change: Change,
    /// Not to be handed out: it is older than the group, or than what a scan has given.
    pub(super) is_passed_over: bool,
}

/// Everything that a read needs, so that it belongs to nobody while it is under way.
pub(super) struct ReadJob {
    pub(super) store: Arc<dyn StreamStore>,
    pub(super) leases: Arc<Leases>,
    pub(super) options: Arc<StreamOptions>,
    pub(super) shard: ShardId,
    pub(super) term: u64,
    pub(super) window: Window,
    /// Behind everything that was read.
    pub(super) start: Place,
}

/// How a shard is being read, from one read to the next.
#[derive(Default)]
pub(super) struct Cursor {
    /// `None` before the shard was opened.
    reader: Option<Box<dyn ShardReader>>,
    /// The last read was not full: there is nothing more unless something has happened since.
    waits_first: bool,
}

impl ReadJob {
    /// Fails with [`StoreError::Trimmed`] where changes are lost, and with [`StoreError::ConditionFailed`] if the lease is.
    pub(super) async fn run(self, mut cursor: Cursor) -> (Cursor, Result<Found>) {
        let found = if self.shard.0 == SCAN { self.scan().await } else { self.read(&mut cursor).await };
        (cursor, found)
    }

    async fn read(&self, cursor: &mut Cursor) -> Result<Found> {
        let mut idle = self.options.idle_wait;
        loop {
            let is_first = cursor.reader.is_none();
            let changes = match self.read_once(cursor, &mut idle).await? {
                ShardRead::Ended => return Ok(Found::Ended),
                ShardRead::Changes(changes) => changes,
            };
            // What is not full was all there was.
            let has_more = cursor.reader.as_ref().is_some_and(|reader| reader.has_more());
            cursor.waits_first = changes.len() < BATCH && !has_more;
            let Some(first) = changes.first() else {
                if is_first {
                    return Ok(Found::Changes(Vec::new()));
                }
                continue;
            };
            self.check_first(&first.sequence).await?;
            return self.look_at(changes).await.map(Found::Changes);
        }
    }

    async fn read_once(&self, cursor: &mut Cursor, idle: &mut Duration) -> Result<ShardRead> {
        let Cursor { reader, waits_first } = cursor;
        let reader = if let Some(reader) = reader {
            reader
        } else {
            let start = match &self.start.at {
                At::After(after) => ShardStart::After(after.clone()),
                _ => ShardStart::Oldest,
            };
            reader.insert(self.store.open_shard(&self.options.table, &self.shard, start).await?)
        };
        if *waits_first {
            tokio::select! {
                () = reader.wait(), if self.options.pace == Pace::AtOnce => {}
                () = sleep(*idle) => *idle = (*idle * 2).min(self.options.longest_idle_wait),
            }
        }
        reader.read(BATCH).await
    }

    /// A shard that is read from its oldest change is known by it from then on: if another is the oldest one day, changes
    /// are lost that were never done.
    async fn check_first(&self, first: &SequenceNumber) -> Result<()> {
        match &self.start.at {
            At::Begin => {
                let place = Place { count: self.start.count, at: At::From(first.clone()) };
                self.leases.note(&self.shard, self.term, &place).await
            }
            At::From(known) if known != first => Err(StoreError::Trimmed {
                table: self.options.table.clone(),
                position: format!("{} of shard '{}'", known.0, self.shard.0),
            }),
            _ => Ok(()),
        }
    }

    /// Says which changes are not to be handed out. Those from before the end of a scan must leave their item as it is
    /// now: if they do not, the scan may have given a newer one, and another change will.
    async fn look_at(&self, changes: Vec<Change>) -> Result<Vec<FoundChange>> {
        let Window { since, scanned_until } = self.window;
        let is_before = |change: &Change, time: SystemTime| change.at < time;
        let doubtful = |change: &Change| is_before(change, scanned_until.into());
        let get = |change: &Change| Get {
            table: self.options.table.clone(),
            key: change.key.clone(),
            consistency: Consistency::Strong,
        };
        let gets: Vec<Get> = changes.iter().filter(|change| doubtful(change)).map(get).collect();
        let mut now =
            if gets.is_empty() { Vec::new() } else { self.store.batch_get(gets).await? }.into_iter();
        let found = changes.into_iter().map(|change| {
            let is_stale = doubtful(&change) && now.next().is_none_or(|item| item != change.new);
            let is_old = is_before(&change, SystemTime::from(since));
            FoundChange { is_passed_over: is_stale || is_old, change }
        });
        Ok(found.collect())
    }

    async fn scan(&self) -> Result<Found> {
        if self.options.in_place_of_lost == InPlaceOfLost::Nothing {
            return Ok(Found::Ended);
        }
        let start_after = match &self.start.at {
            At::Page(key) => Some(PageToken(key.clone())),
            At::Ended => return Ok(Found::Ended),
            _ => None,
        };
        let page = self.store.scan(Scan {
            table: self.options.table.clone(),
            segment: Segment::WHOLE,
            limit: None,
            start_after,
            consistency: Consistency::Strong,
        });
        let page = page.await?;
        let at = super::wall_clock();
        let items = page.items.into_iter().map(|item| {
            let key = key_of(&self.options.keys, &item)?;
            Ok(Change {
                sequence: SequenceNumber("0".into()),
                at,
                key,
                old: None,
                new: Some(item),
                expired: false,
            })
        });
        let behind = page.next.map_or(At::Ended, |PageToken(key)| At::Page(key));
        Ok(Found::Page(items.collect::<Result<_>>()?, behind))
    }
}

fn key_of(names: &[Name], item: &Item) -> Result<Key> {
    let value = |name: &Name| -> Result<Value> {
        let missing =
            || StoreError::Damaged(format!("a scanned item has no '{name}', which is said to be its key"));
        item.get(name).cloned().ok_or_else(missing)
    };
    let [partition, sort @ ..] = names else {
        return Err(StoreError::Invalid("a table has a key".to_owned()));
    };
    let key = Key::new(partition.clone(), value(partition)?);
    match sort.first() {
        Some(sort) => Ok(key.and(sort.clone(), value(sort)?)),
        None => Ok(key),
    }
}
