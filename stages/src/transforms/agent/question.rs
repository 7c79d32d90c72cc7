//! Which records are questions to the agent, and what the store knows of them before anybody is asked.

use courant_connectors::model::tables::idempotency_keys::IdempotencyKey;
use courant_connectors::model::tables::{chat_memberships, idempotency_keys};
use courant_connectors::model::topics::messages_persisted::PersistedMessage;
use courant_connectors::model::topics::{EventError, MessagePersisted};
use courant_connectors::model::{ChatId, ClientMessageId, MessageId, Timestamp, UserId};
use courant_connectors::store::{Consistency, ReadStore};
use courant_pipeline::{Batch, Record, StageError};
use rustc_hash::FxHashMap;

use crate::backends::store_error;

/// The metric labels of what is not answered.
const NOT_A_MESSAGE: &str = "not-a-message";
const FROM_AGENT: &str = "from-agent";
const NOT_TEXT: &str = "not-text";
const TOO_OLD: &str = "too-old";
pub(super) const NOT_HERE: &str = "no-agent";
/// Somebody else sent a message under the id that the answer would have.
pub(super) const TAKEN: &str = "id-taken";

/// A message that the agent may have to answer.
pub(super) struct Question {
    /// The place of its record in the batch.
    pub(super) slot: usize,
    pub(super) message: PersistedMessage,
}

/// What the store knows of a question.
pub(super) enum Looked {
    /// The agent is not in its chat.
    NotHere,
    Taken,
    Answered(Box<IdempotencyKey>),
    Open,
}

/// Why a record is no question.
pub(super) enum NoQuestion {
    Dropped(&'static str),
    Failed(StageError),
}

/// The questions of a batch; what is none has its verdict.
pub(super) fn read(batch: &mut Batch, agent: &UserId, oldest: Timestamp) -> Vec<Question> {
    let mut questions = Vec::new();
    for (at, slot) in batch.iter_mut().enumerate() {
        match of(slot.record(), agent, oldest) {
            Ok(message) => questions.push(Question { slot: at, message }),
            Err(NoQuestion::Dropped(reason)) => slot.drop_as(reason),
            Err(NoQuestion::Failed(error)) => slot.fail(error),
        }
    }
    questions
}

/// The message that a record tells of, if it may be answered.
pub(super) fn of(record: &Record, agent: &UserId, oldest: Timestamp) -> Result<PersistedMessage, NoQuestion> {
    let message = match MessagePersisted::from_json(&record.payload.to_json()) {
        Ok(event) => event.payload,
        Err(EventError::OtherType { .. }) => return Err(NoQuestion::Dropped(NOT_A_MESSAGE)),
        Err(error) => return Err(NoQuestion::Failed(StageError::reject("read the event", error))),
    };
    let sender = &message.sender_id;
    if sender == agent || sender.is_agent() || sender.is_system() {
        return Err(NoQuestion::Dropped(FROM_AGENT));
    }
    if !is_text(&message.content_type) {
        return Err(NoQuestion::Dropped(NOT_TEXT));
    }
    if message.created_at < oldest {
        return Err(NoQuestion::Dropped(TOO_OLD));
    }
    Ok(message)
}

pub(super) fn is_text(content_type: &str) -> bool {
    content_type.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/"))
}

/// What makes an answer the same however often it is tried.
pub(super) fn answer_id(agent: &UserId, question: &MessageId) -> ClientMessageId {
    format!("{agent}/{question}").into()
}

/// Asks the authority, strongly: first in which chats the agent is, then what it has answered there.
pub(super) async fn look(
    store: &dyn ReadStore,
    agent: &UserId,
    questions: Vec<Question>,
) -> Result<Vec<(Question, Looked)>, StageError> {
    let here = chats_with(store, agent, &questions).await?;
    let gets = questions.iter().filter(|question| here[&question.message.chat_id]).map(|question| {
        let id = answer_id(agent, &question.message.message_id);
        idempotency_keys::lookup(&question.message.chat_id, &id, Consistency::Strong)
    });
    let gets: Vec<_> = gets.collect();
    let found =
        if gets.is_empty() { Vec::new() } else { store.batch_get(gets).await.map_err(look_failed)? };
    let mut found = found.into_iter();
    let mut looked = Vec::with_capacity(questions.len());
    for question in questions {
        let state = if here[&question.message.chat_id] {
            match found.next().flatten().as_ref().map(IdempotencyKey::from_item) {
                None => Looked::Open,
                Some(Ok(key)) if key.sender_id == *agent => Looked::Answered(Box::new(key)),
                // A key that cannot be read is nobody's answer, and `dynamo-persist` refuses to go over it.
                Some(_) => Looked::Taken,
            }
        } else {
            Looked::NotHere
        };
        looked.push((question, state));
    }
    Ok(looked)
}

async fn chats_with(
    store: &dyn ReadStore,
    agent: &UserId,
    questions: &[Question],
) -> Result<FxHashMap<ChatId, bool>, StageError> {
    let mut here: FxHashMap<ChatId, bool> = FxHashMap::default();
    for question in questions {
        here.entry(question.message.chat_id.clone()).or_default();
    }
    let gets = here.keys().map(|chat| chat_memberships::lookup(chat, agent)).collect();
    let found = store.batch_get(gets).await.map_err(look_failed)?;
    for (is_here, membership) in here.values_mut().zip(found) {
        *is_here = membership.is_some();
    }
    Ok(here)
}

fn look_failed(error: courant_connectors::store::StoreError) -> StageError {
    store_error("look up where the agent is and what it answered", error)
}

/// The questions of each chat, in their order.
pub(super) fn by_chat(looked: Vec<(Question, Looked)>) -> Vec<Vec<(Question, Looked)>> {
    let mut chats: Vec<Vec<(Question, Looked)>> = Vec::new();
    let mut by_name: FxHashMap<ChatId, usize> = FxHashMap::default();
    for (question, state) in looked {
        let chat = *by_name.entry(question.message.chat_id.clone()).or_insert_with(|| {
            chats.push(Vec::new());
            chats.len() - 1
        });
        chats[chat].push((question, state));
    }
    chats
}
