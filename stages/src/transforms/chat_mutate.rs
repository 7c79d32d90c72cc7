//! `chat-mutate`: makes chats, and changes their names and members.
//!
//! Who may do what is decided against the store, by strong reads, and the writes rest on what was read: if that has
//! changed meanwhile nothing is written and the command is decided anew. A change and what counts members are one
//! transaction, so no group gets too large or loses its last owner, whatever happens at the same moment and in
//! whatever process.
//!
//! A command that is carried out again, since nobody knows whether it was, finds what it did: it is answered as then and
//! tells of it with the same event. A chat is told of by its id, a change of members by the last one that the chat
//! remembers.

mod create;
mod members;
mod rename;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use courant_connectors::capability::RestrictedStore;
use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Code, Command, Refusal};
use courant_connectors::model::tables::chat_memberships::{Membership, Role};
use courant_connectors::model::tables::chats::{self, ChatState, MAX_NAME};
use courant_connectors::model::tables::{chat_counters, chat_memberships, users};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Item, StoreError, Transaction, Write, WriteStore as _};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Gives, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Output, Stage, StageError, clock};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, store_error};
use crate::commands::{self, COMMAND, Carried, EVENT, carry_out, was_done};

pub static SPEC: StageSpec =
    StageSpec::transform::<Config>("chat-mutate", Takes::Only(&[COMMAND]), Gives::Kind(EVENT))
        .effect(Effect::IdempotentWrite)
        .summary("makes chats and changes their names and members; gives an event for each but a new name")
        .example("[[pipeline.stage]]\nkind = \"chat-mutate\"\n");

/// The outputs by number.
const CREATED: Output = 0;
const MEMBERSHIP: Output = 1;

/// Carries out `create_chat`, `rename_chat`, `add_member`, `remove_member` and `set_role`. Outputs: `created` for
/// `chats.created`, `membership` for `memberships.changed`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let declared = [
            access(Level::Store, Mode::Read, &chats::SCHEMA.name),
            access(Level::Store, Mode::Write, &chats::SCHEMA.name),
            access(Level::Store, Mode::Read, &chat_memberships::SCHEMA.name),
            access(Level::Store, Mode::Write, &chat_memberships::SCHEMA.name),
            access(Level::Store, Mode::Write, &chat_counters::SCHEMA.name),
            access(Level::Store, Mode::Read, &users::SCHEMA.name),
        ];
        let stage = ChatMutate { backends: Backends::of(context, &declared) };
        let mut built = Built::stage(stage).outputs(vec!["created".to_owned(), "membership".to_owned()]);
        built.access.extend(declared);
        Ok(built)
    }
}

struct ChatMutate {
    backends: Backends,
}

#[async_trait]
impl Stage for ChatMutate {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let chats = Chats { store: self.backends.store()? };
        let chats = &chats;
        carry_out(batch, commands::command, |command| async move { chats.carry(&command.0).await }).await;
        Ok(())
    }
}

/// The chats of the store, for one batch.
struct Chats {
    store: RestrictedStore,
}

impl Chats {
    async fn carry(&self, command: &Command) -> Carried {
        match command {
            Command::CreateChat(command) => self.create(command).await,
            Command::RenameChat(command) => self.rename(command).await,
            Command::AddMember(command) => self.change_members(command.into()).await,
            Command::RemoveMember(command) => self.change_members(command.into()).await,
            Command::SetRole(command) => self.change_members(command.into()).await,
            other => {
                let why =
                    format!("chat-mutate does not carry out {}; give it to another stage", other.name());
                Err(StageError::reject("carry out the command", why).into())
            }
        }
    }

    /// All of it; `None` if what it rests on has changed.
    async fn transact(&self, doing: &'static str, writes: Vec<Write>) -> Result<Option<()>, StageError> {
        let answer = self.store.transact(Transaction { writes, token: None }).await;
        was_done(answer).map_err(|error| store_error(doing, error))
    }
}

fn now() -> Timestamp {
    clock::now().into()
}

const LOOK: &str = "look at the chat";

fn looked<T>(answer: Result<T, StoreError>) -> Result<T, StageError> {
    answer.map_err(|error| store_error(LOOK, error))
}

/// The chat that was found, unless it is not there for anybody yet.
fn formed(found: Option<&Item>, chat: &ChatId) -> Result<Result<ChatState, Refusal>, StageError> {
    let state = looked(found.map(ChatState::from_item).transpose())?;
    let state = state.filter(|state| !state.is_forming);
    Ok(state.ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no chat '{chat}'"))))
}

fn membership(found: Option<&Item>) -> Result<Option<Membership>, StageError> {
    looked(found.map(Membership::from_item).transpose())
}

fn not_a_member(user: &UserId, chat: &ChatId) -> Refusal {
    Refusal::new(Code::NotAMember, format!("'{user}' is not a member of chat '{chat}'"))
}

fn forbidden(why: &str) -> Refusal {
    Refusal::new(Code::Forbidden, why)
}

/// Whether a role lets somebody change what belongs to all.
fn manages(role: Role) -> bool {
    matches!(role, Role::Owner | Role::Admin)
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.trim().is_empty() || name.len() > MAX_NAME {
        let why = format!("a chat's name has 1 to {MAX_NAME} bytes and is not blank");
        return Err(Refusal::new(Code::BadRequest, why));
    }
    Ok(())
}
