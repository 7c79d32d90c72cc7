//! A message on its way into the store: from a command to an event, or to a refusal.

use std::sync::Arc;

use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{
    Answer, Code, Command, ORIGIN, PREVIOUS_SEQUENCE, Refusal, SendMessage, Sent,
};
use courant_connectors::model::tables::idempotency_keys::{BodyHash, IdempotencyKey, Reuse};
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::model::{ChatId, MessageId};
use courant_connectors::store::MAX_TRANSACTION_BYTES;
use courant_pipeline::{Batch, Payload, Record, Slot, StageError};

use super::write::MESSAGES_PER_TRANSACTION;
use crate::commands::{self, refuse};

/// The protocol's limits. The edge has checked them; a record may also come from elsewhere.
const MAX_CONTENT_BYTES: usize = 4096;
const MAX_CLIENT_ID_CHARS: usize = 128;
/// Ours is much shorter: as much as a key may have and still be written down.
const MAX_ID_BYTES: usize = 128;
/// The longest that a MIME type may be, both parts and the slash (RFC 4288).
const MAX_CONTENT_TYPE_BYTES: usize = 255;

/// What a message and its key take at the most: what clients choose, and ids, times and attributes' names. A transaction
/// of the longest ones stays under the store's limit, so packing need not weigh them.
const MAX_DRAFT_BYTES: usize = MAX_CONTENT_BYTES + MAX_CONTENT_TYPE_BYTES + 6 * MAX_ID_BYTES + 1024;
const _: () = assert!(MESSAGES_PER_TRANSACTION * MAX_DRAFT_BYTES < MAX_TRANSACTION_BYTES);

pub(super) struct Draft {
    /// The place of its record in the batch.
    pub(super) slot: usize,
    /// As it is to be stored; its sequence is zero until one is allocated.
    pub(super) message: Message,
    pub(super) body: BodyHash,
    /// The connection that it came from, if that is stored.
    pub(super) origin: Option<Box<str>>,
    pub(super) outcome: Outcome,
}

/// What became of a draft.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// To be stored.
    Open,
    /// On disk, after this one of the same chat if that is known.
    Stored {
        previous: Option<u64>,
    },
    /// The client's id stands for this already: the same message or another.
    Known(Box<IdempotencyKey>),
    Refused(Refusal),
    Failed(Arc<StageError>),
    /// Not tried, because an earlier one of its chat has to be tried again.
    Held,
}

/// Makes drafts of a batch's commands; what cannot be a message has its verdict.
pub(super) fn read(batch: &mut Batch, now: Timestamp) -> Vec<Draft> {
    let mut drafts = Vec::with_capacity(batch.len());
    for (at, slot) in batch.iter_mut().enumerate() {
        match commands::command(slot.record()) {
            Err(error) => slot.fail(error),
            Ok(command) => match Draft::of(&command.0, slot.record(), at, now) {
                Ok(draft) => drafts.push(draft),
                Err(refusal) => refuse(slot, refusal),
            },
        }
    }
    drafts
}

impl Draft {
    fn of(command: &Command, record: &Record, slot: usize, now: Timestamp) -> Result<Self, Refusal> {
        let Command::SendMessage(send) = command else {
            let message = format!("`{}` is not a message to send", command.name());
            return Err(Refusal::new(Code::BadRequest, message));
        };
        check(send)?;
        // Order is kept by key. Under another one two messages of a chat could overtake each other.
        if record.key.as_ref().is_none_or(|key| key.as_str() != send.chat_id.as_str()) {
            return Err(Refusal::new(Code::BadRequest, "the record's key is not the message's chat"));
        }
        let body = BodyHash::of(&send.content_type, &send.content);
        let message = Message {
            chat_id: send.chat_id.clone(),
            sequence: 0,
            message_id: MessageId::generate(),
            sender_id: send.sender_id.clone(),
            client_message_id: send.client_message_id.clone(),
            content: send.content.clone(),
            content_type: send.content_type.clone(),
            created_at: now,
        };
        let origin = record.headers.get(ORIGIN).map(Box::from);
        Ok(Self { slot, message, body, origin, outcome: Outcome::Open })
    }

    pub(super) fn chat(&self) -> &ChatId {
        &self.message.chat_id
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.outcome, Outcome::Open)
    }

    /// What is stored with the message, so that it is known when it comes again.
    pub(super) fn key(&self) -> IdempotencyKey {
        IdempotencyKey {
            chat_id: self.message.chat_id.clone(),
            client_message_id: self.message.client_message_id.clone(),
            message_id: self.message.message_id.clone(),
            sequence: self.message.sequence,
            sender_id: self.message.sender_id.clone(),
            body_hash: self.body.clone(),
            created_at: self.message.created_at,
        }
    }

    pub(super) fn reuse(&self, key: &IdempotencyKey) -> Reuse {
        key.reused_by(&self.message.sender_id, &self.body)
    }

    /// Gives the record its verdict, and its client an answer.
    pub(super) fn settle(mut self, slot: &mut Slot) {
        match std::mem::replace(&mut self.outcome, Outcome::Held) {
            Outcome::Stored { previous } => {
                if let Some(previous) = previous {
                    slot.record_mut().headers.set(PREVIOUS_SEQUENCE, previous.to_string());
                }
                self.forward(slot, Deduplicated(false));
            }
            Outcome::Known(key) => self.settle_known(*key, slot),
            Outcome::Refused(refusal) => refuse(slot, refusal),
            Outcome::Failed(error) => slot.fail(error),
            Outcome::Held | Outcome::Open => slot.hold(),
        }
    }

    fn settle_known(mut self, key: IdempotencyKey, slot: &mut Slot) {
        match self.reuse(&key) {
            Reuse::SameMessage => {
                // All of the event is in the key and in the command: the body is the same by its hash.
                self.message.message_id = key.message_id;
                self.message.sequence = key.sequence;
                self.message.created_at = key.created_at;
                self.forward(slot, Deduplicated(true));
            }
            // One answer for both: whose message it was is nobody else's business.
            Reuse::OtherBody | Reuse::OtherSender => {
                let id = &self.message.client_message_id;
                let message =
                    format!("the client_message_id '{id}' was used for another message of this chat");
                refuse(slot, Refusal::new(Code::IdempotencyMismatch, message));
            }
        }
    }

    /// The record goes on as the event of its message.
    fn forward(self, slot: &mut Slot, Deduplicated(deduplicated): Deduplicated) {
        let message = self.message;
        let sent = Sent {
            message_id: message.message_id.clone(),
            chat_id: message.chat_id.clone(),
            sequence: message.sequence,
            created_at: message.created_at,
            deduplicated,
        };
        let record = slot.record_mut();
        commands::answer(record, Answer::Sent(sent));
        record.payload = Payload::Text(MessagePersisted::of(message).encode().payload);
    }
}

struct Deduplicated(bool);

fn check(send: &SendMessage) -> Result<(), Refusal> {
    let bad = |message: String| Err(Refusal::new(Code::BadRequest, message));
    match send.content.len() {
        0 => return bad(format!("the content is empty; a message has 1 to {MAX_CONTENT_BYTES} bytes")),
        1..=MAX_CONTENT_BYTES => {}
        bytes => {
            let message = format!("the content has {bytes} bytes; a message has up to {MAX_CONTENT_BYTES}");
            return Err(Refusal::new(Code::TooLarge, message));
        }
    }
    let client_id = send.client_message_id.as_str();
    let printable = client_id.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if client_id.is_empty() || client_id.len() > MAX_CLIENT_ID_CHARS || !printable {
        return bad(format!("a client_message_id has 1 to {MAX_CLIENT_ID_CHARS} printable ASCII characters"));
    }
    for (what, text, most) in [
        ("content_type", send.content_type.as_str(), MAX_CONTENT_TYPE_BYTES),
        ("chat_id", send.chat_id.as_str(), MAX_ID_BYTES),
        ("sender_id", send.sender_id.as_str(), MAX_ID_BYTES),
    ] {
        if text.is_empty() || text.len() > most {
            return bad(format!("a {what} has 1 to {most} bytes"));
        }
    }
    Ok(())
}
