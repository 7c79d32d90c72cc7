//! Storing: messages and their keys in transactions of up to fifty, whole chats together.
//!
//! A chat with more than that has its transactions one after the other, so that a message is never stored before one
//! that was sent before it; different chats are stored at the same time. When a transaction is refused, those at fault
//! are dealt with and the others are written again with the sequences they have.

use std::sync::Arc;

use courant_connectors::model::tables::idempotency_keys::{self, IdempotencyKey};
use courant_connectors::model::tables::messages;
use courant_connectors::store::{
    CancelReason, Consistency, MAX_TRANSACTION, ReadStore, ReadWriteStore, StoreError, Transaction,
};
use courant_pipeline::{Class, StageError};
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::allocate::refuse_chat;
use super::draft::{Draft, Outcome};
use crate::backends::store_error;
use crate::metrics::{self, CounterFault, Met};

/// Each is two writes: the idempotency key and the message.
pub(super) const MESSAGES_PER_TRANSACTION: usize = MAX_TRANSACTION / 2;
/// Transactions of one batch at the same time; a batch of the default size has eleven.
const AT_ONCE: usize = 16;
const STORE: &str = "store messages";

/// Stores what is open. Afterwards nothing is.
pub(super) async fn all(store: &dyn ReadWriteStore, chats: Vec<Vec<Draft>>) -> Vec<Draft> {
    let count = chats.iter().map(Vec::len).sum();
    let trains = pack(chats).into_iter().map(|train| one_after_the_other(store, train));
    let mut trains = stream::iter(trains).buffer_unordered(AT_ONCE);
    let mut finished = Vec::with_capacity(count);
    while let Some(train) = trains.next().await {
        finished.extend(train);
    }
    let stored = finished.iter().filter(|draft| matches!(draft.outcome, Outcome::Stored { .. })).count();
    metrics::persisted(stored);
    finished
}

/// Puts whole chats together while they fit into one transaction. A chat that fits into none stays alone.
pub(super) fn pack<T>(chats: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut packed: Vec<Vec<T>> = Vec::new();
    for chat in chats {
        match packed.iter_mut().find(|other| other.len() + chat.len() <= MESSAGES_PER_TRANSACTION) {
            Some(other) => other.extend(chat),
            None => packed.push(chat),
        }
    }
    packed
}

/// Stores drafts in their order: one transaction, or several if they are all of one chat.
async fn one_after_the_other(store: &dyn ReadWriteStore, mut drafts: Vec<Draft>) -> Vec<Draft> {
    for start in (0..drafts.len()).step_by(MESSAGES_PER_TRANSACTION) {
        let end = drafts.len().min(start + MESSAGES_PER_TRANSACTION);
        together(store, &mut drafts[start..end]).await;
        stop_behind_failures(&mut drafts);
    }
    note_gaps(&mut drafts);
    drafts
}

/// Stores what is open in one transaction, and again without those at fault until nothing is open.
async fn together(store: &dyn ReadWriteStore, drafts: &mut [Draft]) {
    for attempt in 1.. {
        let open: Vec<&mut Draft> = drafts.iter_mut().filter(|draft| draft.is_open()).collect();
        let Some(transaction) = transaction(&open, attempt) else { return };
        let since = Instant::now();
        let answer = store.transact(transaction).await;
        metrics::transaction(since);
        match answer {
            Ok(()) => decide(open, &Outcome::Stored { previous: None }),
            Err(StoreError::TransactionCanceled { reasons }) if names_faults(&reasons, open.len()) => {
                canceled(store, open, &reasons).await;
            }
            Err(error @ StoreError::UnknownOutcome(_)) => {
                look_again(store, open, store_error(STORE, error)).await;
            }
            Err(error) => decide(open, &failed(store_error(STORE, error))),
        }
        stop_behind_failures(drafts);
    }
}

/// None if there is nothing to store.
fn transaction(drafts: &[&mut Draft], attempt: u32) -> Option<Transaction> {
    // New for each attempt: the same token with other writes would be refused.
    let token = format!("{}-{attempt}", drafts.first()?.message.message_id);
    let writes = drafts.iter().flat_map(|draft| {
        let message = messages::put_from_write(&draft.message, draft.origin.as_deref());
        [idempotency_keys::put_write(&draft.key()), message]
    });
    Some(Transaction { writes: writes.collect(), token: Some(token) })
}

fn names_faults(reasons: &[Option<CancelReason>], drafts: usize) -> bool {
    reasons.len() == 2 * drafts && reasons.iter().any(Option::is_some)
}

/// Decides about those that a transaction was refused for; the others stay open.
async fn canceled(store: &dyn ReadStore, drafts: Vec<&mut Draft>, reasons: &[Option<CancelReason>]) {
    let mut known = Vec::new();
    let mut innocent = Vec::new();
    let mut behind = Vec::new();
    for (draft, reasons) in drafts.into_iter().zip(reasons.chunks(2)) {
        match (&reasons[0], &reasons[1]) {
            (None, None) => innocent.push(draft),
            // First of all: if the message is there as well, it may be this very one.
            (Some(CancelReason::ConditionFailed { .. }), _) => {
                metrics::persist_conflict(Met::KnownKey);
                known.push(draft);
            }
            (_, Some(CancelReason::ConditionFailed { .. })) => {
                behind.push(draft.chat().clone());
                innocent.push(draft);
            }
            (Some(reason), _) | (None, Some(reason)) => draft.outcome = failed(refused(reason)),
        }
    }
    behind.dedup();
    for chat in behind {
        // Also those whose sequence is free: it lies among messages that clients have gone past.
        let of_chat = innocent.iter_mut().map(|draft| &mut **draft).filter(|draft| *draft.chat() == chat);
        refuse_chat(&chat, CounterFault::Wrong, of_chat);
    }
    if !known.is_empty() {
        let unseen = StageError::retry(STORE, "the client_message_id is taken, by what cannot be seen yet");
        look_again(store, known, unseen).await;
    }
}

fn refused(reason: &CancelReason) -> StageError {
    match reason {
        CancelReason::Conflict => {
            metrics::persist_conflict(Met::Transaction);
            store_error(STORE, StoreError::Conflict)
        }
        CancelReason::Throttled => {
            store_error(STORE, StoreError::Throttled("a write of the transaction".into()))
        }
        CancelReason::Invalid(message) => StageError::reject(STORE, message.clone()),
        CancelReason::ConditionFailed { .. } => StageError::reject(STORE, "a condition does not hold"),
    }
}

/// Reads what stands under the drafts' client ids now: themselves, others, or nothing, and then they failed.
async fn look_again(store: &dyn ReadStore, drafts: Vec<&mut Draft>, unseen: StageError) {
    let gets = drafts.iter().map(|draft| {
        let message = &draft.message;
        idempotency_keys::lookup(&message.chat_id, &message.client_message_id, Consistency::Strong)
    });
    let found = match store.batch_get(gets.collect()).await {
        Ok(found) => found,
        Err(error) => return decide(drafts, &failed(store_error("look up what was stored", error))),
    };
    let unseen = failed(unseen);
    for (draft, item) in drafts.into_iter().zip(found) {
        draft.outcome = match item.as_ref().map(IdempotencyKey::from_item) {
            None => unseen.clone(),
            Some(Ok(key)) if key.message_id == draft.message.message_id => Outcome::Stored { previous: None },
            Some(Ok(key)) => Outcome::Known(Box::new(key)),
            Some(Err(error)) => failed(StageError::reject("read a known message", error)),
        };
    }
}

fn failed(error: StageError) -> Outcome {
    Outcome::Failed(Arc::new(error))
}

fn decide(drafts: Vec<&mut Draft>, outcome: &Outcome) {
    for draft in drafts {
        draft.outcome = outcome.clone();
    }
}

/// What comes behind a draft of its chat that has to be tried again waits for it, or would overtake it; what comes behind
/// one that was refused for its counter is refused too. Drafts of one chat stand together.
fn stop_behind_failures(drafts: &mut [Draft]) {
    let mut stopped: Option<Outcome> = None;
    for at in 0..drafts.len() {
        if at > 0 && drafts[at].chat() != drafts[at - 1].chat() {
            stopped = None;
        }
        match (&drafts[at].outcome, &stopped) {
            (Outcome::Open, Some(stopped)) => drafts[at].outcome = stopped.clone(),
            (Outcome::Failed(error), _) if error.class == Class::Retry => stopped = Some(Outcome::Held),
            (Outcome::Held | Outcome::Refused(_), _) => stopped = Some(drafts[at].outcome.clone()),
            _ => {}
        }
    }
}

/// Sequences were allocated without gaps, so one between two messages stored here is known never to be used.
fn note_gaps(drafts: &mut [Draft]) {
    let mut last: Option<usize> = None;
    for at in 0..drafts.len() {
        if !matches!(drafts[at].outcome, Outcome::Stored { .. }) {
            continue;
        }
        if let Some(before) = last.map(|last| &drafts[last])
            && before.chat() == drafts[at].chat()
            && before.message.sequence + 1 != drafts[at].message.sequence
        {
            drafts[at].outcome = Outcome::Stored { previous: Some(before.message.sequence) };
        }
        last = Some(at);
    }
}
