//! `unpublished`: stored messages whose event is not in the log.
//!
//! Between storing a message and publishing its event a process can die, and a log can be down for longer than a client
//! waits. This source closes that gap without the client: it follows what is stored and what is published, and hands on
//! the events of messages that have waited too long for theirs. A message whose event is only late may be published
//! twice; consumers know events by chat and sequence.
//!
//! Pipelines of one group share the shards of the table by lease (`courant_connectors::stream`), so that however many
//! processes look, they are one reader of the stream: each message waits with one of them, and each of them reads the whole
//! log. The place in the stream is kept in the leases. It passes a message when its event was seen or is committed; after a
//! crash whoever takes over goes on from there, and repeats rather than skips.
//!
//! Before it says that an event is missing it looks where the log ends and reads up to there, so that its own delay is
//! never taken for a gap. Where a shard begins with messages whose events may be forgotten, or were never read, it reads
//! the log again from before them; and while what is stored is read from long ago, the log is read along with it.
//!
//! Of changes that were removed before they were read nothing is found: a scan would give every message there ever was, and
//! the log may not reach back as far. `courant reconcile` compares those.
//!
//! Rejected: a mark on the stored message ("published"). It would cost a second write for every message, to find the few
//! that need one.

mod matching;
mod pace;
mod remembered;
mod tail;

use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::log::{LogRecord, Offsets};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::stream_leases;
use courant_connectors::model::topics::{MessagePersisted, messages_persisted};
use courant_connectors::store::{Item, Key, ShardId};
use courant_connectors::stream::{self, Handed, InPlaceOfLost, StreamEvent};
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::units::Span;
use courant_pipeline::{Record, Source, StageError, clock};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use crate::backends::{Backends, access};
use crate::commands::EVENT;
use crate::stream_group::{self, StreamGroup, StreamMember, default_lease};
use matching::{Matching, Name};
use pace::Pace;
use tail::Tail;

pub static SPEC: StageSpec = StageSpec::source::<Config>("unpublished", EVENT)
    .summary("finds stored messages whose event never reached the log, and gives their events")
    .example("[[pipeline.stage]]\nkind = \"unpublished\"\nparams = { after = \"3s\" }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long a stored message may wait for its event before it is published again. Longer than publishing usually
    /// takes, or events are published twice for nothing.
    pub after: Span,
    /// Who looks: pipelines of one group, in any process, share the messages among them, and a group goes on where it was.
    /// The pipeline's name if left out.
    pub group: Option<String>,
    /// How long a worker that gives no sign of life keeps its share before others take it over.
    pub lease: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { after: Span::secs(3), group: None, lease: default_lease() }
    }
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let problems = stream_group::problems(self.group.as_deref(), self.lease);
        if !problems.is_empty() {
            return Err(problems);
        }
        let declared = [
            access(Level::Store, Mode::Stream, &messages::SCHEMA.name),
            access(Level::Store, Mode::Keep, &stream_leases::SCHEMA.name),
            access(Level::Log, Mode::Read, messages_persisted::NAME),
        ];
        let mut built = Built::source(Unpublished {
            after: self.after.0,
            group: StreamGroup::of(context, self.group, self.lease),
            backends: Backends::of(context, &declared),
            open: None,
        });
        built.access.extend(declared);
        Ok(built)
    }
}

/// How often to keep how far it came.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// How long to leave a quiet shard alone: messages wait for their events anyway before they are looked at.
const LONGEST_IDLE_WAIT: Duration = Duration::from_secs(1);
/// Changes looked at together.
const CHANGES: usize = 1000;

struct Unpublished {
    after: Duration,
    group: StreamGroup,
    backends: Backends,
    open: Option<Open>,
}

struct Open {
    member: StreamMember,
    tail: Tail,
    matching: Matching,
    pace: Pace,
    /// Where the log ended when something had waited too long; once read up to there, what had is missing.
    barrier: Option<Barrier>,
    save_at: Instant,
}

struct Barrier {
    end: Offsets,
    waited_since: Instant,
}

#[async_trait]
impl Source for Unpublished {
    fn identity(&self) -> String {
        format!("unpublished:{}", self.group.name())
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
        let table = &messages::SCHEMA;
        let keys = table.key_names(None).cloned().collect();
        // What a group of another kind of source has done is not done here, should it have the same name.
        let group = self.identity();
        let mut options = self.group.options(&group, &group, table.name.clone(), keys).await?;
        (options.pace, options.longest_idle_wait) = (stream::Pace::InTurn, LONGEST_IDLE_WAIT);
        options.in_place_of_lost = InPlaceOfLost::Nothing;
        self.open = Some(Open::new(self.group.join(store, options), Tail::of(log)));
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let Some(open) = &mut self.open else {
            return Err(StageError::fatal("look for unpublished messages", "the source is not open"));
        };
        loop {
            open.tail.open().await?;
            if let Some(batch) = open.missing(self.after, max).await? {
                return Ok(Read::Batch(batch));
            }
            if open.save_at <= Instant::now() {
                open.save().await?;
            }
            open.look(self.after).await?;
        }
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        let (Some(open), Some(through)) = (&mut self.open, positions.get(&Partition::only())) else {
            return Ok(());
        };
        open.matching.published_through(*through);
        open.save().await
    }

    async fn close(&mut self) -> Result<(), StageError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let saved = open.save().await;
        open.member.close().await.and(saved)
    }
}

impl Open {
    fn new(member: StreamMember, tail: Tail) -> Self {
        let save_at = Instant::now() + SAVE_EVERY;
        let (matching, pace) = (Matching::default(), Pace::default());
        Self { member, tail, matching, pace, barrier: None, save_at }
    }

    /// The events of messages that have waited too long, once the log was read far enough to be sure.
    async fn missing(&mut self, after: Duration, max: usize) -> Result<Option<ReadBatch>, StageError> {
        let now = Instant::now();
        if self.barrier.is_none() && self.matching.oldest().is_some_and(|since| since + after <= now) {
            let waited_since = now.checked_sub(after).unwrap_or(now);
            self.barrier = Some(Barrier { end: self.tail.end().await?, waited_since });
        }
        let Some(barrier) = &self.barrier else { return Ok(None) };
        if !self.tail.has_read(&barrier.end) {
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
        let wake_at = due.map_or(self.save_at, |due| due.min(self.save_at));
        let room = self.matching.has_room();
        let read_log_to = self.pace.read_log_to(clock::now(), Instant::now());
        let may_fetch = read_log_to.is_none_or(|to| !self.tail.has_reached(to));
        tokio::select! {
            fetched = self.tail.fetch(), if may_fetch => self.published(&fetched?),
            event = self.member.next(CHANGES), if room => match event? {
                StreamEvent::Changes(handed) => self.stored(&handed),
                StreamEvent::Gone(shards) => shards.iter().for_each(|shard| self.forget(shard)),
            },
            () = sleep_until(wake_at) => {}
        }
        Ok(())
    }

    fn stored(&mut self, Handed { shard, changes, .. }: &Handed) {
        let (Some((_, first)), Some((through, last))) = (changes.first(), changes.last()) else { return };
        let now = Instant::now();
        self.pace.came(shard, last.at, now);
        if !self.matching.knows(shard) {
            let ago = clock::now().duration_since(first.at).unwrap_or_default();
            if !(self.tail.covers(first.at) && self.matching.remembers(ago, now)) {
                self.tail.go_back_to(first.at);
            }
        }
        let stored = changes.iter().filter_map(|(number, change)| match (&change.old, &change.new) {
            // Only what is new was never published; messages do not change.
            (None, Some(item)) => Some((*number, name_of_stored(&change.key)?, || as_event(item))),
            _ => None,
        });
        self.matching.stored(shard, *through, stored, now);
    }

    fn forget(&mut self, shard: &ShardId) {
        self.matching.forget(shard);
        self.pace.forget(shard);
    }

    fn published(&mut self, records: &[LogRecord]) {
        let now = Instant::now();
        for name in records.iter().filter_map(|record| name_in(&record.payload)) {
            self.matching.published(name, now);
        }
    }

    /// Keeps how far it came. A dropped call is made up for by the next.
    async fn save(&mut self) -> Result<(), StageError> {
        self.member.done(self.matching.published_to()).await?;
        self.save_at = Instant::now() + SAVE_EVERY;
        Ok(())
    }
}

fn name_of_stored(key: &Key) -> Option<Name> {
    let (chat, sequence) = messages::named_by(key)?;
    Some(Name { chat: chat.into(), sequence })
}

/// The event of a message; nothing if it is no message, which is not this source's business.
fn as_event(item: &Item) -> Option<bytes::Bytes> {
    let message = Message::from_item(item).ok()?;
    Some(MessagePersisted::of(message).encode().payload)
}

/// Which message an event is about; nothing if it is no such event, which is not this source's business.
fn name_in(event: &[u8]) -> Option<Name> {
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
    let named: Named<'_> = serde_json::from_slice(event).ok()?;
    Some(Name { chat: named.payload.chat_id.as_ref().into(), sequence: named.payload.sequence })
}

#[cfg(test)]
mod tests;
