//! Carrying commands out, each by itself: what the stages that change chats and accounts share.
//!
//! Commands about different things are carried out at the same time, up to a bound; those about one thing in the order
//! they came, and after one that has to wait, the rest of them wait too. Such commands are rare beside messages, and each
//! is a decision of its own, so nothing would be gained by writing several together.

use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::model::commands::{Answer, Command, Refusal};
use courant_connectors::model::topics::{Event, Payload as EventPayload};
use courant_connectors::store::{CancelReason, StoreError};
use courant_pipeline::{Batch, Class, Json, Key, Output, Payload, Record, Slot, StageError};
use futures::StreamExt as _;
use rustc_hash::FxHashMap;

use super::{answer, refuse};

/// Things that are changed at the same time. Enough to fill one sync of the store, and few enough that a batch is no
/// burst to a server.
const AT_ONCE: usize = 32;
/// How often a command is decided anew, because what it was decided on has changed. Whoever loses this often competes
/// with many, and does better to wait.
pub const DECISIONS: u32 = 4;

/// A command that was carried out.
pub enum Outcome {
    /// The record goes on as the event that tells of it.
    Happened { answer: Answer, key: String, event: Bytes, output: Output },
    /// There is nothing to tell but the answer.
    Done(Answer),
}

impl Outcome {
    pub fn happened<P: EventPayload>(answer: Answer, event: &Event<P>, output: Output) -> Self {
        let key = event.payload.key().to_owned();
        Self::Happened { answer, key, event: event.encode().payload, output }
    }
}

/// Why a command was not carried out.
#[derive(Debug)]
pub enum Unable {
    /// It may not be.
    Refused(Refusal),
    Failed(StageError),
}

impl From<Refusal> for Unable {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StageError> for Unable {
    fn from(error: StageError) -> Self {
        Self::Failed(error)
    }
}

pub type Carried = Result<Outcome, Unable>;

type Read = Result<Arc<Json<Command>>, StageError>;

/// Carries out every command of a batch and leaves the verdicts on its records.
pub async fn carry_out<F>(
    batch: &mut Batch,
    read: impl Fn(&Record) -> Read,
    work: impl Fn(Arc<Json<Command>>) -> F,
) where
    F: Future<Output = Carried>,
{
    let mut groups: Vec<Vec<(usize, Read)>> = Vec::new();
    let mut group_of: FxHashMap<Option<&str>, usize> = FxHashMap::default();
    for (index, record) in batch.records().enumerate() {
        let group = *group_of.entry(record.key.as_ref().map(Key::as_str)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push((index, read(record)));
    }
    let groups = futures::stream::iter(groups).map(|group| in_order(group, &work));
    let carried: Vec<Vec<_>> = groups.buffer_unordered(AT_ONCE).collect().await;
    let mut of_slot: Vec<Option<Carried>> = batch.slots().iter().map(|_| None).collect();
    for (index, carried) in carried.into_iter().flatten() {
        of_slot[index] = Some(carried);
    }
    for (slot, carried) in batch.iter_mut().zip(of_slot) {
        match carried {
            Some(carried) => conclude(slot, carried),
            None => slot.hold(),
        }
    }
}

/// The commands about one thing; those behind one that has to be retried are left out.
async fn in_order<F>(
    group: Vec<(usize, Read)>,
    work: impl Fn(Arc<Json<Command>>) -> F,
) -> Vec<(usize, Carried)>
where
    F: Future<Output = Carried>,
{
    let mut done = Vec::with_capacity(group.len());
    for (index, command) in group {
        let carried = match command {
            Ok(command) => work(command).await,
            Err(error) => Err(Unable::Failed(error)),
        };
        let waits = matches!(&carried, Err(Unable::Failed(error)) if error.class == Class::Retry);
        done.push((index, carried));
        if waits {
            break;
        }
    }
    done
}

fn conclude(slot: &mut Slot, carried: Carried) {
    match carried {
        Ok(Outcome::Happened { answer: told, key, event, output }) => {
            let record = slot.record_mut();
            answer(record, told);
            record.key = Some(Key::new(key));
            record.payload = Payload::Text(event);
            slot.send_to(output);
        }
        Ok(Outcome::Done(told)) => {
            answer(slot.record_mut(), told);
            slot.finish();
        }
        Err(Unable::Refused(refusal)) => refuse(slot, refusal),
        Err(Unable::Failed(error)) => slot.fail(error),
    }
}

/// Whether a conditional write was done; not, if what it rested on has changed. Anything else went wrong.
pub fn was_done<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(done) => Ok(Some(done)),
        Err(StoreError::ConditionFailed { .. }) => Ok(None),
        Err(StoreError::TransactionCanceled { reasons }) => {
            let changed = |reason: &CancelReason| matches!(reason, CancelReason::ConditionFailed { .. });
            let invalid = |reason: &CancelReason| matches!(reason, CancelReason::Invalid(_));
            let lost = reasons.iter().flatten().any(changed) && !reasons.iter().flatten().any(invalid);
            if lost { Ok(None) } else { Err(StoreError::TransactionCanceled { reasons }) }
        }
        Err(error) => Err(error),
    }
}

/// What is left to say after [`DECISIONS`] decisions: it may do better later.
pub fn keeps_changing(doing: &'static str) -> Unable {
    Unable::Failed(StageError::retry(doing, "others keep changing it at the same time"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use courant_connectors::model::commands::{Code, RenameChat};

    use super::*;
    use crate::commands::{command, record};
    use crate::testing::fates;

    fn rename(chat: &str, name: &str) -> Record {
        let name = name.to_owned();
        record(Command::RenameChat(RenameChat { chat_id: chat.into(), by: "user_1".into(), name }))
    }

    #[tokio::test]
    async fn what_has_to_wait_holds_up_its_own_kind_only() {
        let names =
            [("a", "ok"), ("a", "wait"), ("b", "ok"), ("a", "ok"), ("b", "no"), ("b", "never"), ("b", "ok")];
        let mut batch: Batch = names.iter().map(|(chat, name)| rename(chat, name)).collect();
        batch.push(Record::new(Payload::from_static("{nope")).with_key("b"));
        let heard = Mutex::new(Vec::new());
        let seen = &heard;
        carry_out(&mut batch, command, |command| async move {
            let Command::RenameChat(command) = &command.0 else { panic!("{command:?}") };
            tokio::task::yield_now().await;
            seen.lock().unwrap().push(format!("{} {}", command.chat_id, command.name));
            match command.name.as_str() {
                "wait" => Err(StageError::retry("rename", "down").into()),
                "never" => Err(StageError::reject("rename", "broken").into()),
                "no" => Err(Refusal::new(Code::Forbidden, "no").into()),
                _ => Ok(Outcome::Done(Answer::Done)),
            }
        })
        .await;
        let fates = fates(&batch);
        assert_eq!(fates[..3], ["finished", "retry: rename: down", "finished"]);
        assert_eq!(fates[3..7], ["held", "dropped: forbidden", "reject: rename: broken", "finished"]);
        assert!(fates[7].starts_with("reject: read the command"), "{}", fates[7]);
        let seen = heard.into_inner().unwrap();
        assert!(
            seen[..2].contains(&"a ok".into()) && seen[..2].contains(&"b ok".into()),
            "at once: {seen:?}"
        );
        assert!(!seen[3..].contains(&"a ok".to_owned()), "{seen:?}");
    }
}
