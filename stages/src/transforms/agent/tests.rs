//! On the embedded engine, behind a store that fails where a test wants it to, with a model server of the test's own.

mod answering;
mod crashes;
mod server;

use std::sync::Arc;

use courant_connectors::model::commands::{Command, ORIGIN, PREVIOUS_SEQUENCE, SendMessage};
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::model::{ChatId, UserId};
use courant_pipeline::{Batch, Record, Stage};
use serde_json::{Value, json};

use super::SPEC;
use crate::commands;
use crate::testing::chat::World;
use crate::testing::fates;
use crate::transforms::dynamo_persist;

const ANN: &str = "user_ann";
const BOB: &str = "user_bob";
const AGENT: &str = "agent_helper";

/// A world with an agent and what stores its answers.
struct Scene {
    world: World,
    persist: Arc<dyn Stage>,
    agent: Arc<dyn Stage>,
}

impl Scene {
    async fn new(params: Value) -> Self {
        let world = World::new().await;
        let persist = world.stage(&dynamo_persist::SPEC, json!({})).await;
        let agent = world.stage(&SPEC, with_agent(params)).await;
        Self { world, persist, agent }
    }

    /// Somebody says something: its event, as it is in the log.
    async fn say(&self, chat: &ChatId, sender: &str, content: &str) -> Record {
        let said = SendMessage {
            chat_id: chat.clone(),
            sender_id: sender.into(),
            client_message_id: format!("c-{content}").into(),
            content: content.into(),
            content_type: "text/plain".into(),
        };
        let mut record = self.store(vec![commands::record(Command::SendMessage(said))]).await.remove(0);
        record.headers.set(ORIGIN, "conn_of_the_sender");
        record.headers.set(PREVIOUS_SEQUENCE, "1");
        record
    }

    /// Has `dynamo-persist` store commands; their events.
    async fn store(&self, records: Vec<Record>) -> Vec<Record> {
        let mut batch = Batch::from(records);
        self.persist.process(&mut batch).await.unwrap();
        batch.records().cloned().collect()
    }

    /// What the agent makes of events.
    async fn ask(&self, records: Vec<Record>) -> Batch {
        let mut batch = Batch::from(records);
        self.agent.process(&mut batch).await.unwrap();
        batch
    }

    /// The agent answers and the answers are stored; the verdicts of the agent.
    async fn run(&self, records: Vec<Record>) -> Vec<String> {
        let batch = self.ask(records).await;
        let fates = fates(&batch);
        let commands = batch.records().zip(&fates).filter(|(_, fate)| fate.starts_with('{'));
        self.store(commands.map(|(record, _)| record.clone()).collect()).await;
        fates
    }

    /// Everything said in a chat, with who said it.
    async fn said(&self, chat: &ChatId) -> Vec<(String, String)> {
        let messages = self.world.messages(chat).await;
        messages.into_iter().map(|message| (message.sender_id.to_string(), message.content.into())).collect()
    }

    /// What the agent said in a chat.
    async fn answers(&self, chat: &ChatId) -> Vec<String> {
        let said = self.said(chat).await.into_iter();
        said.filter(|(sender, _)| UserId::from(sender.as_str()).is_agent()).map(|(_, text)| text).collect()
    }
}

fn with_agent(mut params: Value) -> Value {
    params["agent"] = json!(AGENT);
    params
}

fn scripted() -> Value {
    json!({"responder": "scripted", "script": [
        {"contains": "TEA", "say": "green or black?"}, {"say": "you said: {content}"}]})
}

fn question_id(record: &Record) -> String {
    MessagePersisted::from_json(&record.payload.to_json()).unwrap().payload.message_id.to_string()
}
