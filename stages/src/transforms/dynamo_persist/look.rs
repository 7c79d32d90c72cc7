//! What the store knows before anything is written: whose messages may be stored, and which are stored already.

use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::idempotency_keys::{IdempotencyKey, Reuse};
use courant_connectors::model::tables::{chat_memberships, idempotency_keys};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Consistency, Item, ReadStore};
use courant_pipeline::StageError;
use rustc_hash::FxHashMap;

use super::draft::{Draft, Outcome};
use crate::backends::store_error;
use crate::metrics;

/// A batch after the look.
pub(super) struct Looked {
    pub(super) decided: Vec<Draft>,
    /// What is to be stored, chat by chat, in the order of the batch; no chat is empty.
    pub(super) chats: Vec<Vec<Draft>>,
    pub(super) repeated: Vec<Repeated>,
}

/// A draft with the client id of an earlier one that is to be stored.
pub(super) struct Repeated {
    draft: Draft,
    first_slot: usize,
}

/// Asks for everything at once. The keys may be stale, since the write's condition catches what they miss; memberships
/// may not.
pub(super) async fn look(store: &dyn ReadStore, mut drafts: Vec<Draft>) -> Result<Looked, StageError> {
    let mut gets: Vec<_> = drafts
        .iter()
        .map(|draft| {
            let message = &draft.message;
            idempotency_keys::lookup(&message.chat_id, &message.client_message_id, Consistency::Eventual)
        })
        .collect();
    let mut senders: FxHashMap<(&ChatId, &UserId), usize> = FxHashMap::default();
    let memberships: Vec<usize> = drafts
        .iter()
        .map(|draft| {
            let (chat, sender) = (&draft.message.chat_id, &draft.message.sender_id);
            *senders.entry((chat, sender)).or_insert_with(|| {
                gets.push(chat_memberships::lookup(chat, sender));
                gets.len() - 1
            })
        })
        .collect();
    let found = store.batch_get(gets).await;
    let found = found.map_err(|error| store_error("look up members and known messages", error))?;
    for ((draft, key), membership) in drafts.iter_mut().zip(&found).zip(memberships) {
        draft.outcome = judge(draft, key.as_ref(), found[membership].is_some());
    }
    Ok(sort(drafts))
}

fn judge(draft: &Draft, key: Option<&Item>, is_member: bool) -> Outcome {
    let key = match key.map(IdempotencyKey::from_item).transpose() {
        Ok(key) => key,
        // Of this message alone: stopping the pipeline for it would stop everybody.
        Err(error) => return Outcome::Failed(StageError::reject("read a known message", error).into()),
    };
    match key {
        // They were a member when it was stored, which is all that the answer says.
        Some(key) if draft.reuse(&key) == Reuse::SameMessage => Outcome::Known(Box::new(key)),
        _ if !is_member => {
            let message = format!("not a member of chat '{}'", draft.chat());
            Outcome::Refused(Refusal::new(Code::NotAMember, message))
        }
        Some(key) => Outcome::Known(Box::new(key)),
        None => Outcome::Open,
    }
}

fn sort(drafts: Vec<Draft>) -> Looked {
    let checked = drafts.len();
    let mut looked = Looked { decided: Vec::new(), chats: Vec::new(), repeated: Vec::new() };
    let mut chat_at: FxHashMap<ChatId, usize> = FxHashMap::default();
    let mut first_slots = FxHashMap::default();
    for draft in drafts {
        if !draft.is_open() {
            looked.decided.push(draft);
            continue;
        }
        let client_id = (draft.chat().clone(), draft.message.client_message_id.clone());
        let first_slot = *first_slots.entry(client_id).or_insert(draft.slot);
        if first_slot != draft.slot {
            looked.repeated.push(Repeated { draft, first_slot });
            continue;
        }
        let chat = *chat_at.entry(draft.chat().clone()).or_insert_with(|| {
            looked.chats.push(Vec::new());
            looked.chats.len() - 1
        });
        looked.chats[chat].push(draft);
    }
    let known = looked.decided.iter().filter(|draft| matches!(draft.outcome, Outcome::Known(_))).count();
    metrics::idempotency(checked, known + looked.repeated.len());
    looked
}

/// What came of the first of a client id is what its repetitions are told.
pub(super) fn decide_repeated(repeated: Vec<Repeated>, finished: &mut Vec<Draft>) {
    for Repeated { mut draft, first_slot } in repeated {
        let first = finished.iter().find(|first| first.slot == first_slot);
        draft.outcome = match first.map(|first| (first, &first.outcome)) {
            Some((first, Outcome::Stored { .. })) => Outcome::Known(Box::new(first.key())),
            Some((_, decided @ (Outcome::Known(_) | Outcome::Refused(_)))) => decided.clone(),
            Some((_, Outcome::Failed(_) | Outcome::Held | Outcome::Open)) | None => Outcome::Held,
        };
        finished.push(draft);
    }
}
