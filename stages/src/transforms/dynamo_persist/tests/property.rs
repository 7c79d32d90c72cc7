//! Whatever comes in and whatever goes wrong: every message is stored once, in the order it was sent, and what clients are
//! told is what the store holds.

use std::collections::{BTreeMap, VecDeque};

use courant_connectors::model::commands::Code;
use courant_connectors::model::tables::idempotency_keys;
use courant_connectors::store::{CancelReason, StoreError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::testing::faulty::{Call, Fault};

const CHATS: usize = 3;

/// A message that a client sends: few of each, so that they meet.
#[derive(Debug, Clone)]
struct Sending {
    chat: usize,
    sender: &'static str,
    client_id: u8,
    body: u8,
}

/// What may go wrong with a call; `at` chooses the write that a transaction is refused for.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Fine,
    /// A look that misses what is stored; a write that is refused.
    Refused,
    /// A write that is done, and whose answer is lost.
    Lost,
    Conflict {
        at: usize,
    },
    Throttled {
        at: usize,
    },
    Down,
}

fn sending() -> impl Strategy<Value = Sending> {
    (
        0..CHATS,
        prop_oneof![5 => Just(ANN), 1 => Just(BOB)],
        0..40u8,
        prop_oneof![9 => Just(0u8), 1 => Just(1)],
    )
        .prop_map(|(chat, sender, client_id, body)| Sending { chat, sender, client_id, body })
}

fn trouble() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        6 => Just(Trouble::Fine),
        2 => Just(Trouble::Refused),
        2 => Just(Trouble::Lost),
        2 => (0..100usize).prop_map(|at| Trouble::Conflict { at }),
        1 => (0..100usize).prop_map(|at| Trouble::Throttled { at }),
        1 => Just(Trouble::Down),
    ]
}

impl Trouble {
    fn with(self, call: &Call<'_>) -> Option<Fault> {
        let unknown = || StoreError::UnknownOutcome("timeout".into());
        match (self, call) {
            (Self::Fine, _) | (Self::Lost, Call::BatchGet) => None,
            (Self::Down, _) => Some(Fault::Refuse(StoreError::Unavailable("down".into()))),
            (Self::Refused, Call::BatchGet) => Some(Fault::Stale),
            (Self::Refused, _) => Some(Fault::Refuse(unknown())),
            (Self::Lost, _) => Some(Fault::Lose(unknown())),
            (Self::Conflict { at }, Call::Transact(transaction)) => {
                Some(cancel(transaction.writes.len(), at, CancelReason::Conflict))
            }
            (Self::Throttled { at }, Call::Transact(transaction)) => {
                Some(cancel(transaction.writes.len(), at, CancelReason::Throttled))
            }
            (Self::Conflict { .. } | Self::Throttled { .. }, _) => {
                Some(Fault::Refuse(StoreError::Throttled("slow down".into())))
            }
        }
    }
}

fn cancel(writes: usize, at: usize, reason: CancelReason) -> Fault {
    let mut reasons = vec![None; writes];
    reasons[at % writes] = Some(reason);
    Fault::Refuse(StoreError::TransactionCanceled { reasons })
}

fn record(chats: &[ChatId], sending: &Sending) -> Record {
    let Sending { chat, sender, client_id, body } = sending;
    let content = format!("{sender} {client_id} {body}");
    commands::record(command(&chats[*chat], sender, &format!("c-{client_id}"), &content))
}

/// Gives a batch to the stage, and again what it asks to be given again, as the runtime does.
async fn deliver(stage: &dyn Stage, chats: &[ChatId], batch: &[Sending]) -> Vec<Told> {
    let mut all: Vec<Option<Told>> = vec![None; batch.len()];
    loop {
        let open: Vec<usize> = (0..batch.len()).filter(|at| all[*at].is_none()).collect();
        if open.is_empty() {
            return all.into_iter().flatten().collect();
        }
        let mut records: Batch = open.iter().map(|at| record(chats, &batch[*at])).collect();
        if stage.process(&mut records).await.is_err() {
            continue;
        }
        let mut failed: Vec<usize> = Vec::new();
        for (slot, at) in records.slots().iter().zip(open) {
            check_event(slot);
            match told(slot) {
                Told::Retry(_) => failed.push(batch[at].chat),
                Told::Held => assert!(failed.contains(&batch[at].chat), "held behind nothing"),
                Told::Sent(_) if failed.contains(&batch[at].chat) => panic!("stored before its turn"),
                end => all[at] = Some(end),
            }
        }
    }
}

async fn hold_together(world: &World, chats: &[ChatId], sent: &[(Sending, Told)]) {
    for (chat, id) in chats.iter().enumerate() {
        let mut groups: BTreeMap<u8, Vec<&(Sending, Told)>> = BTreeMap::new();
        let mut order = Vec::new();
        for one in sent.iter().filter(|(sending, _)| sending.chat == chat) {
            let group = groups.entry(one.0.client_id).or_default();
            if group.is_empty() {
                order.push(one.0.client_id);
            }
            group.push(one);
        }
        let stored = world.messages(id).await;
        let ids: Vec<_> = stored.iter().map(|message| message.client_message_id.to_string()).collect();
        let expected: Vec<_> = order.iter().map(|client_id| format!("c-{client_id}")).collect();
        assert_eq!(ids, expected, "each once, in the order they were sent");
        let last = stored.last().map_or(0, |message| message.sequence);
        assert!(world.counter(id).await >= Some(last));
        for (message, client_id) in stored.iter().zip(&order) {
            let key = idempotency_keys::check_again(&*world.store, id, &message.client_message_id).await;
            let key = key.unwrap().unwrap();
            assert_eq!((key.sequence, &key.message_id), (message.sequence, &message.message_id));
            check_group(&groups[client_id], message.sequence, &message.content);
        }
    }
}

/// All that used one client id in a chat: the first is the message.
fn check_group(group: &[&(Sending, Told)], sequence: u64, content: &str) {
    let (first, _) = group[0];
    assert_eq!(content, format!("{} {} {}", first.sender, first.client_id, first.body));
    let mut told_as_new = 0;
    for (sending, told) in group {
        let same = (sending.sender, sending.body) == (first.sender, first.body);
        match told {
            Told::Sent(told) => {
                told_as_new += 1;
                assert_eq!((same, *told), (true, sequence));
            }
            Told::Again(told) => assert_eq!((same, *told), (true, sequence)),
            Told::Refused(code) => assert_eq!((same, *code), (false, Code::IdempotencyMismatch)),
            told => panic!("{told:?}"),
        }
    }
    assert!(told_as_new <= 1, "{group:?}");
}

#[test]
fn every_message_is_stored_once_and_in_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, stage) = runtime.block_on(world());
    let soak = std::env::var("COURANT_SOAK_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = Config { cases: soak.unwrap_or(48), failure_persistence: None, ..Config::default() };
    let batches = prop::collection::vec(prop::collection::vec(sending(), 1..150), 1..4);
    let troubles = prop::collection::vec(trouble(), 0..30);
    let ran = TestRunner::new(config).run(&(batches, troubles), |(batches, troubles)| {
        runtime.block_on(async {
            world.store.works_again();
            let mut chats = Vec::new();
            for _ in 0..CHATS {
                chats.push(world.chat(&[ANN, BOB]).await);
            }
            let mut troubles = VecDeque::from(troubles);
            world.store.plan(move |call| troubles.pop_front()?.with(&call));
            let mut sent = Vec::new();
            for batch in batches {
                let told = deliver(&*stage, &chats, &batch).await;
                sent.extend(batch.into_iter().zip(told));
            }
            hold_together(&world, &chats, &sent).await;
        });
        Ok(())
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}
