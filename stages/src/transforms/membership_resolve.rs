//! `membership-resolve`: finds out whom an event is for, and writes the frame that they get.
//!
//! Who is in a chat is asked once for all events of a batch: first of what this process remembers (`known`), then of
//! the cache that all processes share, then of the store (`lookup`). It is never taken from events, which come late and
//! twice. What is remembered is dropped when a process says on the channel of invalidations that members changed, and
//! ends by itself after a short while, should that not be heard. An event that says that members changed is itself
//! resolved from the store, whatever caches say.
//!
//! Live state is a short cut here: while it is down the store answers.

mod known;
mod listening;
mod lookup;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::model::commands::PREVIOUS_SEQUENCE;
use courant_connectors::model::frames::{self, Told, Whom};
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::{ChatId, UserId};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, Payload, Record, Stage, StageError};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::backends::{Backends, access};
use crate::commands::{DELIVERY, EVENT};
use crate::deliveries::Addressed;
use known::KnownMembers;
use lookup::{Asked, Lookup};

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("membership-resolve", Takes::Only(&[EVENT]), Gives::Kind(DELIVERY))
        .effect(Effect::IdempotentWrite)
        .summary("finds out whom an event is for, and makes the frame that they get")
        .example("[[pipeline.stage]]\nkind = \"membership-resolve\"\nparams = { remember = \"30s\" }\n");

/// The metric labels of what goes no further.
const UNKNOWN_EVENT: &str = "unknown-event";
const NO_MEMBERS: &str = "no-members";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How long this process remembers who is in a chat before it asks again. Changes are heard of at once; this bounds
    /// what a change costs that was not heard of.
    pub remember: Span,
    /// How many chats are remembered at the most; those that were not asked for longest make room.
    pub max_chats: NonZeroU32,
    /// How many members all remembered chats have together at the most. A member takes about 60 bytes.
    pub max_members: NonZeroU32,
}

impl Default for Config {
    fn default() -> Self {
        Self { remember: Span::secs(30), max_chats: DEFAULT_MAX_CHATS, max_members: DEFAULT_MAX_MEMBERS }
    }
}

const DEFAULT_MAX_CHATS: NonZeroU32 = NonZeroU32::new(50_000).expect("not zero");
/// About 15 MB when full.
const DEFAULT_MAX_MEMBERS: NonZeroU32 = NonZeroU32::new(250_000).expect("not zero");

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        if self.remember.0.is_zero() {
            return Err(vec![Problem::new("remember", "what is remembered for no time is not remembered")]);
        }
        let declared = [
            access(Level::Store, Mode::Read, &chat_memberships::SCHEMA.name),
            access(Level::Live, Mode::Read, "chat_members"),
            access(Level::Live, Mode::Fill, "chat_members"),
            access(Level::Live, Mode::Read, "invalidated"),
        ];
        let mut built = Built::stage(MembershipResolve {
            backends: Backends::of(context, &declared),
            known: Arc::new(KnownMembers::new(&self)),
            lookup: OnceLock::new(),
            listening: Mutex::default(),
        });
        built.access.extend(declared);
        Ok(built)
    }
}

struct MembershipResolve {
    backends: Backends,
    known: Arc<KnownMembers>,
    /// Set when it is opened.
    lookup: OnceLock<Lookup>,
    /// The task that hears of changes; ends with the stage.
    listening: Mutex<JoinSet<()>>,
}

#[async_trait]
impl Stage for MembershipResolve {
    async fn open(&self) -> Result<(), StageError> {
        let (store, live) = (self.backends.store()?, Arc::new(self.backends.live()?));
        let listener = listening::begin(&*live, &self.known).await;
        let listen = listening::listen(Arc::clone(&live) as _, Arc::clone(&self.known), listener);
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).spawn(listen);
        // Opened once, so nothing is there yet.
        let _ = self.lookup.set(Lookup::new(Arc::clone(&self.known), live, store));
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let Some(lookup) = self.lookup.get() else {
            return Err(StageError::fatal("find members", "the stage is not open"));
        };
        let texts: Vec<Bytes> = batch.records().map(|record| record.payload.to_json()).collect();
        let (events, chats) = read(batch, &texts);
        let answers = lookup.members_of(&chats).await;
        for (slot, event) in batch.iter_mut().zip(events) {
            let Some(Event { chat, told }) = event else { continue };
            match &answers[chat] {
                Ok(members) if members.is_empty() && told.whom == Whom::Members => slot.drop_as(NO_MEMBERS),
                Ok(members) => {
                    let users = with_whom_it_happened_to(members, told.whom);
                    let chat_id = chats[chat].chat.clone();
                    let addressed = Addressed { chat_id, sequence: told.sequence, users, frame: told.frame };
                    slot.record_mut().payload = Payload::value(addressed);
                }
                Err(error) => slot.fail(Arc::clone(error)),
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), StageError> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        Ok(())
    }
}

/// An event that somebody is told of.
struct Event<'a> {
    /// Index among the chats of the batch.
    chat: usize,
    told: Told<'a>,
}

/// What each record tells, and the chats of all. Records that tell nothing get their verdict.
fn read<'a>(batch: &mut Batch, texts: &'a [Bytes]) -> (Vec<Option<Event<'a>>>, Vec<Asked>) {
    let mut chats = Vec::new();
    let mut by_name: FxHashMap<Cow<'a, str>, usize> = FxHashMap::default();
    let mut events = Vec::with_capacity(texts.len());
    for (slot, text) in batch.iter_mut().zip(texts) {
        events.push(match frames::of_event(text, previous_sequence(slot.record())) {
            Ok(Some(told)) => {
                let known = by_name.get(&told.chat_id).copied();
                let chat = known.unwrap_or_else(|| {
                    chats.push(Asked { chat: ChatId::from(&*told.chat_id), anew: false });
                    by_name.insert(told.chat_id.clone(), chats.len() - 1);
                    chats.len() - 1
                });
                chats[chat].anew |= told.whom != Whom::Members;
                Some(Event { chat, told })
            }
            Ok(None) => {
                slot.drop_as(UNKNOWN_EVENT);
                None
            }
            Err(error) => {
                slot.fail(StageError::reject("read the event", error));
                None
            }
        });
    }
    (events, chats)
}

fn previous_sequence(record: &Record) -> Option<u64> {
    record.headers.get(PREVIOUS_SEQUENCE)?.parse().ok()
}

fn with_whom_it_happened_to(members: &Arc<[UserId]>, whom: Whom) -> Arc<[UserId]> {
    match whom {
        Whom::NewMembers { and: Some(user) } if !members.contains(&user) => {
            members.iter().cloned().chain([user]).collect()
        }
        _ => Arc::clone(members),
    }
}

#[cfg(test)]
mod tests;
