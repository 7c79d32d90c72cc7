//! Somebody who asks an agent one question after the other, and looks at what it answered.

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use serde_json::json;

use crate::chat::{connect, history, next_of, send};

/// In a chat with nobody else.
pub struct Asking<'a> {
    person: &'a SignedIn,
    agent: &'a str,
    asks: Socket,
    /// Another connection, on which nothing but deliveries come.
    hears: Socket,
    chat: String,
    questions: Vec<String>,
}

impl<'a> Asking<'a> {
    /// Waits until the agent can be added to a chat.
    pub async fn begin(person: &'a SignedIn, agent: &'a str) -> Self {
        let wanted = json!({"chat_type": "group", "name": "questions", "members": [agent]});
        let made = eventually("the agent is there", async || {
            person.client.post("/api/v1/chats", &wanted).await.ok()
        });
        let chat = made.await["chat_id"].as_str().expect("it has an id").to_owned();
        let (asks, hears) = (connect(person).await, connect(person).await);
        Self { person, agent, asks, hears, chat, questions: Vec::new() }
    }

    /// Asks so many more: `q-0`, `q-1` and so on.
    pub async fn ask(&mut self, questions: usize) {
        for _ in 0..questions {
            let question = format!("q-{}", self.questions.len());
            let answer = send(&mut self.asks, &self.chat, &question, &question).await;
            assert_eq!(answer["type"], "ack", "{answer}");
            self.questions.push(question);
        }
    }

    /// What the agent has said so far; which try of a model's it was does not matter.
    async fn answers(&self) -> Vec<String> {
        let said = history(self.person, &self.chat).await.into_iter();
        let answers = said.filter(|message| message["sender_id"] == self.agent);
        answers.map(|message| without_try(message["content"].as_str().expect("it is text"))).collect()
    }

    pub async fn has_answers(&self, wanted: usize) {
        eventually("answers", async || (self.answers().await.len() >= wanted).then_some(())).await;
    }

    /// Asks a last question. A chat's questions are answered in their order, so when that is, whatever was to be answered
    /// again has been.
    ///
    /// # Panics
    /// Unless each question has the one answer it should have, stored and delivered in order.
    pub async fn ends(mut self, answer: impl Fn(&str) -> String) {
        self.ask(1).await;
        let expected: Vec<String> = self.questions.iter().map(|question| answer(question)).collect();
        let all = eventually("the last answer", async || {
            Some(self.answers().await).filter(|answers| answers.last() == expected.last())
        });
        assert_eq!(all.await, expected);
        let mut heard = Vec::new();
        while heard.last() != expected.last() {
            let frame = next_of(&mut self.hears, "message").await;
            if (&frame["chat_id"], &frame["sender_id"]) == (&json!(self.chat), &json!(self.agent)) {
                heard.push(without_try(frame["content"].as_str().expect("it is text")));
            }
        }
        heard.dedup();
        assert_eq!(heard, expected);
    }
}

fn without_try(answer: &str) -> String {
    answer.split(", try ").next().unwrap_or_default().to_owned()
}
