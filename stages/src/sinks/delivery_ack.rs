//! `delivery-ack`: moves delivery watermarks forward.
//!
//! An ack says that everything up to a sequence has arrived at one of the user's clients, so of several for the same user
//! and chat only the highest is written, and the others are as good as done with it. Watermarks never move back, whatever
//! order acks come in.

use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::capability::RestrictedStore;
use courant_connectors::model::commands::{Ack, Answer, Beyond, Code, Command, Refusal};
use courant_connectors::model::tables::chat_counters::ChatCounter;
use courant_connectors::model::tables::{chat_counters, chat_memberships, delivery_state};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::{Consistency, Get, Item, ReadStore};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Slot, Stage, StageError, clock};
use futures::{StreamExt, stream};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, store_error};
use crate::commands::{self, COMMAND, refuse};

pub static SPEC: StageSpec = StageSpec::sink::<Config>("delivery-ack", Takes::Only(&[COMMAND]))
    .effect(Effect::IdempotentWrite)
    .summary("notes how far messages have arrived at a user's clients; of many acks the highest counts")
    .example("[[pipeline.stage]]\nkind = \"delivery-ack\"\nbatch = { records = 4096, wait = \"100ms\" }\n");

/// It has no parameters. Waiting for larger batches saves writes, since a client that reads along acks every message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Store, Mode::Read, &chat_memberships::SCHEMA.name),
            access(Level::Store, Mode::Read, &chat_counters::SCHEMA.name),
            access(Level::Store, Mode::Write, &delivery_state::SCHEMA.name),
        ];
        let mut built = Built::stage(DeliveryAck { backends: Backends::of(context, &declared) });
        built.access.extend(declared);
        Ok(built)
    }
}

/// Watermarks written at the same time: as many as share a sync of the embedded engine, and a connection each on
/// DynamoDB.
const AT_ONCE: usize = 128;
/// Ours are much shorter.
const MAX_ID_BYTES: usize = 128;

struct DeliveryAck {
    backends: Backends,
}

#[async_trait]
impl Stage for DeliveryAck {
    async fn open(&self) -> Result<(), StageError> {
        self.backends.store().map(drop)
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let store = self.backends.store()?;
        let mut marks = gather(batch);
        look(&store, &mut marks).await?;
        let slots = batch.iter_mut().into_slice();
        for mark in &mut marks {
            mark.refuse_what_is_wrong(slots);
        }
        marks.retain(|mark| !mark.acks.is_empty());
        let now = Timestamp::from(clock::now());
        let advances = marks.into_iter().map(|mark| advance(&store, mark, now));
        let mut advances = stream::iter(advances).buffer_unordered(AT_ONCE);
        while let Some((mark, failed)) = advances.next().await {
            mark.settle(failed, slots);
        }
        Ok(())
    }
}

/// One ack of the batch.
struct Acked {
    slot: usize,
    sequence: u64,
    beyond: Beyond,
}

/// The acks of one user in one chat.
struct Mark {
    user: UserId,
    chat: ChatId,
    acks: Vec<Acked>,
    is_member: bool,
    /// The chat's last sequence, if its counter is there and whole.
    last: Option<u64>,
}

/// The batch's acks by user and chat; what is none has its verdict.
fn gather(batch: &mut Batch) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    let mut mark_at: FxHashMap<(UserId, ChatId), usize> = FxHashMap::default();
    for (at, slot) in batch.iter_mut().enumerate() {
        let command = match commands::command(slot.record()) {
            Ok(command) => command,
            Err(error) => {
                slot.fail(error);
                continue;
            }
        };
        match check(&command.0) {
            Err(refusal) => refuse(slot, refusal),
            Ok(ack) => {
                let whose = (ack.user_id.clone(), ack.chat_id.clone());
                let mark = *mark_at.entry(whose).or_insert_with_key(|(user, chat)| {
                    let (user, chat) = (user.clone(), chat.clone());
                    marks.push(Mark { user, chat, acks: Vec::new(), is_member: false, last: None });
                    marks.len() - 1
                });
                marks[mark].acks.push(Acked { slot: at, sequence: ack.sequence, beyond: ack.beyond });
            }
        }
    }
    marks
}

fn check(command: &Command) -> Result<&Ack, Refusal> {
    let bad = |message: String| Err(Refusal::new(Code::BadRequest, message));
    let Command::Ack(ack) = command else { return bad(format!("`{}` is no ack", command.name())) };
    let fits = |id: &str| (1..=MAX_ID_BYTES).contains(&id.len());
    if !fits(ack.user_id.as_str()) || !fits(ack.chat_id.as_str()) {
        return bad(format!("an id has 1 to {MAX_ID_BYTES} bytes"));
    }
    if ack.sequence == 0 {
        return bad("sequences start at 1".to_owned());
    }
    Ok(ack)
}

/// One look at everything: who is a member, and how far each chat has come. Strong: the ack of a message that was stored
/// this moment is right.
async fn look(store: &dyn ReadStore, marks: &mut [Mark]) -> Result<(), StageError> {
    if marks.is_empty() {
        return Ok(());
    }
    let mut gets: Vec<Get> =
        marks.iter().map(|mark| chat_memberships::lookup(&mark.chat, &mark.user)).collect();
    let mut chats: FxHashMap<&ChatId, usize> = FxHashMap::default();
    let counters: Vec<usize> = marks
        .iter()
        .map(|mark| {
            *chats.entry(&mark.chat).or_insert_with(|| {
                gets.push(chat_counters::lookup(&mark.chat, Consistency::Strong));
                gets.len() - 1
            })
        })
        .collect();
    let found = store.batch_get(gets).await;
    let found = found.map_err(|error| store_error("look up members and counters", error))?;
    let last_of = |item: &Item| ChatCounter::from_item(item).ok().map(|counter| counter.sequence_counter);
    for ((mark, membership), counter) in marks.iter_mut().zip(&found).zip(counters) {
        mark.is_member = membership.is_some();
        mark.last = found[counter].as_ref().and_then(last_of);
    }
    Ok(())
}

impl Mark {
    /// Leaves the acks that may move the watermark.
    fn refuse_what_is_wrong(&mut self, slots: &mut [Slot]) {
        let (is_member, last, chat) = (self.is_member, self.last, &self.chat);
        self.acks.retain_mut(|ack| {
            let refusal = match last {
                _ if !is_member => Refusal::new(Code::NotAMember, format!("not a member of chat '{chat}'")),
                Some(last) if ack.sequence <= last => return true,
                Some(last) if last > 0 && ack.beyond == Beyond::AllThereIs => {
                    ack.sequence = last;
                    return true;
                }
                Some(last) => {
                    let message =
                        format!("chat '{chat}' has come to sequence {last}, and not to {}", ack.sequence);
                    Refusal::new(Code::BadRequest, message)
                }
                None => Refusal::new(
                    Code::CounterMissing,
                    format!("how far chat '{chat}' has come is unknown until its counter is recovered"),
                ),
            };
            refuse(&mut slots[ack.slot], refusal);
            false
        });
    }

    fn highest(&self) -> u64 {
        self.acks.iter().map(|ack| ack.sequence).max().unwrap_or(0)
    }

    fn settle(self, failed: Option<StageError>, slots: &mut [Slot]) {
        let failed = failed.map(Arc::new);
        for Acked { slot, .. } in self.acks {
            match &failed {
                None => commands::answer(slots[slot].record_mut(), Answer::Done),
                Some(error) => slots[slot].fail(Arc::clone(error)),
            }
        }
    }
}

/// An unknown outcome is retried like any other: moving forward twice is moving forward once.
async fn advance(store: &RestrictedStore, mark: Mark, now: Timestamp) -> (Mark, Option<StageError>) {
    let moved = delivery_state::advance(store, &mark.user, &mark.chat, mark.highest(), now).await;
    let failed = moved.err().map(|error| store_error("move a delivery watermark", error));
    (mark, failed)
}

#[cfg(test)]
mod tests;
