//! What a model is told: what was said in the chat up to the question.
//!
//! An answer that was stored after the question, because several were asked in a row, stands behind what it answers, so
//! that a model sees a question with its answer whatever their sequences are. Where several people talk, what each says
//! begins with their name.

use std::num::NonZeroU32;

use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::users;
use courant_connectors::model::topics::messages_persisted::PersistedMessage;
use courant_connectors::model::{MessageId, UserId};
use courant_connectors::store::ReadStore;
use courant_pipeline::StageError;
use rustc_hash::FxHashMap;

use super::question::{answer_id, is_text};
use crate::backends::store_error;

const READ: &str = "read what was said before";

/// Oldest first; the last turn is the question.
pub(super) struct Conversation {
    pub(super) turns: Vec<Turn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) by: By,
    pub(super) content: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum By {
    /// The agent that is asked.
    Itself,
    /// A person, or another agent.
    Other(UserId),
}

/// Answers that are made and on their way to the store.
#[derive(Default)]
pub(super) struct Said(FxHashMap<MessageId, String>);

impl Said {
    pub(super) fn add(&mut self, question: MessageId, answer: String) {
        self.0.insert(question, answer);
    }
}

impl Conversation {
    /// At most so many messages before the question, and so many bytes of them.
    pub(super) async fn read(
        store: &dyn ReadStore,
        agent: &UserId,
        question: &PersistedMessage,
        (count, bytes): (NonZeroU32, usize),
        said: &Said,
    ) -> Result<Self, StageError> {
        let failed = |error| store_error(READ, error);
        let chat = &question.chat_id;
        let earlier = messages::before(store, chat, question.sequence, count).await.map_err(failed)?.items;
        let later = messages::after(store, chat, question.sequence, count).await.map_err(failed)?.items;
        let mut answers: FxHashMap<_, String> = later
            .into_iter()
            .filter(|message| message.sender_id == *agent)
            .map(|message| (message.client_message_id, message.content.into()))
            .collect();
        let sayings = said.0.iter().map(|(asked, text)| (answer_id(agent, asked), text.clone()));
        answers.extend(sayings);
        let mut turns = vec![Turn {
            by: By::Other(question.sender_id.clone()),
            content: question.content.clone().into(),
        }];
        let mut room = bytes;
        // Newest first, so that the oldest are left out.
        'messages: for message in earlier.into_iter().filter(|message| is_text(&message.content_type)) {
            let answer = answers.remove(&answer_id(agent, &message.message_id));
            let answer = answer.map(|content| Turn { by: By::Itself, content });
            for turn in answer.into_iter().chain([Turn::of(message, agent)]) {
                let Some(left) = room.checked_sub(turn.content.len()) else { break 'messages };
                room = left;
                turns.push(turn);
            }
        }
        turns.reverse();
        name_speakers(store, &mut turns).await.map_err(failed)?;
        Ok(Self { turns })
    }
}

impl Turn {
    fn of(message: Message, agent: &UserId) -> Self {
        let by = if message.sender_id == *agent { By::Itself } else { By::Other(message.sender_id) };
        Self { by, content: message.content.into() }
    }
}

/// Puts names before what is said where more than one person talks.
async fn name_speakers(
    store: &dyn ReadStore,
    turns: &mut [Turn],
) -> Result<(), courant_connectors::store::StoreError> {
    let mut speakers: Vec<UserId> = Vec::new();
    for turn in &*turns {
        if let By::Other(user) = &turn.by
            && !speakers.contains(user)
        {
            speakers.push(user.clone());
        }
    }
    if speakers.len() < 2 {
        return Ok(());
    }
    let found = users::get_many(store, &speakers).await?;
    let names: FxHashMap<&UserId, String> = speakers
        .iter()
        .zip(found)
        .map(|(id, user)| (id, user.map_or_else(|| id.to_string(), |user| user.display_name)))
        .collect();
    for turn in turns {
        if let By::Other(user) = &turn.by {
            turn.content = format!("{}: {}", names[user], turn.content);
        }
    }
    Ok(())
}
