//! Messages, with what was written before or with each of them: chat, counter, key. Those are read strongly after the
//! message, so not finding them is wrong at any moment. Its event is written after it; see [`Missing`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_counters::ChatCounter;
use courant_connectors::model::tables::idempotency_keys::{self, IdempotencyKey, KEPT_FOR};
use courant_connectors::model::tables::messages::{self, Message, SCHEMA};
use courant_connectors::model::tables::{chat_counters, chats};
use courant_connectors::store::{Consistency, Item, Name, Query, SortRange, Within};
use courant_stages::runs::Runs;

use super::Result;
use super::checks;
use super::context::{Context, is_older, now};
use super::ledger::{ByDigest, Digest, Event, digest};
use super::pages::each_page;
use super::reads::strongly;
use super::report::Example;

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    each_page(context, &SCHEMA, check_page).await
}

async fn check_page(context: Arc<Context>, items: Vec<Item>) -> Result<()> {
    let messages = context.records(&SCHEMA, &items, Message::from_item);
    drop(items);
    check_sequences(&context, &messages).await?;
    if context.wants_any(&[&checks::MESSAGE_CHAT, &checks::COUNTER_BOUND]) {
        check_chats(&context, &messages).await?;
    }
    if context.wants_any(&[&checks::MESSAGE_KEY, &checks::MESSAGE_ONCE]) {
        check_keys(&context, &messages).await?;
    }
    if context.wants(&checks::MESSAGE_EVENT) {
        check_events(&context, &messages);
    }
    Ok(())
}

fn example(message: &Message) -> Example {
    Example::of(&message.chat_id).at(message.sequence)
}

async fn check_sequences(context: &Context, messages: &[Message]) -> Result<()> {
    context.looked_at(&checks::SEQUENCE_POSITIVE, messages.len());
    context.looked_at(&checks::SEQUENCE_UNIQUE, messages.len());
    for message in messages {
        if message.sequence == 0 {
            let detail = format!("message {} has sequence 0", message.message_id);
            context.found(&checks::SEQUENCE_POSITIVE, example(message).saying(detail));
        }
        if !context.ledger.stored(digest(&message.chat_id), message.sequence) {
            check_twice(context, message).await?;
        }
    }
    Ok(())
}

/// A message came although its sequence had been there: an error unless it is the same one.
async fn check_twice(context: &Context, message: &Message) -> Result<()> {
    let mut query = Query::new(SCHEMA.name.clone(), "chat_id", &message.chat_id);
    let only = || Bound::Included(message.sequence.into());
    let within = Within::Bounds(only(), only());
    query.range = Some(SortRange { attribute: Name::new_static("sequence"), within });
    query.consistency = Consistency::Strong;
    let items = context.reads.query_all(query).await?;
    let mut ids: BTreeSet<_> = items.iter().filter_map(|item| item.text("message_id")).collect();
    ids.insert(message.message_id.as_str());
    if ids.len() > 1 {
        let ids = ids.into_iter().collect::<Vec<_>>().join(", ");
        context.found(&checks::SEQUENCE_UNIQUE, example(message).saying(format!("messages {ids}")));
    }
    Ok(())
}

/// Chats that exist, and how far their counters were at least. Forgotten when there are too many: pages of one chat
/// come together.
#[derive(Default)]
pub(super) struct KnownChats(Mutex<HashMap<ChatId, u64>>);

const KNOWN_CHATS: usize = 10_000;

impl KnownChats {
    fn reaches(&self, chat: &ChatId, sequence: u64) -> bool {
        lock(&self.0).get(chat).is_some_and(|counter| *counter >= sequence)
    }

    fn insert(&self, chat: ChatId, counter: u64) {
        let mut known = lock(&self.0);
        if known.len() >= KNOWN_CHATS {
            known.clear();
        }
        known.insert(chat, counter);
    }
}

async fn check_chats(context: &Context, messages: &[Message]) -> Result<()> {
    context.looked_at(&checks::MESSAGE_CHAT, messages.len());
    context.looked_at(&checks::COUNTER_BOUND, messages.len());
    let mut by_chat: BTreeMap<&ChatId, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        by_chat.entry(&message.chat_id).or_default().push(message);
    }
    by_chat.retain(|chat, messages| {
        let highest = messages.iter().map(|message| message.sequence).max().unwrap_or_default();
        !context.known_chats.reaches(chat, highest)
    });
    let lookups =
        |chat: &&ChatId| [strongly(chats::lookup(chat)), chat_counters::lookup(chat, Consistency::Strong)];
    let found = context.reads.get_all(by_chat.keys().flat_map(lookups).collect()).await?;
    for ((chat, messages), found) in by_chat.into_iter().zip(found.chunks(2)) {
        let counter = found[1].as_ref().and_then(|item| ChatCounter::from_item(item).ok());
        if let (Some(_), Some(counter)) = (&found[0], &counter) {
            context.known_chats.insert(chat.clone(), counter.sequence_counter);
        }
        for message in messages {
            if found[0].is_none() {
                let detail = format!("message {} is of no chat", message.message_id);
                context.found(&checks::MESSAGE_CHAT, example(message).saying(detail));
            }
            // One that is missing, or cannot be read, is told where counters are.
            let counter = counter.as_ref().map_or(u64::MAX, |counter| counter.sequence_counter);
            if message.sequence > counter {
                let detail = format!("the counter is at {counter}");
                context.found(&checks::COUNTER_BOUND, example(message).saying(detail));
            }
        }
    }
    Ok(())
}

async fn check_keys(context: &Context, messages: &[Message]) -> Result<()> {
    // A key that ends at this moment may be there or not.
    let kept_for = KEPT_FOR.saturating_sub(context.options.grace);
    let has_key = |message: &&Message| !is_older(message.created_at, kept_for, now());
    let messages: Vec<_> = messages.iter().filter(has_key).collect();
    context.looked_at(&checks::MESSAGE_KEY, messages.len());
    context.looked_at(&checks::MESSAGE_ONCE, messages.len());
    let lookup = |message: &&Message| {
        idempotency_keys::lookup(&message.chat_id, &message.client_message_id, Consistency::Strong)
    };
    let found = context.reads.get_all(messages.iter().map(lookup).collect()).await?;
    for (message, item) in messages.into_iter().zip(found) {
        match item.as_ref().map(IdempotencyKey::from_item) {
            None if has_key(&message) => {
                let detail = format!("there is no key '{}'", message.client_message_id);
                context.found(&checks::MESSAGE_KEY, example(message).saying(detail));
            }
            Some(Ok(key)) if key.sequence != message.sequence => check_once(context, message, &key).await?,
            // What a key says of its message, and whether it can be read, is told where keys are.
            None | Some(_) => {}
        }
    }
    Ok(())
}

/// The key of a message names another: stored twice, if that one has the same key.
async fn check_once(context: &Context, message: &Message, key: &IdempotencyKey) -> Result<()> {
    let lookup = messages::lookup(&key.chat_id, key.sequence, Consistency::Strong);
    let other = context.reads.get(lookup).await?.and_then(|item| Message::from_item(&item).ok());
    if other.is_some_and(|other| other.client_message_id == message.client_message_id) {
        let detail = format!(
            "'{}' names this message and the one with sequence {}",
            message.client_message_id, key.sequence
        );
        context.found(&checks::MESSAGE_ONCE, example(message).saying(detail));
    }
    Ok(())
}

fn check_events(context: &Context, messages: &[Message]) {
    let Some(log) = context.log_read.get() else { return };
    let (mut too_new, mut before_the_log) = (0, 0);
    for message in messages {
        let chat = digest(&message.chat_id);
        match context.ledger.event(chat, message.sequence) {
            Event::Seen => {}
            Event::NotSeen { .. } if !is_older(message.created_at, context.options.grace, log.noted_at) => {
                too_new += 1;
            }
            Event::NotSeen { partition }
                if message.created_at < log.complete_since(partition, &context.options) =>
            {
                before_the_log += 1;
            }
            Event::NotSeen { .. } => context.missing.add(chat, message),
        }
    }
    let unknown = too_new + before_the_log;
    context.looked_at(&checks::MESSAGE_EVENT, messages.len() - unknown);
    let mut figures = context.figures();
    figures.too_new += too_new as u64;
    figures.before_the_log += before_the_log as u64;
}

/// Messages whose events were not in the log up to a moment at which they should have been. They are not reported before
/// the log was read further: a publish may have been late, or a client may have sent again.
#[derive(Default)]
pub(crate) struct Missing(Mutex<MissingEvents>);

#[derive(Default)]
struct MissingEvents {
    by_chat: ByDigest<OfChat>,
    /// Some of them by name, of which some will still be missing.
    candidates: BTreeSet<(ChatId, u64, String)>,
}

struct OfChat {
    chat: ChatId,
    sequences: Runs,
}

const CANDIDATES: usize = 1000;

impl Missing {
    fn add(&self, chat: Digest, message: &Message) {
        let mut missing = lock(&self.0);
        let of_chat = || OfChat { chat: message.chat_id.clone(), sequences: Runs::default() };
        missing.by_chat.entry(chat).or_insert_with(of_chat).sequences.insert(message.sequence);
        let name = (message.chat_id.clone(), message.sequence, message.message_id.to_string());
        missing.candidates.insert(name);
        if missing.candidates.len() > CANDIDATES {
            missing.candidates.pop_last();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).by_chat.is_empty()
    }

    /// The event is there after all.
    pub(super) fn came(&self, chat: Digest, sequence: u64) {
        if let Some(missing) = lock(&self.0).by_chat.get_mut(&chat) {
            missing.sequences.remove(sequence);
        }
    }

    /// The chats that lack events, with the sequences of those; to be asked for after the last look at the log.
    pub(crate) fn take(&self) -> Vec<(ChatId, Runs)> {
        let missing = std::mem::take(&mut lock(&self.0).by_chat);
        let left = missing.into_values().filter(|missing| !missing.sequences.is_empty());
        left.map(|missing| (missing.chat, missing.sequences)).collect()
    }

    pub(super) fn report(&self, context: &Context) {
        let missing = lock(&self.0);
        let count = missing.by_chat.values().map(|missing| missing.sequences.len()).sum();
        let still = |(chat, sequence, _): &&(ChatId, u64, String)| {
            missing.by_chat.get(&digest(chat)).is_some_and(|missing| missing.sequences.contains(*sequence))
        };
        let examples = missing.candidates.iter().filter(still).map(|(chat, sequence, message)| {
            Example::of(chat).at(*sequence).saying(format!("message {message} was never published"))
        });
        context.findings.add_all(&checks::MESSAGE_EVENT, count, examples);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
