//! On the embedded engine, behind a store that fails where a test wants it to.

mod counting;
mod failures;
mod limits;
mod property;
mod scenarios;

use std::sync::Arc;
use std::time::SystemTime;

use courant_connectors::log::LogRecord;
use courant_connectors::model::ChatId;
use courant_connectors::model::commands::{Answer, Command, PREVIOUS_SEQUENCE, SendMessage};
use courant_connectors::model::topics::MessagePersisted;
use courant_pipeline::{Batch, Fate, Record, Slot, Stage};
use serde_json::json;

use super::SPEC;
use crate::commands;
use crate::testing::chat::{Told, World, answer, told};

const ANN: &str = "user_ann";
const BOB: &str = "user_bob";

async fn world() -> (World, Arc<dyn Stage>) {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({})).await;
    (world, stage)
}

fn command(chat: &ChatId, sender: &str, client_id: &str, content: &str) -> Command {
    Command::SendMessage(SendMessage {
        chat_id: chat.clone(),
        sender_id: sender.into(),
        client_message_id: client_id.into(),
        content: content.into(),
        content_type: "text/plain".into(),
    })
}

/// From Ann, with a content made of its id.
fn send(chat: &ChatId, client_id: &str) -> Record {
    commands::record(command(chat, ANN, client_id, &format!("content of {client_id}")))
}

async fn process(stage: &dyn Stage, records: Vec<Record>) -> Batch {
    let mut batch = Batch::from(records);
    stage.process(&mut batch).await.unwrap();
    for slot in batch.slots() {
        check_event(slot);
    }
    batch
}

async fn tell(stage: &dyn Stage, records: Vec<Record>) -> Vec<Told> {
    process(stage, records).await.slots().iter().map(told).collect()
}

fn event(slot: &Slot) -> MessagePersisted {
    let payload = slot.record().payload.to_json();
    let read = LogRecord { offset: 0, at: SystemTime::UNIX_EPOCH, key: None, payload, headers: Vec::new() };
    MessagePersisted::decode(&read).unwrap()
}

/// What goes on is the event of what the client is told.
fn check_event(slot: &Slot) {
    if let (Fate::Forward, Some(Answer::Sent(sent))) = (slot.fate(), answer(slot)) {
        let event = event(slot);
        assert_eq!(slot.record().key.as_ref().unwrap().as_str(), sent.chat_id.as_str());
        assert_eq!(event.payload.message_id, sent.message_id);
        assert_eq!(event.payload.chat_id, sent.chat_id);
        assert_eq!(event.payload.sequence, sent.sequence);
        assert_eq!((event.payload.created_at, event.event_time), (sent.created_at, sent.created_at));
    }
}

fn previous(batch: &Batch) -> Vec<Option<&str>> {
    batch.records().map(|record| record.headers.get(PREVIOUS_SEQUENCE)).collect()
}
