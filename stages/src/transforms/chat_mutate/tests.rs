//! On the embedded engine: what may be done, what is told of it, and what is left when the store fails on the way.

mod create;
mod members;
mod rename;

use std::sync::Arc;

use courant_connectors::model::commands::{
    AddMember, Command, CreateChat, RemoveMember, RenameChat, SetRole,
};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, ChatState, ChatType, Roster};
use courant_connectors::model::tables::users::{self, User};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::{BatchWrite, Transaction};
use courant_pipeline::{Record, Stage};

use super::*;
use crate::testing::embedded::{Embedded, Told, carry, record};

const THEN: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);

struct World {
    embedded: Embedded,
    stage: Arc<dyn Stage>,
}

impl World {
    /// With users `user_0` and so on.
    async fn of(users: usize) -> Self {
        let embedded = Embedded::new().await;
        let put = |n: usize| {
            let user = User {
                user_id: user(n),
                phone_number: format!("+4179{n:07}"),
                phone_verified: true,
                display_name: "Ada".to_owned(),
                created_at: THEN,
                updated_at: THEN,
            };
            BatchWrite::Put { table: users::SCHEMA.name.clone(), item: user.to_item() }
        };
        embedded.store.batch_write((0..users).map(put).collect()).await.unwrap();
        let stage = embedded.stage(&SPEC);
        Self { embedded, stage }
    }

    async fn ask(&self, command: impl Into<Record>) -> Told {
        carry(&*self.stage, command).await
    }

    /// A group in which `user_0` is the first of these roles, and so on.
    async fn group(&self, roles: &[Role]) -> ChatId {
        let chat = ChatId::generate();
        let members = (1..roles.len()).map(user).collect();
        assert!(matches!(self.ask(group(&chat, members)).await, Told::Happened(..)));
        for (n, role) in roles.iter().enumerate().skip(1).filter(|(_, role)| **role != Role::Member) {
            assert!(matches!(self.ask(set_role(&chat, 0, n, *role)).await, Told::Happened(..)));
        }
        if roles[0] != Role::Owner {
            assert!(matches!(self.ask(set_role(&chat, 0, 0, roles[0])).await, Told::Happened(..)));
        }
        chat
    }

    async fn members(&self, chat: &ChatId) -> Vec<(String, Role)> {
        let mut members: Vec<Membership> = Vec::new();
        let mut after = None;
        loop {
            let part =
                chat_memberships::list(&*self.embedded.store, chat, after.as_ref(), None).await.unwrap();
            members.extend(part.items);
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        let of = |member: Membership| (member.user_id.to_string(), member.role);
        members.into_iter().map(of).collect()
    }

    async fn state(&self, chat: &ChatId) -> Option<ChatState> {
        let found = self.embedded.store.get(chats::state_lookup(chat)).await.unwrap();
        found.as_ref().map(ChatState::from_item).transpose().unwrap()
    }

    /// The counts of a chat are those of its members.
    async fn assert_counted(&self, chat: &ChatId) {
        let members = self.members(chat).await;
        let owners = members.iter().filter(|(_, role)| *role == Role::Owner).count() as u64;
        let counted = Roster { members: members.len() as u64, owners };
        assert_eq!(self.state(chat).await.unwrap().roster, Some(counted));
    }
}

fn user(n: usize) -> UserId {
    format!("user_{n}").into()
}

fn create(chat: &ChatId, chat_type: ChatType, name: Option<&str>, members: Vec<UserId>) -> CreateChat {
    let name = name.map(str::to_owned);
    CreateChat { chat_id: chat.clone(), chat_type, name, created_by: user(0), members }
}

fn group(chat: &ChatId, members: Vec<UserId>) -> Record {
    record(Command::CreateChat(create(chat, ChatType::Group, Some("Team"), members)))
}

fn add(chat: &ChatId, by: usize, who: usize, role: Role) -> Record {
    let (by, user_id) = (user(by), user(who));
    record(Command::AddMember(AddMember { chat_id: chat.clone(), by, user_id, role }))
}

fn remove(chat: &ChatId, by: usize, who: usize) -> Record {
    let (by, user_id) = (user(by), user(who));
    record(Command::RemoveMember(RemoveMember { chat_id: chat.clone(), by, user_id }))
}

fn set_role(chat: &ChatId, by: usize, who: usize, role: Role) -> Record {
    let (by, user_id) = (user(by), user(who));
    record(Command::SetRole(SetRole { chat_id: chat.clone(), by, user_id, role }))
}

fn rename(chat: &ChatId, by: usize, name: &str) -> Record {
    let name = name.to_owned();
    record(Command::RenameChat(RenameChat { chat_id: chat.clone(), by: user(by), name }))
}
