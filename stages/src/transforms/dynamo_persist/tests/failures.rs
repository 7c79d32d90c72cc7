//! The failures of the sequencing design, one by one: what is stored, what becomes a gap, and what a retry gets.

use courant_connectors::model::commands::Code;
use courant_connectors::store::{CancelReason, StoreError, Transaction, Write};
use courant_pipeline::Class;

use super::*;
use crate::testing::faulty::{Call, Fault};

type Step = fn(&Call<'_>) -> bool;

fn is_look(call: &Call<'_>) -> bool {
    matches!(call, Call::BatchGet)
}

fn is_allocation(call: &Call<'_>) -> bool {
    matches!(call, Call::Write(_))
}

fn is_transaction(call: &Call<'_>) -> bool {
    matches!(call, Call::Transact(_))
}

/// Runs a batch until the process dies where the fault says.
async fn crash(world: &World, stage: &dyn Stage, records: Vec<Record>) {
    let mut batch = Batch::from(records);
    tokio::select! {
        ended = stage.process(&mut batch) => panic!("it did not crash: {ended:?}"),
        () = world.store.crashed() => {}
    }
    world.store.works_again();
}

fn retries(told: &[Told]) -> bool {
    told.iter().all(|told| matches!(told, Told::Retry(_)))
}

/// The rows about crashes: where, the counter after it, and what the client's retry is told.
#[tokio::test]
async fn a_crash_costs_a_gap_at_the_most() {
    let (world, stage) = world().await;
    let rows: [(&str, Step, Fault, u64, Told); 5] = [
        ("before the allocation", is_look, Fault::CrashBefore, 0, Told::Sent(1)),
        ("before the allocation was done", is_allocation, Fault::CrashBefore, 0, Told::Sent(1)),
        ("after the allocation", is_allocation, Fault::CrashAfter, 1, Told::Sent(2)),
        ("during the transaction", is_transaction, Fault::CrashBefore, 1, Told::Sent(2)),
        ("after the transaction, before the event", is_transaction, Fault::CrashAfter, 1, Told::Again(1)),
    ];
    for (row, at, fault, counter, retried) in rows {
        let chat = world.chat(&[ANN]).await;
        world.store.once(at, fault);
        crash(&world, &*stage, vec![send(&chat, "uuid-1")]).await;
        assert_eq!(world.counter(&chat).await, Some(counter), "{row}");
        assert_eq!(tell(&*stage, vec![send(&chat, "uuid-1")]).await, [retried], "{row}");
        assert_eq!(world.messages(&chat).await.len(), 1, "{row}");
    }
}

/// The row about an unavailable store, at each of the three steps.
#[tokio::test]
async fn an_unavailable_store_is_tried_again() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let down = || Fault::Refuse(StoreError::Unavailable("down".into()));
    world.store.once(is_look, down());
    let error = stage.process(&mut Batch::from(vec![send(&chat, "uuid-1")])).await.unwrap_err();
    assert_eq!(error.class, Class::Retry);
    assert_eq!(error.to_string(), "look up members and known messages: the store is not available: down");
    for step in [is_allocation as Step, is_transaction] {
        world.store.once(step, down());
        assert!(retries(&tell(&*stage, vec![send(&chat, "uuid-1"), send(&chat, "uuid-2")]).await));
        assert_eq!(world.sequences(&chat).await, [0u64; 0]);
    }
    assert_eq!(world.counter(&chat).await, Some(2), "the second step left two gaps");
    let told = tell(&*stage, vec![send(&chat, "uuid-1"), send(&chat, "uuid-2")]).await;
    assert_eq!(told, [Told::Sent(3), Told::Sent(4)]);
}

/// Scenario 7: an incident of one chat, and of no other.
#[tokio::test]
async fn without_a_counter_nothing_is_stored_and_none_is_made() {
    let (world, stage) = world().await;
    let (broken, whole) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    world.remove_counter(&broken).await;
    let records = vec![send(&broken, "a"), send(&whole, "b"), send(&broken, "c"), send(&broken, "a")];
    let refused = Told::Refused(Code::CounterMissing);
    let told = tell(&*stage, records).await;
    assert_eq!(told, [refused.clone(), Told::Sent(1), refused.clone(), refused]);
    assert_eq!(world.counter(&broken).await, None);
    assert!(world.messages(&broken).await.is_empty());
}

/// The counter was set back, by hand or by a restore: some sequences after it are taken and some are gaps.
#[tokio::test]
async fn a_counter_that_was_set_back_never_overwrites_and_never_fills_gaps() {
    let (world, stage) = world().await;
    let (chat, other) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    world.set_counter(&chat, 2).await;
    assert_eq!(tell(&*stage, vec![send(&chat, "third")]).await, [Told::Sent(3)]);
    let before = world.messages(&chat).await;
    world.set_counter(&chat, 1).await;
    let records = vec![send(&chat, "a"), send(&other, "b"), send(&chat, "c"), send(&chat, "d")];
    let refused = Told::Refused(Code::CounterMissing);
    let told = tell(&*stage, records).await;
    assert_eq!(told, [refused.clone(), Told::Sent(1), refused.clone(), refused]);
    assert_eq!(world.messages(&chat).await, before, "not even with 2 and 4, which are free");
}

#[tokio::test]
async fn a_counter_below_zero_stops_its_chat_only() {
    let (world, stage) = world().await;
    let (broken, whole) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    let lower = courant_connectors::store::Update::new().add("sequence_counter", -5);
    let key = courant_connectors::store::Key::new("chat_id", &broken);
    let lower = Write::update("chat_counters", key, lower);
    world.connected.store.transact(Transaction { writes: vec![lower], token: None }).await.unwrap();
    let told = tell(&*stage, vec![send(&broken, "a"), send(&whole, "b")]).await;
    assert_eq!(told, [Told::Refused(Code::CounterMissing), Told::Sent(1)]);
}

/// The answer got lost, the transaction did not: reading tells.
#[tokio::test]
async fn an_unknown_outcome_that_happened_is_a_success() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    world.store.once(is_transaction, Fault::Lose(StoreError::UnknownOutcome("timeout".into())));
    let told = tell(&*stage, vec![send(&chat, "a"), send(&chat, "b")]).await;
    assert_eq!(told, [Told::Sent(1), Told::Sent(2)]);
    assert_eq!(world.sequences(&chat).await, [1, 2]);
    assert_eq!(world.store.take_calls(), ["batch_get", "write", "transact", "batch_get"]);
}

#[tokio::test]
async fn an_unknown_outcome_that_did_not_happen_is_tried_again() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    world.store.once(is_transaction, Fault::Refuse(StoreError::UnknownOutcome("timeout".into())));
    let told = tell(&*stage, vec![send(&chat, "a"), send(&chat, "b")]).await;
    let unknown = Told::Retry("store messages: the outcome is unknown: timeout".into());
    assert_eq!(told, vec![unknown; 2]);
    assert!(world.messages(&chat).await.is_empty());
    assert_eq!(tell(&*stage, vec![send(&chat, "a")]).await, [Told::Sent(3)]);
}

/// Nor is it guessed when reading fails too.
#[tokio::test]
async fn an_unknown_outcome_that_cannot_be_looked_up_is_tried_again() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let mut looks = 0;
    world.store.plan(move |call| match call {
        Call::Transact(_) => Some(Fault::Lose(StoreError::UnknownOutcome("timeout".into()))),
        Call::BatchGet => {
            looks += 1;
            (looks == 2).then(|| Fault::Refuse(StoreError::Unavailable("down".into())))
        }
        Call::Write(_) | Call::BatchWrite => None,
    });
    assert!(retries(&tell(&*stage, vec![send(&chat, "a")]).await));
    world.store.works_again();
    assert_eq!(tell(&*stage, vec![send(&chat, "a")]).await, [Told::Again(1)], "it was stored");
}

/// An allocation whose answer is lost is given up: at worst a gap.
#[tokio::test]
async fn an_allocation_with_an_unknown_outcome_is_a_gap() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    world.store.once(is_allocation, Fault::Lose(StoreError::UnknownOutcome("timeout".into())));
    assert!(retries(&tell(&*stage, vec![send(&chat, "a")]).await));
    assert_eq!(tell(&*stage, vec![send(&chat, "a")]).await, [Told::Sent(2)]);
}

/// Nor does it concern another chat.
#[tokio::test]
async fn an_allocation_that_fails_is_its_own_chats_failure() {
    let (world, stage) = world().await;
    let (slow, other) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    let throttled = slow.clone();
    world.store.plan(move |call| {
        let Call::Write(Write::Update { key, .. }) = call else { return None };
        let concerned = key.partition.1.as_text() == Some(throttled.as_str());
        concerned.then(|| Fault::Refuse(StoreError::Throttled("slow down".into())))
    });
    let told = tell(&*stage, vec![send(&slow, "a"), send(&other, "b"), send(&slow, "c")]).await;
    assert!(matches!((&told[0], &told[2]), (Told::Retry(_), Told::Retry(_))), "{told:?}");
    assert_eq!(told[1], Told::Sent(1));
    assert_eq!(world.counter(&slow).await, Some(0));
}

/// Refuses the transaction for the writes of these messages, as often as one of them is in it.
fn cancel_for(
    client_ids: &'static [&'static str],
    reason: CancelReason,
) -> impl FnMut(Call<'_>) -> Option<Fault> {
    move |call| {
        let Call::Transact(transaction) = call else { return None };
        let at_fault = |write: &Write| {
            let Write::Put { table, item, .. } = write else { return false };
            let id = item.text("client_message_id").unwrap_or_default();
            table == "messages" && client_ids.contains(&id)
        };
        let reasons: Vec<_> =
            transaction.writes.iter().map(|write| at_fault(write).then(|| reason.clone())).collect();
        let canceled = reasons.iter().any(Option::is_some);
        canceled.then_some(Fault::Refuse(StoreError::TransactionCanceled { reasons }))
    }
}

/// One chat is throttled or contended: what was sent before in it is stored, what comes behind it waits, and others do
/// not notice.
#[tokio::test]
async fn a_conflict_holds_up_what_comes_behind_it_in_its_chat() {
    let (world, stage) = world().await;
    for reason in [CancelReason::Conflict, CancelReason::Throttled] {
        let (chat, other) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
        world.store.plan(cancel_for(&["b"], reason));
        let records = vec![
            send(&chat, "a"),
            send(&chat, "b"),
            send(&other, "x"),
            send(&chat, "c"),
            send(&other, "y"),
            send(&chat, "c"),
        ];
        let told = tell(&*stage, records).await;
        assert!(matches!(&told[1], Told::Retry(_)), "{told:?}");
        assert_eq!((&told[0], &told[3], &told[5]), (&Told::Sent(1), &Told::Held, &Told::Held));
        assert_eq!((&told[2], &told[4]), (&Told::Sent(1), &Told::Sent(2)));
        assert_eq!(world.sequences(&chat).await, [1]);
        world.store.works_again();
        let told = tell(&*stage, vec![send(&chat, "b"), send(&chat, "c")]).await;
        assert_eq!(told, [Told::Sent(4), Told::Sent(5)]);
    }
}

/// A failure in the first of a busy chat's transactions stops those after it.
#[tokio::test]
async fn later_transactions_of_a_chat_wait_for_the_earlier_ones() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    world.store.once(is_transaction, Fault::Refuse(StoreError::Throttled("slow down".into())));
    let told = tell(&*stage, (0..120).map(|n| send(&chat, &format!("uuid-{n}"))).collect()).await;
    assert!(retries(&told[..50]), "{told:?}");
    assert_eq!(told[50..], vec![Told::Held; 70]);
    assert!(world.messages(&chat).await.is_empty());
    world.store.take_calls();
    world.store.plan(cancel_for(&["uuid-30"], CancelReason::Conflict));
    let told = tell(&*stage, (0..120).map(|n| send(&chat, &format!("uuid-{n}"))).collect()).await;
    assert_eq!(told[29], Told::Sent(150));
    assert!(matches!(told[30], Told::Retry(_)));
    assert_eq!(told[31..], vec![Told::Held; 89]);
    assert_eq!(world.messages(&chat).await.len(), 30);
}

/// A copy whose key cannot be read has to be tried again, and what comes behind it with it, though its write was fine.
#[tokio::test]
async fn nothing_overtakes_a_message_whose_key_cannot_be_read() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    assert_eq!(tell(&*stage, vec![send(&chat, "known")]).await, [Told::Sent(1)]);
    let mut looks = 0;
    world.store.plan(move |call| match call {
        Call::BatchGet => {
            looks += 1;
            Some(if looks == 1 {
                Fault::Stale
            } else {
                Fault::Refuse(StoreError::Unavailable("down".into()))
            })
        }
        _ => None,
    });
    let told = tell(&*stage, vec![send(&chat, "a"), send(&chat, "known"), send(&chat, "b")]).await;
    assert_eq!((&told[0], &told[2]), (&Told::Sent(2), &Told::Held));
    assert!(matches!(&told[1], Told::Retry(_)), "{told:?}");
}

/// A transaction that is refused without a reason that makes sense is not repeated for ever.
#[tokio::test]
async fn a_refusal_without_reasons_is_tried_again_later() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    for reasons in [vec![], vec![None, None], vec![Some(CancelReason::Conflict)]] {
        world.store.plan(move |call| {
            let refused = StoreError::TransactionCanceled { reasons: reasons.clone() };
            matches!(call, Call::Transact(_)).then_some(Fault::Refuse(refused))
        });
        assert!(retries(&tell(&*stage, vec![send(&chat, "a")]).await));
    }
}

/// Somebody stores a message at the sequence that was allocated here, which only a wrong counter makes possible.
#[tokio::test]
async fn a_sequence_that_is_taken_meanwhile_is_an_incident() {
    use courant_connectors::model::tables::messages::{self, Message};
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let theirs = Message {
        chat_id: chat.clone(),
        sequence: 1,
        message_id: "msg_theirs".into(),
        sender_id: BOB.into(),
        client_message_id: "theirs".into(),
        content: "theirs".into(),
        content_type: "text/plain".into(),
        created_at: crate::testing::chat::now(),
    };
    let meanwhile = Transaction { writes: vec![messages::put_write(&theirs)], token: None };
    world.store.once(is_transaction, Fault::Meanwhile(meanwhile));
    assert_eq!(tell(&*stage, vec![send(&chat, "a")]).await, [Told::Refused(Code::CounterMissing)]);
    assert_eq!(world.messages(&chat).await, [theirs]);
}
