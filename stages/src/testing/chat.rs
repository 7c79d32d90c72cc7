//! Chats on an embedded engine, for the tests of stages that change them.

use std::num::NonZeroU32;
use std::sync::Arc;

use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::model::commands::{Answer, Code};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::store::{Consistency, Durability, Key, Returning, Write};
use courant_pipeline::spec::Part;
use courant_pipeline::{Class, Fate, Json, Services, Slot, Stage, StageSpec, clock};
use serde_json::Value;

use super::faulty::FaultyStore;

/// An engine in a folder that goes with it.
pub(crate) struct World {
    pub(crate) connected: Arc<Connected>,
    pub(crate) store: Arc<FaultyStore>,
    _folder: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let embedded = EmbeddedConnection { path: folder.path().join("data") };
        let connections = Connections {
            store: StoreConnection::Embedded(embedded.clone()),
            log: LogConnection::Embedded(embedded),
            ..Connections::default()
        };
        let mut connected = connections.open().await.unwrap();
        let store = Arc::new(FaultyStore::before(Arc::clone(&connected.store)));
        connected.store = Arc::clone(&store) as _;
        Self { connected: Arc::new(connected), store, _folder: folder }
    }

    /// A stage on this engine, opened.
    pub(crate) async fn stage(&self, spec: &StageSpec, params: Value) -> Arc<dyn Stage> {
        let services = Services::default().with(Arc::clone(&self.connected));
        let Part::Stage(stage) = super::build(spec, params, &services).unwrap().part else {
            panic!("`{}` is a source", spec.kind)
        };
        stage.open().await.unwrap();
        stage
    }

    /// A chat whose counter stands at zero.
    pub(crate) async fn chat(&self, members: &[&str]) -> ChatId {
        let chat = ChatId::generate();
        self.set_counter(&chat, 0).await;
        for member in members {
            let membership = Membership {
                chat_id: chat.clone(),
                user_id: (*member).into(),
                role: Role::Member,
                joined_at: now(),
                muted_until: None,
            };
            chat_memberships::add(&*self.connected.store, &membership).await.unwrap();
        }
        self.store.take_calls();
        chat
    }

    pub(crate) async fn counter(&self, chat: &ChatId) -> Option<u64> {
        let counter = chat_counters::get(&*self.store, chat, Consistency::Strong).await.unwrap();
        counter.map(|counter| counter.sequence_counter)
    }

    /// As nobody should.
    pub(crate) async fn set_counter(&self, chat: &ChatId, sequence_counter: u64) {
        let counter = ChatCounter { sequence_counter, ..ChatCounter::new(chat.clone(), now()) };
        self.write(Write::put(chat_counters::SCHEMA.name.clone(), counter.to_item())).await;
    }

    /// As nobody should.
    pub(crate) async fn remove_counter(&self, chat: &ChatId) {
        self.write(Write::delete(chat_counters::SCHEMA.name.clone(), Key::new("chat_id", chat))).await;
    }

    async fn write(&self, write: Write) {
        self.connected.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
    }

    /// Everything stored in the chat, by sequence.
    pub(crate) async fn messages(&self, chat: &ChatId) -> Vec<Message> {
        let (mut stored, mut after) = (Vec::new(), 0);
        loop {
            let limit = NonZeroU32::new(1000).unwrap();
            let part = messages::after(&*self.store, chat, after, limit).await.unwrap();
            stored.extend(part.items);
            match part.next {
                Some(next) => after = next,
                None => return stored,
            }
        }
    }

    pub(crate) async fn sequences(&self, chat: &ChatId) -> Vec<u64> {
        self.messages(chat).await.iter().map(|message| message.sequence).collect()
    }
}

pub(crate) fn now() -> Timestamp {
    clock::now().into()
}

/// What a stage decided about a command, with what its client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Done,
    Sent(u64),
    /// It was sent before.
    Again(u64),
    Refused(Code),
    /// To be tried again, for this reason.
    Retry(String),
    Rejected(String),
    Fatal(String),
    Held,
}

pub(crate) fn answer(slot: &Slot) -> Option<Answer> {
    let receipt = slot.record().receipt.as_ref()?;
    Some(receipt.decode::<Json<Answer>>().unwrap().0.clone())
}

pub(crate) fn told(slot: &Slot) -> Told {
    match (slot.fate(), answer(slot)) {
        (Fate::Forward, Some(Answer::Sent(sent))) if sent.deduplicated => Told::Again(sent.sequence),
        (Fate::Forward, Some(Answer::Sent(sent))) => Told::Sent(sent.sequence),
        (Fate::Forward, Some(Answer::Done)) => Told::Done,
        (Fate::Dropped(reason), Some(Answer::Refused(refusal))) => {
            assert_eq!(reason, refusal.code.reason());
            Told::Refused(refusal.code)
        }
        (Fate::Failed(error), None) => match error.class {
            Class::Retry => Told::Retry(error.to_string()),
            Class::Reject => Told::Rejected(error.to_string()),
            Class::Fatal => Told::Fatal(error.to_string()),
        },
        (Fate::Held, None) => Told::Held,
        (fate, answer) => panic!("{fate:?} and {answer:?}"),
    }
}
