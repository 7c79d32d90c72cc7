//! Sequences: one update of a chat's counter takes those of all its messages in a batch.

use std::num::NonZeroU32;
use std::sync::Arc;

use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::chat_counters::{self, AllocateError};
use courant_connectors::model::{ChatId, Timestamp};
use courant_connectors::store::{StoreError, WriteStore};
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::draft::{Draft, Outcome};
use crate::backends::store_error;
use crate::metrics::{self, CounterFault};

/// Counters updated at the same time. Enough that the busiest batches wait for the store once or twice; on DynamoDB each
/// takes a connection.
const AT_ONCE: usize = 128;

/// Gives every draft its sequence. Where that fails, it does for the whole chat and for no other.
pub(super) async fn for_each_chat(
    store: &dyn WriteStore,
    chats: Vec<Vec<Draft>>,
    now: Timestamp,
) -> Vec<Vec<Draft>> {
    let allocations = chats.into_iter().map(|chat| for_chat(store, chat, now));
    stream::iter(allocations).buffer_unordered(AT_ONCE).collect().await
}

async fn for_chat(store: &dyn WriteStore, mut drafts: Vec<Draft>, now: Timestamp) -> Vec<Draft> {
    let wanted = u32::try_from(drafts.len()).ok().and_then(NonZeroU32::new);
    let (Some(first), Some(wanted)) = (drafts.first(), wanted) else { return drafts };
    let chat = first.chat().clone();
    let since = Instant::now();
    match chat_counters::allocate(store, &chat, wanted, now).await {
        Ok(range) => {
            metrics::allocation(since, drafts.len());
            for (draft, sequence) in drafts.iter_mut().zip(range) {
                draft.message.sequence = sequence;
            }
        }
        Err(AllocateError::CounterMissing { .. }) => {
            refuse_chat(&chat, CounterFault::Missing, drafts.iter_mut());
        }
        Err(AllocateError::Store(StoreError::DamagedItem(_))) => {
            refuse_chat(&chat, CounterFault::Wrong, drafts.iter_mut());
        }
        Err(AllocateError::Store(error)) => {
            metrics::allocation_failed(since, drafts.len());
            let error = Arc::new(store_error("allocate sequences", error));
            for draft in &mut drafts {
                draft.outcome = Outcome::Failed(Arc::clone(&error));
            }
        }
    }
    drafts
}

/// Nothing can be stored in the chat before a person has recovered its counter: a retry would not help, and a counter made
/// on the fly would give sequences out twice.
pub(super) fn refuse_chat<'a>(
    chat: &ChatId,
    fault: CounterFault,
    drafts: impl Iterator<Item = &'a mut Draft>,
) {
    let refusal = Refusal::new(
        Code::CounterMissing,
        format!("chat '{chat}' cannot take messages until its sequence counter is recovered"),
    );
    let refused = drafts.map(|draft| draft.outcome = Outcome::Refused(refusal.clone())).count();
    metrics::counter_fault(fault, refused);
    match fault {
        CounterFault::Missing => {
            tracing::error!(%chat, refused, "the chat has no sequence counter; recover it");
        }
        CounterFault::Wrong => {
            tracing::error!(%chat, refused, "the chat's sequence counter is behind its messages; recover it");
        }
    }
}
