//! One part of the table, a page at a time: first again what was under way, then on.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use courant_connectors::capability::RestrictedStore;
use courant_connectors::model::tables::messages::{self, StoredMessage};
use courant_connectors::store::{
    Consistency, Item, Key, PackedItem, PageToken, ReadStore as _, Scan, ScanStore as _, Segment as Part,
};
use courant_pipeline::stage::{Partition, Positions};
use courant_pipeline::{Key as RecordKey, Payload, Record, StageError};

use super::fence::Fence;
use super::join::Join;
use super::journal::{Journal, Name, Row, Rows};
use crate::backends::store_error;
use crate::stored_event::StoredEvent;

/// Records of a segment, each with the place behind it.
pub(super) struct Page {
    pub(super) partition: Partition,
    pub(super) records: VecDeque<(u64, Record)>,
}

pub(super) struct Segment {
    part: Part,
    partition: Partition,
    store: RestrictedStore,
    journal: Journal,
    join: Option<Arc<Join>>,
    fence: Option<Arc<Fence>>,
    /// Records that were settled in an earlier run.
    settled: u64,
    place: Place,
}

/// Where a segment is read.
enum Place {
    /// In what was noted before, with the row that could not be read.
    Noted {
        rows: Box<Rows>,
        row: Option<Row>,
    },
    Table,
}

/// Where the table is read on.
#[derive(Default)]
pub(super) struct Behind {
    records: u64,
    next: Next,
}

#[derive(Default)]
enum Next {
    #[default]
    First,
    After(Name),
    Nothing,
}

impl From<Option<Name>> for Next {
    fn from(after: Option<Name>) -> Self {
        after.map_or(Self::Nothing, Self::After)
    }
}

impl Segment {
    pub(super) async fn open(
        folder: &Path,
        part: Part,
        store: RestrictedStore,
        resume: &Positions,
    ) -> Result<(Self, Behind), StageError> {
        let partition = Partition::from(format!("{}#{}", messages::SCHEMA.name, part.index).as_str());
        let journal = Journal::open(folder, part.index).await?;
        let settled = resume.get(&partition).copied().unwrap_or(0);
        let place = Place::Noted { rows: Box::new(journal.rows().await?), row: None };
        let (join, fence) = (None, None);
        Ok((Self { part, partition, store, journal, join, fence, settled, place }, Behind::default()))
    }

    /// Leaves out what the log gives, and what is behind a fence.
    pub(super) fn limited(self, join: Option<Arc<Join>>, fence: Option<Arc<Fence>>) -> Self {
        Self { join, fence, ..self }
    }

    pub(super) fn into_journal(self) -> Journal {
        self.journal
    }

    /// The next page, which may be empty; none at the end.
    pub(super) async fn next(&mut self, behind: &mut Behind) -> Result<Option<Page>, StageError> {
        while let Place::Noted { rows, row } = &mut self.place {
            if row.is_none() {
                *row = rows.next().await?;
            }
            let Some(noted) = row.take() else {
                self.place = Place::Table;
                break;
            };
            behind.records = noted.first + noted.keys.len();
            behind.next = noted.after.clone().into();
            if behind.records <= self.settled {
                continue;
            }
            let page = self.again(&noted).await;
            if let (Err(_), Place::Noted { row, .. }) = (&page, &mut self.place) {
                *row = Some(noted); // it is read again
            }
            return page.map(Some);
        }
        match behind.next {
            Next::Nothing => Ok(None),
            Next::First | Next::After(_) => self.on(behind).await.map(Some),
        }
    }

    /// A page that was noted, as far as it was not settled.
    async fn again(&self, row: &Row) -> Result<Page, StageError> {
        let numbered = (row.first + 1..).zip(row.keys.iter());
        let open: Vec<(u64, Name)> = numbered.filter(|(place, _)| *place > self.settled).collect();
        let lookup =
            |(_, (chat, sequence)): &(u64, Name)| messages::lookup(chat, *sequence, Consistency::Strong);
        let gets = open.iter().map(lookup).collect();
        let items = self.store.batch_get(gets).await.map_err(|error| store_error(DOING, error))?;
        let found = open.iter().zip(items).filter_map(|((place, _), item)| Some((*place, item?)));
        let mut chats = Chats::default();
        let records = found.map(|(place, item)| {
            let message = message(PackedItem::from(&item))?;
            Ok((place, record(chats.of(&message), message)))
        });
        Ok(Page { partition: self.partition.clone(), records: records.collect::<Result<_, StageError>>()? })
    }

    /// Some pages of the store, noted together: each note waits for the disk.
    async fn on(&self, behind: &mut Behind) -> Result<Page, StageError> {
        let mut row = Row { first: behind.records, ..Row::default() };
        let (mut records, mut chats) = (VecDeque::new(), Chats::default());
        let mut start_after = match &behind.next {
            Next::After((chat, sequence)) => {
                Some(PageToken(Key::new("chat_id", chat).and("sequence", *sequence).into_item()))
            }
            Next::First | Next::Nothing => None,
        };
        for _ in 0..NOTED_TOGETHER {
            let page = self.store.scan_packed(Scan {
                table: messages::SCHEMA.name.clone(),
                segment: self.part,
                limit: None,
                start_after,
                consistency: Consistency::Strong,
            });
            let page = page.await.map_err(|error| store_error(DOING, error))?;
            for item in page.items {
                let message = message(item)?;
                let (join, created_at) = (self.join.as_deref(), message.created_at());
                if join.is_some_and(|join| !join.scan_gives(created_at)) {
                    continue; // the log has it
                }
                if self.fence.as_ref().is_some_and(|fence| !fence.has(&message)) {
                    continue;
                }
                let (chat, sequence) = (chats.of(&message), message.sequence());
                row.keys.push(chat.as_str(), sequence);
                if join.is_some_and(|join| join.both_may_have(created_at)) {
                    row.both.push(chat.as_str(), sequence);
                }
                let place = row.first + records.len() as u64 + 1;
                records.push_back((place, record(chat, message)));
            }
            start_after = page.next;
            if start_after.is_none() {
                break;
            }
        }
        row.after = start_after.map(|PageToken(item)| key_of(&item)).transpose()?;
        self.journal.append(&row).await?;
        behind.records += records.len() as u64;
        behind.next = row.after.into();
        Ok(Page { partition: self.partition.clone(), records })
    }
}

/// Pages, of a megabyte at the most: as much of each segment is in memory twice.
const NOTED_TOGETHER: usize = 4;
const DOING: &str = "scan the store";

fn message(item: PackedItem) -> Result<StoredMessage, StageError> {
    StoredMessage::of(item).map_err(|error| store_error(DOING, error))
}

/// The keys of messages. Those of a chat come together, and share theirs.
#[derive(Default)]
struct Chats {
    last: Option<RecordKey>,
}

impl Chats {
    fn of(&mut self, message: &StoredMessage) -> &RecordKey {
        let known = self.last.take().filter(|key| message.is_of(key.as_str()));
        self.last.insert(known.unwrap_or_else(|| RecordKey::new(message.chat_id())))
    }
}

/// The event of a message, as the log has it.
fn record(chat: &RecordKey, message: StoredMessage) -> Record {
    Record::new(Payload::value(StoredEvent(message))).with_shared_key(chat)
}

fn key_of(item: &Item) -> Result<Name, StageError> {
    match (item.text("chat_id"), item.u64("sequence")) {
        (Some(chat), Some(sequence)) => Ok((chat.into(), sequence)),
        _ => Err(StageError::fatal(DOING, "the store gave a page without an end")),
    }
}
