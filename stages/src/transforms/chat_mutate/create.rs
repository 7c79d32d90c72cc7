//! A new chat with its counter and its members: all of it or nothing.
//!
//! What fits into one transaction is one. A larger group *forms*: its chat is written with a mark that hides it, then
//! its members by as many transactions as it takes, then one that takes the mark off, makes the counter and writes the
//! last of the members. Each rests on the mark, so whatever is cut off or comes late leaves a group that nobody
//! sees, and carrying the command out again completes it. See `docs/decisions/0006-large-groups.md`.

use std::collections::HashSet;

use courant_connectors::model::UserId;
use courant_connectors::model::commands::{Answer, ChatAnswer, Code, CreateChat, Refusal};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatState, ChatType, MAX_MEMBERS, Roster};
use courant_connectors::model::tables::users;
use courant_connectors::model::topics::ChatCreated;
use courant_connectors::store::{
    Durability, MAX_TRANSACTION, ReadStore as _, Returning, Write, WriteStore as _,
};
use courant_pipeline::{Class, StageError};

use super::members::nobody;
use super::{CREATED, Chats, check_name, looked, now};
use crate::backends::store_error;
use crate::commands::{Carried, DECISIONS, Outcome, Unable, keeps_changing, was_done};

const CREATE: &str = "make the chat";
/// Members that fit into a transaction beside the chat and its counter.
const WITH_CHAT: usize = MAX_TRANSACTION - 2;
/// Members that fit into one beside the check of the mark.
const STAGED: usize = MAX_TRANSACTION - 1;

/// A chat and everybody in it, whoever made it first.
struct NewChat {
    chat: Chat,
    members: Vec<Membership>,
}

impl Chats {
    pub(super) async fn create(&self, command: &CreateChat) -> Carried {
        check_shape(command)?;
        for _ in 0..DECISIONS {
            let found = looked(self.store.get(chats::state_lookup(&command.chat_id)).await)?;
            let found = looked(found.as_ref().map(ChatState::from_item).transpose())?;
            let begun = match found {
                Some(ChatState { chat, .. }) if chat.created_by != command.created_by => {
                    let why = format!("the id '{}' is another chat's", command.chat_id);
                    return Err(Refusal::new(Code::Conflict, why).into());
                }
                Some(ChatState { chat, is_forming: false, .. }) => {
                    return Ok(created(NewChat::of(command, as_then(command, &chat))));
                }
                begun => begun.map(|state| state.chat),
            };
            self.check_people(command).await?;
            let is_new = begun.is_none();
            let new = NewChat::of(command, begun.unwrap_or_else(|| new_chat(command)));
            let made = if new.members.len() <= WITH_CHAT {
                self.make_at_once(&new).await?
            } else {
                self.make_large(&new, is_new).await?
            };
            if made.is_some() {
                return Ok(created(new));
            }
        }
        Err(keeps_changing(CREATE))
    }

    async fn check_people(&self, command: &CreateChat) -> Result<(), Unable> {
        let people = || std::iter::once(&command.created_by).chain(&command.members);
        let found = looked(self.store.batch_get(people().map(users::existence_lookup).collect()).await)?;
        let mut checked = people().zip(&found);
        match checked.find(|(_, item)| !item.as_ref().is_some_and(users::is_user)) {
            Some((user, _)) => Err(nobody(user).into()),
            None => Ok(()),
        }
    }

    async fn make_at_once(&self, new: &NewChat) -> Result<Option<()>, StageError> {
        let mut writes = vec![chats::create_counted_write(&new.chat, new.roster()), new.counter_write()];
        writes.extend(new.members.iter().map(chat_memberships::add_write));
        self.transact(CREATE, writes).await
    }

    async fn make_large(&self, new: &NewChat, is_new: bool) -> Result<Option<()>, StageError> {
        let made = self.form(new, is_new).await;
        if let Err(error) = &made
            && error.class != Class::Retry
        {
            // Nobody will complete it. What can be completed is left for the next attempt.
            self.abandon(new).await;
        }
        made
    }

    async fn form(&self, new: &NewChat, is_new: bool) -> Result<Option<()>, StageError> {
        let chat = &new.chat.chat_id;
        if is_new {
            let begun =
                self.store.write(chats::begin_write(&new.chat), Returning::Nothing, Durability::Synced).await;
            if was_done(begun).map_err(|error| store_error(CREATE, error))?.is_none() {
                return Ok(None);
            }
        }
        let (last, before) = new.members.split_at(WITH_CHAT);
        for part in before.chunks(STAGED) {
            let mut writes = vec![chats::still_forming(chat)];
            writes.extend(part.iter().map(chat_memberships::stage_write));
            if self.transact(CREATE, writes).await?.is_none() {
                return Ok(None);
            }
        }
        let mut writes = vec![chats::form_write(chat, new.roster()), new.counter_write()];
        writes.extend(last.iter().map(chat_memberships::stage_write));
        self.transact(CREATE, writes).await
    }

    /// Removes what was written of a group that will not be. What is left, if this fails too, is hidden.
    async fn abandon(&self, new: &NewChat) {
        let chat = &new.chat.chat_id;
        let removed = async {
            if self.transact("abandon the chat", vec![chats::abandon_write(chat)]).await?.is_none() {
                return Ok(());
            }
            for part in new.members.chunks(STAGED) {
                let mut writes = vec![chats::still_absent(chat)];
                writes
                    .extend(part.iter().map(|member| chat_memberships::remove_write(chat, &member.user_id)));
                self.transact("abandon the chat", writes).await?;
            }
            Ok::<_, StageError>(())
        };
        if let Err(error) = removed.await {
            tracing::warn!(%chat, %error, "a group that was given up has left members behind");
        }
    }
}

impl NewChat {
    fn of(command: &CreateChat, chat: Chat) -> Self {
        let member = |user_id: &UserId, role| Membership {
            chat_id: chat.chat_id.clone(),
            user_id: user_id.clone(),
            role,
            joined_at: chat.created_at,
            muted_until: None,
        };
        let owner = member(&command.created_by, Role::Owner);
        let others = command.members.iter().map(|user| member(user, Role::Member));
        Self { members: std::iter::once(owner).chain(others).collect(), chat }
    }

    fn roster(&self) -> Roster {
        Roster { members: self.members.len() as u64, owners: 1 }
    }

    fn counter_write(&self) -> Write {
        chat_counters::create_write(&ChatCounter::new(self.chat.chat_id.clone(), self.chat.created_at))
    }
}

fn new_chat(command: &CreateChat) -> Chat {
    let now = now();
    Chat {
        chat_id: command.chat_id.clone(),
        chat_type: command.chat_type,
        name: command.name.clone(),
        created_by: command.created_by.clone(),
        created_at: now,
        updated_at: now,
    }
}

/// The chat as it was made, whatever became of it since: the command is answered as it was then.
fn as_then(command: &CreateChat, chat: &Chat) -> Chat {
    Chat { created_at: chat.created_at, updated_at: chat.created_at, ..new_chat(command) }
}

fn created(new: NewChat) -> Outcome {
    let people = new.members.iter().map(|member| member.user_id.clone()).collect();
    let event = ChatCreated::of(new.chat.clone(), people);
    let members = new.members.into_iter().map(Into::into).collect();
    Outcome::happened(Answer::Chat(ChatAnswer::new(new.chat, members)), &event, CREATED)
}

fn check_shape(command: &CreateChat) -> Result<(), Refusal> {
    let bad = |why: String| Err(Refusal::new(Code::BadRequest, why));
    let people: HashSet<_> = std::iter::once(&command.created_by).chain(&command.members).collect();
    if people.len() != command.members.len() + 1 {
        return bad("somebody is among the members twice".to_owned());
    }
    match command.chat_type {
        ChatType::Direct if people.len() != 2 => bad("a direct chat is between two people".to_owned()),
        ChatType::Direct if command.name.is_some() => bad("a direct chat has no name".to_owned()),
        ChatType::Group if people.len() > MAX_MEMBERS as usize => {
            bad(format!("a group has up to {MAX_MEMBERS} members, whoever makes it among them"))
        }
        _ => command.name.as_deref().map_or(Ok(()), check_name),
    }
}
