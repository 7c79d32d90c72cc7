//! `agent`: answers messages in chats where an agent is a member.
//!
//! A record comes as the event of a stored message and leaves as the command to send the answer, so that whatever stores
//! people's messages stores the agent's too: `kafka-consume → agent → dynamo-persist → kafka-publish`. An answer's
//! `client_message_id` is made of the agent and of the message that it answers, so there is one however often it is
//! tried; and before the model is asked the store is: an answer that is there goes on as it was stored, since nobody
//! knows whether its event was published.
//!
//! Agents are users whose id begins with `agent_`. What an agent says is never answered, by itself or another. The
//! messages of a chat are answered one after the other, those of different chats at the same time. While an answer is
//! written the chat's connections are shown how far it has come ([`progress`]), which may be missed.
//!
//! Rejected: storing the answer here, which would be a second place that allocates sequences.

mod completions;
mod config;
mod conversation;
mod draft;
mod events;
mod progress;
mod question;
mod scripted;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::capability::RestrictedLive;
use courant_connectors::model::commands::{Command, SendMessage};
use courant_connectors::model::tables::idempotency_keys::IdempotencyKey;
use courant_connectors::model::tables::messages;
use courant_connectors::model::tables::users::{self, Edit, User};
use courant_connectors::model::topics::messages_persisted::PersistedMessage;
use courant_connectors::model::{Timestamp, UserId};
use courant_connectors::store::{Consistency, ReadWriteStore, StoreError};
use courant_pipeline::{Batch, Class, Record, Stage, StageError, clock};
use futures::{StreamExt as _, stream};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::completions::Completions;
pub use self::config::{Config, Responder, Rule, SPEC};
use self::conversation::{Conversation, Said};
use self::draft::Draft;
use self::progress::Progress;
use self::question::{Looked, Question};
use self::scripted::Script;
use crate::backends::{Backends, store_error};
use crate::commands;
use crate::metrics::{self, Answered};

/// What it does, as errors say it.
const ASK: &str = "ask the model";
/// Chats of a batch that are looked after at the same time; how many are asked about is `concurrency`.
const CHATS: usize = 64;
/// What answers are.
const PLAIN_TEXT: &str = "text/plain";

struct Agent {
    id: UserId,
    display_name: String,
    plan: Plan,
    /// Messages of the chat that a model is told of at the most, and their bytes.
    history: NonZeroU32,
    history_bytes: usize,
    longest_answer: usize,
    /// Between two frames that show how far an answer has come; none are sent if zero.
    show_every: Duration,
    /// What was said longer ago is not answered.
    max_age: Duration,
    apology: Option<String>,
    /// One for each answer that is being written.
    turns: Semaphore,
    backends: Backends,
    /// There once opened.
    open: OnceLock<Open>,
}

/// Who makes the answers, before anything is connected.
enum Plan {
    Completions(Box<completions::Plan>),
    Scripted(Script),
}

struct Open {
    live: RestrictedLive,
    /// None if answers are scripted.
    model: Option<Completions>,
}

/// What becomes of a question.
enum Outcome {
    Say(SendMessage),
    Dropped(&'static str),
    Failed(StageError),
}

#[async_trait]
impl Stage for Agent {
    async fn open(&self) -> Result<(), StageError> {
        let model = match &self.plan {
            Plan::Completions(plan) => Some(plan.open()?),
            Plan::Scripted(_) => None,
        };
        let store = self.backends.store()?;
        introduce(&store, &self.id, &self.display_name).await?;
        // Opened once, so nothing is there yet.
        let _ = self.open.set(Open { live: self.backends.live()?, model });
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let questions = question::read(batch, &self.id, self.oldest());
        if questions.is_empty() {
            return Ok(());
        }
        let asked: Vec<usize> = questions.iter().map(|question| question.slot).collect();
        let store = self.backends.store()?;
        let looked = question::look(&store, &self.id, questions).await?;
        let chats = question::by_chat(looked).into_iter();
        let chats: Vec<_> = chats.map(|chat| self.answer_in_order(&store, chat)).collect();
        let answered: Vec<Vec<_>> = stream::iter(chats).buffer_unordered(CHATS).collect().await;
        let mut outcomes: Vec<Option<Outcome>> = batch.slots().iter().map(|_| None).collect();
        for (slot, outcome) in answered.into_iter().flatten() {
            outcomes[slot] = Some(outcome);
        }
        let slots = batch.iter_mut().into_slice();
        for at in asked {
            match outcomes[at].take() {
                // Nothing of the question's record is the answer's: neither where it came from nor what was before it.
                Some(Outcome::Say(answer)) => {
                    *slots[at].record_mut() = commands::record(Command::SendMessage(answer));
                }
                Some(Outcome::Dropped(reason)) => slots[at].drop_as(reason),
                Some(Outcome::Failed(error)) => slots[at].fail(error),
                None => slots[at].hold(),
            }
        }
        Ok(())
    }

    fn instead(&self, record: &Record, _: &StageError) -> Option<Record> {
        let apology = self.apology.clone()?;
        let question = question::of(record, &self.id, self.oldest()).ok()?;
        metrics::agent(&self.id, Answered::Apologized);
        let mut answer = self.message(&question, apology);
        // Another message than the answer, which can still come when the letter is run again.
        answer.client_message_id = format!("{}/sorry", answer.client_message_id).into();
        Some(commands::record(Command::SendMessage(answer)))
    }
}

impl Agent {
    fn oldest(&self) -> Timestamp {
        let age = u64::try_from(self.max_age.as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_unix_millis(clock::unix_millis().saturating_sub(age))
    }

    /// The questions of one chat; those behind one that has to be asked again are left out.
    async fn answer_in_order(
        &self,
        store: &dyn ReadWriteStore,
        questions: Vec<(Question, Looked)>,
    ) -> Vec<(usize, Outcome)> {
        let (mut outcomes, mut said) = (Vec::with_capacity(questions.len()), Said::default());
        for (question, looked) in questions {
            let outcome = match looked {
                Looked::NotHere => Outcome::Dropped(question::NOT_HERE),
                Looked::Taken => Outcome::Dropped(question::TAKEN),
                Looked::Answered(key) => self.repeat(store, *key).await,
                Looked::Open => self.answer(store, &question.message, &mut said).await,
            };
            let waits = matches!(&outcome, Outcome::Failed(error) if error.class == Class::Retry);
            outcomes.push((question.slot, outcome));
            if waits {
                break;
            }
        }
        outcomes
    }

    /// The answer as it is stored, whatever a model would say now.
    async fn repeat(&self, store: &dyn ReadWriteStore, key: IdempotencyKey) -> Outcome {
        const READ: &str = "read the answer that is stored";
        let stored = messages::get(store, &key.chat_id, key.sequence, Consistency::Strong).await;
        match stored {
            Ok(Some(stored)) if stored.message_id == key.message_id => {
                metrics::agent(&self.id, Answered::Before);
                Outcome::Say(SendMessage {
                    chat_id: stored.chat_id,
                    sender_id: stored.sender_id,
                    client_message_id: stored.client_message_id,
                    content: stored.content,
                    content_type: stored.content_type,
                })
            }
            Ok(_) => Outcome::Failed(StageError::reject(READ, "it is not there, although its key is")),
            Err(error) => Outcome::Failed(store_error(READ, error)),
        }
    }

    async fn answer(
        &self,
        store: &dyn ReadWriteStore,
        question: &PersistedMessage,
        said: &mut Said,
    ) -> Outcome {
        let begun = Instant::now();
        let asked = self.ask(store, question, said).await;
        metrics::agent_took(&self.id, begun);
        match asked {
            Ok(text) => {
                metrics::agent(&self.id, Answered::Now);
                said.add(question.message_id.clone(), text.clone());
                Outcome::Say(self.message(question, text))
            }
            Err(error) => {
                metrics::agent(&self.id, Answered::Not);
                Outcome::Failed(error)
            }
        }
    }

    async fn ask(
        &self,
        store: &dyn ReadWriteStore,
        question: &PersistedMessage,
        said: &Said,
    ) -> Result<String, StageError> {
        let Some(open) = self.open.get() else {
            return Err(StageError::fatal(ASK, "the stage is not open"));
        };
        let Ok(_turn) = self.turns.acquire().await else {
            return Err(StageError::retry(ASK, "the stage is closed"));
        };
        let conversation =
            Conversation::read(store, &self.id, question, (self.history, self.history_bytes), said).await?;
        let progress = if self.show_every.is_zero() {
            None
        } else {
            Progress::begin(store, &open.live, &self.id, question, self.show_every).await
        };
        let mut draft = Draft::new(self.longest_answer, progress);
        let answered = match (&self.plan, &open.model) {
            (_, Some(model)) => model.answer(&conversation, &mut draft).await,
            (Plan::Scripted(script), _) => script.answer(&question.content, &mut draft).await,
            (Plan::Completions(_), None) => Err(StageError::fatal(ASK, "the stage is not open")),
        };
        draft.finish(answered).await
    }

    /// An answer, known by the agent and by what it answers.
    fn message(&self, question: &PersistedMessage, content: String) -> SendMessage {
        SendMessage {
            chat_id: question.chat_id.clone(),
            sender_id: self.id.clone(),
            client_message_id: question::answer_id(&self.id, &question.message_id),
            content: content.into(),
            content_type: PLAIN_TEXT.into(),
        }
    }
}

/// Makes the agent a user, so that it can be added to chats: a copy of what the configuration says of it.
async fn introduce(store: &dyn ReadWriteStore, agent: &UserId, name: &str) -> Result<(), StageError> {
    const INTRODUCE: &str = "make the agent a user";
    let now = Timestamp::from(clock::now());
    let known = users::get(store, agent).await.map_err(|error| store_error(INTRODUCE, error))?;
    let done = match known {
        Some(user) if user.display_name == name => Ok(()),
        Some(_) => users::edit(store, agent, Edit::DisplayName(name.to_owned()), now).await.map(drop),
        None => users::create(store, &User::agent(agent.clone(), name.to_owned(), now)).await,
    };
    match done {
        // Another process was faster.
        Ok(()) | Err(StoreError::ConditionFailed { .. }) => Ok(()),
        Err(error) => Err(store_error(INTRODUCE, error)),
    }
}
