//! `dynamo-persist`: stores messages, each once and with a sequence of its own, and gives their events.
//!
//! A message that passes is on disk together with its idempotency key; a message that comes again gets the answer of
//! the first time, and its event once more, since nobody knows whether the first one was published. Sequences are
//! unique and rise within a chat; one that is allocated and not used stays a gap.
//!
//! A batch is one look at the store ([`look`]), one allocation per chat ([`allocate`]) and one transaction for every
//! fifty messages ([`write`]). What one message is guilty of costs the others of its transaction a second try, and the
//! later ones of its chat their turn, and nothing else.
//!
//! Rejected: incrementing the counter in the transaction. DynamoDB does not tell what a transaction made of it, so the
//! sequence, which is part of the message's key, has to be known before.

mod allocate;
mod charged;
mod draft;
mod look;
#[cfg(test)]
mod tests;
mod write;

use async_trait::async_trait;
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::{chat_counters, chat_memberships, idempotency_keys, messages};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Stage, StageError, clock};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access};
use crate::commands::{COMMAND, EVENT};
use crate::metrics::BusyChats;
use charged::Charged;

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("dynamo-persist", Takes::Only(&[COMMAND]), Gives::Kind(EVENT))
        .effect(Effect::IdempotentWrite)
        .summary("stores each message once, with the next sequence of its chat, and gives its event")
        .example("[[pipeline.stage]]\nkind = \"dynamo-persist\"\n");

/// Larger batches cost less a message: see `batch`, and `lanes` for how many are under way at a time. Records are
/// `send_message` commands whose key is their chat.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Store with each message which connection sent it. For pipelines that make the event of the stored message
    /// (`dynamo-stream`): without it the sender's own connection is told of its message, too.
    pub store_origin: bool,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Store, Mode::Read, &chat_memberships::SCHEMA.name),
            access(Level::Store, Mode::Read, &idempotency_keys::SCHEMA.name),
            access(Level::Store, Mode::Write, &idempotency_keys::SCHEMA.name),
            access(Level::Store, Mode::Write, &chat_counters::SCHEMA.name),
            access(Level::Store, Mode::Write, &messages::SCHEMA.name),
        ];
        let backends = Backends::of(context, &declared);
        let mut built = Built::stage(DynamoPersist {
            backends,
            store_origin: self.store_origin,
            busy: BusyChats::default(),
        });
        built.access.extend(declared);
        Ok(built)
    }
}

struct DynamoPersist {
    backends: Backends,
    store_origin: bool,
    busy: BusyChats,
}

#[async_trait]
impl Stage for DynamoPersist {
    async fn open(&self) -> Result<(), StageError> {
        self.backends.store().map(drop)
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let store = Charged(self.backends.store()?);
        let now = Timestamp::from(clock::now());
        let mut drafts = draft::read(batch, now);
        if !self.store_origin {
            for draft in &mut drafts {
                draft.origin = None;
            }
        }
        if drafts.is_empty() {
            return Ok(());
        }
        let looked = look::look(&store, drafts).await?;
        self.busy.count(looked.chats.iter().map(|chat| (&chat[0].message.chat_id, chat.len())));
        let chats = allocate::for_each_chat(&store, looked.chats, now).await;
        let mut finished = looked.decided;
        finished.extend(write::all(&store, chats).await);
        look::decide_repeated(looked.repeated, &mut finished);
        let slots = batch.iter_mut().into_slice();
        for draft in finished {
            let slot = draft.slot;
            draft.settle(&mut slots[slot]);
        }
        Ok(())
    }
}
