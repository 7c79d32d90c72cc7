//! Storing messages with a real server: several processes send the same messages to the same chats at the same time.
//!
//! The stage's own tests show what it does about each failure; here the failures are those that writers make for one
//! another, on the embedded engine and on a server that speaks DynamoDB's protocol.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use courant_conformance::model::create_tables;
use courant_conformance::servers::Dynoxide;
use courant_connectors::connections::{
    Connected, Connections, EmbeddedConnection, LogConnection, StoreConnection,
};
use courant_connectors::model::commands::{Answer, Command, SendMessage, Sent};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::{idempotency_keys, messages};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::Consistency;
use courant_pipeline::spec::{BuildContext, Part};
use courant_pipeline::{Batch, Class, Fate, Json, Record, Services, Stage, clock};
use courant_stages::commands;
use courant_stages::transforms::dynamo_persist::SPEC;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;

const PROCESSES: usize = 4;
const CHATS: usize = 3;
/// More than two transactions hold.
const MESSAGES: usize = 120;

async fn embedded() -> (Connected, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let embedded = EmbeddedConnection { path: folder.path().to_owned() };
    let connections = Connections {
        store: StoreConnection::Embedded(embedded.clone()),
        log: LogConnection::Embedded(embedded),
        ..Connections::default()
    };
    (connections.open().await.unwrap(), folder)
}

fn now() -> Timestamp {
    clock::now().into()
}

fn stage(connected: &Connected) -> Arc<dyn Stage> {
    let services = Services::default().with(Arc::new(connected.clone()));
    let context = BuildContext { pipeline: "ingest", stage: SPEC.kind, services: &services };
    match (SPEC.build)(json!({}), &context).map(|built| built.part) {
        Ok(Part::Stage(stage)) => stage,
        _ => panic!("it is a stage"),
    }
}

async fn new_chat(connected: &Connected, sender: &UserId) -> ChatId {
    let chat = ChatId::generate();
    chat_counters::create(&*connected.store, &ChatCounter::new(chat.clone(), now())).await.unwrap();
    let (chat_id, user_id) = (chat.clone(), sender.clone());
    let member = Membership { chat_id, user_id, role: Role::Member, joined_at: now(), muted_until: None };
    chat_memberships::add(&*connected.store, &member).await.unwrap();
    chat
}

fn send(chat: &ChatId, sender: &UserId, number: usize) -> Record {
    commands::record(Command::SendMessage(SendMessage {
        chat_id: chat.clone(),
        sender_id: sender.clone(),
        client_message_id: format!("c-{number}").into(),
        content: format!("message {number}").into(),
        content_type: "text/plain".into(),
    }))
}

/// Gives a stage its records, and again what it wants to try again.
async fn send_all(stage: Arc<dyn Stage>, records: Vec<Record>) -> Vec<Sent> {
    let mut sent: Vec<Option<Sent>> = vec![None; records.len()];
    loop {
        let open: Vec<usize> = (0..records.len()).filter(|at| sent[*at].is_none()).collect();
        if open.is_empty() {
            return sent.into_iter().flatten().collect();
        }
        let mut batch: Batch = open.iter().map(|at| records[*at].clone()).collect();
        if let Err(error) = stage.process(&mut batch).await {
            assert_eq!(error.class, Class::Retry, "{error}");
            continue;
        }
        for (slot, at) in batch.slots().iter().zip(open) {
            match slot.fate() {
                Fate::Forward => {
                    let receipt = slot.record().receipt.as_ref().unwrap();
                    let Answer::Sent(answer) = receipt.decode::<Json<Answer>>().unwrap().0.clone() else {
                        panic!("{receipt:?}")
                    };
                    sent[at] = Some(answer);
                }
                Fate::Failed(error) => assert_eq!(error.class, Class::Retry, "{error}"),
                Fate::Held => {}
                fate => panic!("{fate:?}"),
            }
        }
    }
}

/// Each message is sent by every process, in the same order in each.
async fn copies_meet(connected: Connected) {
    let sender = UserId::generate();
    let mut chats = Vec::new();
    for _ in 0..CHATS {
        chats.push(new_chat(&connected, &sender).await);
    }
    let mut processes = JoinSet::new();
    for _ in 0..PROCESSES {
        let records = (0..MESSAGES).map(|number| send(&chats[number % CHATS], &sender, number)).collect();
        processes.spawn(send_all(stage(&connected), records));
    }
    let answers = processes.join_all().await;
    for (at, chat) in chats.iter().enumerate() {
        let limit = NonZeroU32::new(1000).unwrap();
        let stored = messages::after(&*connected.store, chat, 0, limit).await.unwrap().items;
        let sent_here = || (0..MESSAGES).filter(|number| number % CHATS == at);
        let contents: BTreeSet<_> = stored.iter().map(|message| message.content.clone()).collect();
        assert_eq!(contents, sent_here().map(|number| format!("message {number}").into()).collect());
        assert_eq!(stored.len(), contents.len(), "each is stored once");
        let by_content: BTreeMap<_, _> = stored.iter().map(|m| (m.content.clone(), m)).collect();
        for number in sent_here() {
            let message = by_content[format!("message {number}").as_str()];
            let told: Vec<_> = answers.iter().map(|answers| &answers[number]).collect();
            assert!(told.iter().all(|sent| sent.sequence == message.sequence), "{told:?}");
            assert!(told.iter().all(|sent| sent.message_id == message.message_id), "{told:?}");
            assert!(told.iter().filter(|sent| !sent.deduplicated).count() <= 1, "{told:?}");
            let key =
                idempotency_keys::check_again(&*connected.store, chat, &message.client_message_id).await;
            assert_eq!(key.unwrap().unwrap().sequence, message.sequence);
        }
        let counter = chat_counters::get(&*connected.store, chat, Consistency::Strong).await.unwrap();
        assert!(counter.unwrap().sequence_counter >= stored.last().unwrap().sequence);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_meet_on_the_embedded_engine() {
    let (connected, _folder) = embedded().await;
    copies_meet(connected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_meet_on_dynamodb() {
    let server = Dynoxide::start();
    let store = server.connect().await;
    create_tables(&store).await;
    let (mut connected, _folder) = embedded().await;
    connected.store = Arc::new(store);
    copies_meet(connected).await;
}
