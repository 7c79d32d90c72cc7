//! `unpublished`: stored messages whose event is not in the log.
//!
//! Between storing a message and publishing its event a process can die, and a log can be down for longer than a client
//! waits. This source closes that gap without the client: it follows what is stored and what is published, and hands on
//! the events of messages that have waited too long for theirs. A message whose event is only late may be published
//! twice; consumers know events by chat and sequence.
//!
//! Before it says that an event is missing it looks where the log ends and reads up to there, so that its own delay is
//! never taken for a gap. What it has seen through is kept with the pipeline's positions; after a crash it goes on from
//! there, and repeats rather than skips.
//!
//! Rejected: a mark on the stored message ("published"). It would cost a second write for every message, to find the few
//! that need one.

mod matching;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use courant_connectors::capability::{RestrictedLog, RestrictedStore};
use courant_connectors::log::{Fetch, LogRecord, Offsets, ReadLog, Reader, Topic, TopicPartition};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{MessagePersisted, messages_persisted};
use courant_connectors::store::{FollowFrom, FollowOptions, FollowPositions, Follower, Item, Key};
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::units::Span;
use courant_pipeline::{Record, Source, StageError, clock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use crate::backends::{Backends, access, class, log_error};
use crate::commands::EVENT;
use crate::host::PositionFiles;
use matching::{Matching, Name};

pub static SPEC: StageSpec = StageSpec::source::<Config>("unpublished", EVENT)
    .summary("finds stored messages whose event never reached the log, and gives their events")
    .example("[[pipeline.stage]]\nkind = \"unpublished\"\nparams = { after = \"3s\" }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a stored message may wait for its event before it is published again. Longer than publishing usually
    /// takes, or events are published twice for nothing.
    pub after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { after: Span::secs(3) }
    }
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Store, Mode::Stream, &messages::SCHEMA.name),
            access(Level::Log, Mode::Read, messages_persisted::NAME),
        ];
        let mut built = Built::source(Unpublished {
            pipeline: context.pipeline.to_owned(),
            after: self.after.0,
            backends: Backends::of(context, &declared),
            files: context.services.get::<PositionFiles>(),
            open: None,
        });
        built.access.extend(declared);
        Ok(built)
    }
}

/// How far the clocks of store and log may be apart, and how late a publish may come: the log is read from this long
/// before what was seen through.
const MARGIN: Duration = Duration::from_secs(600);
/// How often to keep how far it came.
const SAVE_EVERY: Duration = Duration::from_secs(5);
const FETCH: usize = 1000;

struct Unpublished {
    pipeline: String,
    after: Duration,
    backends: Backends,
    files: Option<Arc<PositionFiles>>,
    open: Option<Open>,
}

/// What is kept between runs.
#[derive(Serialize, Deserialize)]
struct Note {
    stream: FollowPositions,
    /// Every message stored before this is published, in milliseconds since 1970.
    published_until: u64,
}

struct Open {
    log: RestrictedLog,
    topic: Topic,
    follower: Follower,
    reader: Box<dyn Reader>,
    /// Where the reader is, by partition.
    read_to: Offsets,
    matching: Matching,
    /// Where the log ended when something had waited too long; once read up to there, what had is missing.
    barrier: Option<Barrier>,
    save_at: Option<Instant>,
}

struct Barrier {
    end: Offsets,
    waited_since: Instant,
}

impl Unpublished {
    async fn note(&mut self) -> Result<Option<Note>, StageError> {
        let Some(files) = &self.files else { return Ok(None) };
        let note = files.note(&self.pipeline, &self.identity()).await?;
        // One that cannot be read is as good as none: everything that is kept is looked through again.
        Ok(note.and_then(|note| serde_json::from_value(note).ok()))
    }

    async fn save(&mut self) -> Result<(), StageError> {
        let identity = self.identity();
        let (Some(files), Some(open)) = (&self.files, &mut self.open) else { return Ok(()) };
        let note = Note {
            stream: open.follower.positions(),
            published_until: open.matching.published_until().unwrap_or_else(clock::unix_millis),
        };
        let note = serde_json::to_value(note).map_err(|error| StageError::fatal("keep positions", error))?;
        files.keep_note(&self.pipeline, &identity, note).await?;
        open.save_at = None;
        Ok(())
    }
}

#[async_trait]
impl Source for Unpublished {
    fn identity(&self) -> String {
        format!("unpublished:{}", messages_persisted::NAME)
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Source
    }

    /// Messages are numbered as they are found.
    fn positions_last(&self) -> bool {
        false
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        let (store, log) = (self.backends.store()?, self.backends.log()?);
        let note = self.note().await?;
        let (from, since) = match note {
            Some(note) => {
                let until = clock::from_unix_millis(note.published_until);
                (FollowFrom::Positions(note.stream), until.checked_sub(MARGIN))
            }
            None => (FollowFrom::Oldest, None),
        };
        self.open = Some(Open::start(store, log, from, since).await?);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        loop {
            let Some(open) = &mut self.open else {
                return Err(StageError::fatal("look for unpublished messages", "the source is not open"));
            };
            if let Some(batch) = open.missing(self.after, max).await? {
                return Ok(Read::Batch(batch));
            }
            if open.save_at.is_some_and(|at| at <= Instant::now()) {
                self.save().await?;
                continue;
            }
            open.look(self.after).await?;
        }
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        if let (Some(open), Some(through)) = (&mut self.open, positions.get(&Partition::only())) {
            open.matching.published_through(*through);
            open.advance();
        }
        self.save().await
    }

    async fn close(&mut self) -> Result<(), StageError> {
        let saved = self.save().await;
        self.open = None;
        saved
    }
}

impl Open {
    async fn start(
        store: RestrictedStore,
        log: RestrictedLog,
        from: FollowFrom,
        since: Option<SystemTime>,
    ) -> Result<Self, StageError> {
        let topic = Topic::from(messages_persisted::NAME);
        let failed = |error| log_error("find where to read the log", error);
        let read_to: Offsets = if let Some(since) = since {
            log.offsets_at(&topic, since).await.map_err(failed)?
        } else {
            let marks = log.watermarks(&topic).await.map_err(failed)?;
            (0..).zip(marks).map(|(at, marks)| (TopicPartition::new(&topic, at), marks.low)).collect()
        };
        let reader =
            log.read_from(read_to.clone()).await.map_err(|error| log_error("read the log", error))?;
        let table = messages::SCHEMA.name.clone();
        let follower = Follower::new(Arc::new(store), table, from, FollowOptions::default());
        let matching = Matching::default();
        Ok(Self { log, topic, follower, reader, read_to, matching, barrier: None, save_at: None })
    }

    /// The events of messages that have waited too long, once the log was read far enough to be sure.
    async fn missing(&mut self, after: Duration, max: usize) -> Result<Option<ReadBatch>, StageError> {
        let now = Instant::now();
        if self.barrier.is_none() && self.matching.oldest().is_some_and(|since| since + after <= now) {
            let marks = self.log.watermarks(&self.topic).await;
            let marks = marks.map_err(|error| log_error("find the end of the log", error))?;
            let end = (0..).zip(marks).map(|(at, marks)| (TopicPartition::new(&self.topic, at), marks.high));
            self.barrier =
                Some(Barrier { end: end.collect(), waited_since: now.checked_sub(after).unwrap_or(now) });
        }
        let Some(barrier) = &self.barrier else { return Ok(None) };
        let read_to = |partition: &TopicPartition| self.read_to.get(partition).copied().unwrap_or(0);
        if barrier.end.iter().any(|(partition, end)| read_to(partition) < *end) {
            return Ok(None);
        }
        let missing = self.matching.take_missing(barrier.waited_since, max);
        if missing.len() < max {
            self.barrier = None;
        }
        if missing.is_empty() {
            return Ok(None);
        }
        tracing::warn!(messages = missing.len(), "found stored messages whose events are missing");
        let mut batch = ReadBatch::new(Partition::only(), missing.len());
        for (number, name, event) in missing {
            batch.push(Record::new(event).with_key(&*name.chat), number);
        }
        Ok(Some(batch))
    }

    /// Waits for something to happen: a message stored, an event published, or time passing.
    async fn look(&mut self, after: Duration) -> Result<(), StageError> {
        let due = self.barrier.is_none().then(|| self.matching.oldest().map(|since| since + after)).flatten();
        let wake_at = [due, self.save_at].into_iter().flatten().min();
        let room = self.matching.has_room();
        tokio::select! {
            fetched = self.reader.fetch(FETCH) => {
                self.published(fetched.map_err(|error| log_error("read the log", error))?);
            }
            changes = self.follower.next(), if room => {
                let failed = |error: courant_connectors::store::FollowError| {
                    StageError::new(class(error.remedy()), "follow stored messages", error)
                };
                let batch = changes.map_err(failed)?;
                let stored = batch.changes.iter().filter_map(|change| match (&change.old, &change.new) {
                    // Only what is new was never published; messages do not change.
                    (None, Some(item)) => Some((name_of_stored(&change.key)?, || as_event(item))),
                    _ => None,
                });
                self.matching.stored(batch.checkpoint, stored, Instant::now());
                self.advance();
            }
            () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
        }
        Ok(())
    }

    fn published(&mut self, fetched: Fetch) {
        let Fetch::Records { from, records } = fetched else { return };
        if let Some(last) = records.last() {
            self.read_to.insert(from, last.offset + 1);
        }
        let now = Instant::now();
        for record in &records {
            if let Some(name) = name_of(record) {
                self.matching.published(name, now);
            }
        }
        self.advance();
    }

    /// Tells the follower what is seen through.
    fn advance(&mut self) {
        for checkpoint in self.matching.take_checkpoints() {
            self.follower.checkpoint(&checkpoint);
            self.save_at.get_or_insert_with(|| Instant::now() + SAVE_EVERY);
        }
    }
}

fn name_of_stored(key: &Key) -> Option<Name> {
    let (chat, sequence) = messages::named_by(key)?;
    Some(Name { chat: chat.into(), sequence })
}

/// When a message was stored, and its event; nothing if it is no message, which is not this source's business.
fn as_event(item: &Item) -> Option<(u64, bytes::Bytes)> {
    let message = Message::from_item(item).ok()?;
    Some((message.created_at.unix_millis(), MessagePersisted::of(message).encode().payload))
}

/// Which message an event is about; nothing if it is no such event, which is not this source's business.
fn name_of(record: &LogRecord) -> Option<Name> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        payload: NamedPayload<'a>,
    }
    #[derive(Deserialize)]
    struct NamedPayload<'a> {
        #[serde(borrow)]
        chat_id: std::borrow::Cow<'a, str>,
        sequence: u64,
    }
    let named: Named<'_> = serde_json::from_slice(&record.payload).ok()?;
    Some(Name { chat: named.payload.chat_id.as_ref().into(), sequence: named.payload.sequence })
}

#[cfg(test)]
mod tests;
