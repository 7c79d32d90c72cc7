//! `change-to-event`: the product's events, made of what changed in its tables.
//!
//! The same events as the stages give that write: a message that was inserted is a `MessagePersisted`, a chat that is
//! there for the first time a `ChatCreated`, and a chat whose last change is another than before a `MembershipChanged`,
//! each with the id it would have had. So one write is enough, and its event cannot be lost between store and log.
//!
//! What a chat's first members were is not in its item: they are looked up, strongly. Whoever came or went since is told
//! of by a change of its own.

use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::capability::RestrictedStore;
use courant_connectors::model::commands::ORIGIN;
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::model::tables::chats::{self, ChatState};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{
    ChatCreated, Event, MembershipChanged, MessagePersisted, Payload as Told,
};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::{Item, StoreError};
use courant_pipeline::spec::{
    BuildContext, Built, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::units::Span;
use courant_pipeline::{Batch, Class, Headers, Key, Payload, Stage, StageError, clock};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, store_error};
use crate::changes::{CHANGE, TableChange};
use crate::commands::EVENT;

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("change-to-event", Takes::Only(&[CHANGE]), Gives::Kind(EVENT))
        .summary(
            "makes the events of new messages, new chats and changed members of what changed in their tables",
        )
        .example("[[pipeline.stage]]\nkind = \"change-to-event\"\nparams = { max_age = \"1h\" }\n");

/// Changes of `messages` and `chats` become events; those that nobody is told of, such as a new name, are dropped.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Messages that were sent longer ago are dropped. For deliveries: where changes were lost the whole table is told
    /// again, and nobody waits for what is old. All are told of if left out.
    pub max_age: Option<Span>,
}

/// The metric labels of what goes no further.
const NO_EVENT: &str = "no-event";
const TOO_OLD: &str = "too-old";
const DOING: &str = "make the event of a change";

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [access(Level::Store, Mode::Read, &chat_memberships::SCHEMA.name)];
        if self.max_age.is_some_and(|age| age.0.is_zero()) {
            return Err(vec![Problem::new("max_age", "everything is older than that")]);
        }
        let max_age = self.max_age.map(|age| age.0);
        let mut built = Built::stage(ChangeToEvent { max_age, backends: Backends::of(context, &declared) });
        built.access.extend(declared);
        Ok(built)
    }
}

struct ChangeToEvent {
    max_age: Option<Duration>,
    backends: Backends,
}

/// What a change is to others.
enum Means {
    Event(Made),
    Nothing(&'static str),
}

#[async_trait]
impl Stage for ChangeToEvent {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let store = self.backends.store()?;
        let mut waits: Vec<Option<Key>> = Vec::new();
        let oldest = self.oldest();
        for slot in batch.iter_mut() {
            // After one that has to be tried again, the later ones of its chat wait.
            if waits.contains(&slot.record().key) {
                slot.hold();
                continue;
            }
            let means = match slot.record().payload.decode::<TableChange>() {
                Ok(change) => event_of(&store, &change, oldest).await,
                Err(error) => Err(StageError::reject(DOING, error)),
            };
            match means {
                Ok(Means::Event(made)) => {
                    let record = slot.record_mut();
                    record.key = Some(Key::new(made.key));
                    record.payload = Payload::Text(made.event);
                    record.headers = made.headers;
                }
                Ok(Means::Nothing(reason)) => slot.drop_as(reason),
                Err(error) => {
                    if error.class == Class::Retry {
                        waits.push(slot.record().key.clone());
                    }
                    slot.fail(error);
                }
            }
        }
        Ok(())
    }
}

struct Made {
    key: String,
    event: bytes::Bytes,
    headers: Headers,
}

impl<P: Told> From<Event<P>> for Made {
    fn from(event: Event<P>) -> Self {
        let key = event.payload.key().to_owned();
        Self { key, event: event.encode().payload, headers: Headers::default() }
    }
}

impl ChangeToEvent {
    /// Messages from before this are dropped.
    fn oldest(&self) -> Option<Timestamp> {
        Some(clock::now().checked_sub(self.max_age?)?.into())
    }
}

async fn event_of(
    store: &RestrictedStore,
    change: &TableChange,
    oldest: Option<Timestamp>,
) -> Result<Means, StageError> {
    let Some(new) = &change.new else { return Ok(Means::Nothing(NO_EVENT)) };
    if change.table == messages::SCHEMA.name {
        // A message never changes; a scan gives it as it is.
        return if change.old.is_none() { message(new, oldest) } else { Ok(Means::Nothing(NO_EVENT)) };
    }
    if change.table == chats::SCHEMA.name {
        let told = chat(store, change.old.as_ref(), new).await?;
        return Ok(told.map_or(Means::Nothing(NO_EVENT), Means::Event));
    }
    let why = format!("nothing is told of changes in the table '{}'", change.table);
    Err(StageError::reject(DOING, why))
}

fn message(item: &Item, oldest: Option<Timestamp>) -> Result<Means, StageError> {
    let message = Message::from_item(item).map_err(damaged)?;
    if oldest.is_some_and(|oldest| message.created_at < oldest) {
        return Ok(Means::Nothing(TOO_OLD));
    }
    let mut made = Made::from(MessagePersisted::of(message));
    if let Some(origin) = item.text(messages::ORIGIN) {
        made.headers.set(ORIGIN, origin);
    }
    Ok(Means::Event(made))
}

async fn chat(store: &RestrictedStore, old: Option<&Item>, new: &Item) -> Result<Option<Made>, StageError> {
    let state = |item: &Item| ChatState::from_item(item).map_err(damaged);
    let (before, now) = (old.map(state).transpose()?, state(new)?);
    if now.is_forming {
        return Ok(None);
    }
    if before.as_ref().is_none_or(|before| before.is_forming) {
        let members = members(store, &now.chat.chat_id).await?;
        return Ok(Some(ChatCreated::of(now.chat, members).into()));
    }
    let is_told = before.is_some_and(|before| before.last_change == now.last_change);
    let change = now.last_change.filter(|_| !is_told);
    Ok(change.map(|change| MembershipChanged::of(now.chat.chat_id, change).into()))
}

async fn members(store: &RestrictedStore, chat: &ChatId) -> Result<Vec<UserId>, StageError> {
    let (mut members, mut after) = (Vec::new(), None);
    loop {
        let part = chat_memberships::list(store, chat, after.as_ref(), None).await;
        let part = part.map_err(|error| store_error(DOING, error))?;
        members.extend(part.items.into_iter().map(|member| member.user_id));
        after = part.next;
        if after.is_none() {
            return Ok(members);
        }
    }
}

fn damaged(error: StoreError) -> StageError {
    StageError::reject(DOING, error)
}

#[cfg(test)]
mod tests;
