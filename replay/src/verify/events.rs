//! Phases over the log. An event is read first and what it tells of strongly after it: it was stored before the event
//! was published, so not finding it is wrong at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_connectors::log::{Fetch, LogError, LogRecord, Offsets, Topic, TopicPartition, Watermarks};
use courant_connectors::model::tables::{chats, messages};
use courant_connectors::model::topics::messages_persisted::PersistedMessage;
use courant_connectors::model::topics::{
    ChatCreated, Event, MembershipChanged, MessagePersisted, Payload, chats_created, memberships_changed,
    messages_persisted,
};
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::store::{Consistency, Remedy};
use tokio::time::timeout;

use super::checks;
use super::context::{Context, before, now};
use super::ledger::{Published, digest};
use super::pages::work;
use super::reads::strongly;
use super::report::Example;
use super::{Options, Result, VerifyError};

const FETCH: usize = 1000;
/// The log said that there is more, so something comes at once or not at all.
const SILENCE: Duration = Duration::from_secs(30);

/// A broker that is restarted is back by then.
const FETCH_TRIES: u32 = 10;
const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// How far the clocks of store and log may be apart where only the end of the log is read.
const MARGIN: Duration = Duration::from_secs(600);

/// How much of the topic of messages is known.
pub(super) struct LogRead {
    /// Before this every partition was read to where it ended.
    pub(super) noted_at: Timestamp,
    ends: Offsets,
    /// From when on partitions hold everything; those that are not named always did.
    complete_since: BTreeMap<u32, Timestamp>,
}

impl LogRead {
    /// From when on events must be there: those of a partition, or of any if it is not known which.
    pub(super) fn complete_since(&self, partition: Option<u32>, options: &Options) -> Timestamp {
        let of_log = match partition {
            Some(partition) => self.complete_since.get(&partition),
            None => self.complete_since.values().max(),
        };
        // What was removed last may have been stored a little later than it was published, by its own clock.
        let of_log = of_log.map(|since| since.plus(options.grace));
        of_log.max(options.events_since).unwrap_or(Timestamp::from_unix_millis(0))
    }
}

/// Part of a topic.
struct Stretch {
    topic: Topic,
    partitions: Vec<Part>,
}

/// Part of a partition: from `at` on to where it ended.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    marks: Watermarks,
    at: u64,
}

impl Stretch {
    async fn whole(context: &Context, topic: &str) -> Result<Self> {
        let topic = Topic::from(topic);
        let marks = context.reads.watermarks(&topic).await?;
        let part = |(number, marks): (u32, Watermarks)| Part { number, marks, at: marks.low };
        Ok(Self { topic, partitions: (0..).zip(marks).map(part).collect() })
    }

    /// What was appended at this time or later.
    async fn since(context: &Context, topic: &str, time: Timestamp) -> Result<Self> {
        let whole = Self::whole(context, topic).await?;
        let offsets = context.reads.offsets_at(&whole.topic, time).await?;
        Ok(whole.from(&offsets))
    }

    fn ends(&self) -> Offsets {
        let end = |part: &Part| (TopicPartition::new(&self.topic, part.number), part.marks.high);
        self.partitions.iter().map(end).collect()
    }

    /// The same from these offsets on, where the log reaches back to them.
    fn from(mut self, offsets: &Offsets) -> Self {
        for Part { number, marks, at } in &mut self.partitions {
            let from = offsets.get(&TopicPartition::new(&self.topic, *number)).copied();
            *at = from.unwrap_or_default().clamp(marks.low, marks.high);
        }
        self
    }

    fn records(&self) -> u64 {
        self.partitions.iter().map(|part| part.marks.high - part.at).sum()
    }
}

pub(crate) async fn of_messages(context: &Arc<Context>) -> Result<()> {
    // First the time and then the ends: what was published until then is before them.
    let noted_at = now();
    let stretch = match context.options.read_since {
        None => Stretch::whole(context, messages_persisted::NAME).await?,
        Some(since) => Stretch::since(context, messages_persisted::NAME, before(since, MARGIN)).await?,
    };
    let ends = stretch.ends();
    let complete_since = read(context, stretch, check_messages).await?;
    let read = LogRead { noted_at, ends, complete_since };
    context.log_read.set(read).ok().expect("the phase is made once");
    Ok(())
}

pub(super) async fn of_chats(context: &Arc<Context>) -> Result<()> {
    let stretch = Stretch::whole(context, chats_created::NAME).await?;
    read(context, stretch, |context, from, records| async move {
        let events: Vec<(u64, ChatCreated)> = decode(&context, &from, &records);
        let chats = events.iter().map(|(_, event)| event.payload.chat_id.clone());
        check_chats(&context, "was told to be made", chats.collect()).await
    })
    .await
    .map(drop)
}

pub(super) async fn of_members(context: &Arc<Context>) -> Result<()> {
    let stretch = Stretch::whole(context, memberships_changed::NAME).await?;
    read(context, stretch, |context, from, records| async move {
        let events: Vec<(u64, MembershipChanged)> = decode(&context, &from, &records);
        let chats = events.iter().map(|(_, event)| event.payload.chat_id.clone());
        check_chats(&context, "was told to have other members", chats.collect()).await
    })
    .await
    .map(drop)
}

/// Reads on from where the log ended: what has come since then was late and is not missing. The rest is.
pub(super) async fn late(context: &Arc<Context>) -> Result<()> {
    let Some(before) = context.log_read.get() else { return Ok(()) };
    if context.missing.is_empty() {
        return Ok(());
    }
    let stretch = Stretch::whole(context, messages_persisted::NAME).await?.from(&before.ends);
    read(context, stretch, |context, from, records| async move {
        let events: Vec<(u64, MessagePersisted)> = decode(&context, &from, &records);
        for (_, event) in events {
            context.missing.came(digest(&event.payload.chat_id), event.payload.sequence);
        }
        Ok(())
    })
    .await?;
    context.missing.report(context);
    Ok(())
}

/// The events among some records, with their offsets; records that are none are findings.
fn decode<P: Payload>(
    context: &Context,
    from: &TopicPartition,
    records: &[LogRecord],
) -> Vec<(u64, Event<P>)> {
    context.looked_at(&checks::EVENT_READABLE, records.len());
    let mut events = Vec::with_capacity(records.len());
    for record in records {
        let wrong = match Event::<P>::decode(record) {
            Ok(event) => {
                let chat = ChatId::from(event.payload.key());
                if record.key.as_deref() == Some(chat.as_str().as_bytes()) {
                    if context.covers(digest(&chat)) {
                        events.push((record.offset, event));
                    }
                    continue;
                }
                format!("the record of an event of chat '{chat}' has another key")
            }
            Err(error) => error.to_string(),
        };
        let detail = format!("{from} at offset {}: {wrong}", record.offset);
        context.found(&checks::EVENT_READABLE, Example::default().saying(detail));
    }
    events
}

async fn check_messages(context: Arc<Context>, from: TopicPartition, records: Vec<LogRecord>) -> Result<()> {
    let events: Vec<(u64, MessagePersisted)> = decode(&context, &from, &records);
    context.looked_at(&checks::EVENT_ORDER, events.len());
    context.looked_at(&checks::EVENT_PARTITION, events.len());
    for (offset, event) in &events {
        let PersistedMessage { chat_id, sequence, .. } = &event.payload;
        let example = || Example::of(chat_id).at(*sequence);
        match context.ledger.published(digest(chat_id), from.partition, *sequence) {
            Published::InOrder | Published::Copy => {}
            Published::After(other) => {
                let detail = format!("{from} at offset {offset}: after the event of sequence {other}");
                context.found(&checks::EVENT_ORDER, example().saying(detail));
            }
            Published::Elsewhere(other) => {
                let detail = format!("{from} at offset {offset}: others are in partition {other}");
                context.found(&checks::EVENT_PARTITION, example().saying(detail));
            }
        }
    }
    if context.wants_any(&[&checks::EVENT_MESSAGE, &checks::EVENT_CONTENT]) {
        compare(&context, &from, &events).await?;
    }
    Ok(())
}

/// Events with the messages they are of.
async fn compare(context: &Context, from: &TopicPartition, events: &[(u64, MessagePersisted)]) -> Result<()> {
    context.looked_at(&checks::EVENT_MESSAGE, events.len());
    context.looked_at(&checks::EVENT_CONTENT, events.len());
    let lookup = |(_, event): &(u64, MessagePersisted)| {
        messages::lookup(&event.payload.chat_id, event.payload.sequence, Consistency::Strong)
    };
    let found = context.reads.get_all(events.iter().map(lookup).collect()).await?;
    for ((offset, event), item) in events.iter().zip(found) {
        let PersistedMessage { chat_id, sequence, message_id, .. } = &event.payload;
        let place = format!("{from} at offset {offset}");
        let example = Example::of(chat_id).at(*sequence);
        match item.as_ref().map(messages::Message::from_item) {
            None => {
                let detail = format!("{place}: there is no message {message_id}");
                context.found(&checks::EVENT_MESSAGE, example.saying(detail));
            }
            // What cannot be read is told where the table is read.
            Some(Err(_)) => {}
            Some(Ok(message)) => {
                let differences = differences(event, &MessagePersisted::of(message));
                if !differences.is_empty() {
                    let detail = format!("{place}: not as stored: {}", differences.join(", "));
                    context.found(&checks::EVENT_CONTENT, example.saying(detail));
                }
            }
        }
    }
    Ok(())
}

/// Names only: what people wrote does not belong in a report.
fn differences(event: &MessagePersisted, stored: &MessagePersisted) -> Vec<&'static str> {
    let (here, there) = (&event.payload, &stored.payload);
    let differences = [
        ("event_id", event.event_id != stored.event_id),
        ("event_time", event.event_time != stored.event_time),
        ("message_id", here.message_id != there.message_id),
        ("sender_id", here.sender_id != there.sender_id),
        ("content", here.content != there.content),
        ("content_type", here.content_type != there.content_type),
        ("created_at", here.created_at != there.created_at),
    ];
    differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

async fn check_chats(context: &Context, told: &str, chats: Vec<ChatId>) -> Result<()> {
    if !context.wants(&checks::CHAT_EVENT) {
        return Ok(());
    }
    context.looked_at(&checks::CHAT_EVENT, chats.len());
    let distinct: BTreeSet<ChatId> = chats.into_iter().collect();
    let gets = distinct.iter().map(|chat| strongly(chats::lookup(chat))).collect();
    let found = context.reads.get_all(gets).await?;
    for (chat, item) in distinct.iter().zip(found) {
        if item.is_none() {
            let detail = format!("{told}, and there is no such chat");
            context.found(&checks::CHAT_EVENT, Example::of(chat).saying(detail));
        }
    }
    Ok(())
}

/// Hands the records of a stretch to `handle`, in order within a partition. Tells since when each partition was
/// complete, of those that have lost their beginning.
async fn read<H, F>(context: &Arc<Context>, stretch: Stretch, handle: H) -> Result<BTreeMap<u32, Timestamp>>
where
    H: Fn(Arc<Context>, TopicPartition, Vec<LogRecord>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send,
{
    context.expect(stretch.records());
    let complete_since: Arc<Mutex<BTreeMap<u32, Timestamp>>> = Arc::default();
    let (parts, stretch) = (stretch.partitions.len(), Arc::new(stretch));
    let noted = Arc::clone(&complete_since);
    work(context, parts, move |context, part| {
        let (stretch, noted, handle) = (Arc::clone(&stretch), Arc::clone(&noted), handle.clone());
        async move {
            let part = stretch.partitions[part];
            let partition = TopicPartition::new(&stretch.topic, part.number);
            if let Some(since) = read_partition(&context, partition, part, &handle).await? {
                noted.lock().unwrap_or_else(PoisonError::into_inner).insert(part.number, since);
            }
            Ok(())
        }
    })
    .await?;
    let complete_since = std::mem::take(&mut *complete_since.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(complete_since)
}

/// Since when the partition is complete, if it is not from its beginning.
async fn read_partition<H, F>(
    context: &Arc<Context>,
    partition: TopicPartition,
    Part { marks, at: begin, .. }: Part,
    handle: &H,
) -> Result<Option<Timestamp>>
where
    H: Fn(Arc<Context>, TopicPartition, Vec<LogRecord>) -> F,
    F: Future<Output = Result<()>>,
{
    let failed = |source| VerifyError::Log { doing: "read the log", source };
    let kept_since = before(now(), context.options.events_kept);
    let mut lost_its_beginning = marks.low > 0 && begin == marks.low;
    let mut complete_since = lost_its_beginning.then_some(kept_since);
    let (mut at, mut reader, mut failures) = (begin, None, 0);
    while at < marks.high {
        context.check_stop()?;
        let from_here = Offsets::from([(partition.clone(), at)]);
        let fetched = match &mut reader {
            None => context.reads.read_from(from_here).await.map(|opened| {
                reader = Some(opened);
                None
            }),
            Some(reader) => {
                let fetch = timeout(SILENCE, reader.fetch(FETCH));
                let fetched = context.stop.run_until_cancelled(fetch).await.ok_or(VerifyError::Stopped)?;
                let silent = || LogError::Unavailable(format!("{partition} gives nothing from {at} on"));
                fetched.map_err(|_| failed(silent()))?.map(Some)
            }
        };
        let mut records = match fetched {
            Ok(Some(Fetch::Records { records, .. })) => records,
            Ok(_) => continue,
            // Retention was faster.
            Err(LogError::OutOfRange { low, .. }) if low > at => {
                (at, reader, lost_its_beginning) = (low, None, true);
                continue;
            }
            Err(error) if error.remedy() == Remedy::Retry && failures < FETCH_TRIES => {
                (reader, failures) = (None, failures + 1);
                context.pause(FETCH_PAUSE).await?;
                continue;
            }
            Err(source) => return Err(failed(source)),
        };
        failures = 0;
        let Some(first) = records.first() else { continue };
        if std::mem::take(&mut lost_its_beginning) {
            complete_since = Some(first.at.into());
        }
        at = records.last().map_or(at, |last| last.offset + 1);
        records.retain(|record| record.offset < marks.high);
        let count = records.len();
        *context.figures().events.entry(partition.topic.to_string()).or_default() += count as u64;
        handle(Arc::clone(context), partition.clone(), records).await?;
        context.advance(count);
    }
    Ok(complete_since)
}
