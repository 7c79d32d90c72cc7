//! The scenarios of the sequencing design, and what a batch of many messages adds to them.

use courant_connectors::model::commands::{Code, ORIGIN};
use courant_connectors::model::tables::idempotency_keys;
use tokio::task::JoinSet;

use super::*;
use crate::testing::faulty::{Call, Fault};

/// Scenarios 1 and 6: from a counter that stands somewhere, and from a new one.
#[tokio::test]
async fn a_message_gets_the_next_sequence() {
    let (world, stage) = world().await;
    let new = world.chat(&[ANN]).await;
    assert_eq!(tell(&*stage, vec![send(&new, "uuid-1")]).await, [Told::Sent(1)]);
    let chat = world.chat(&[ANN]).await;
    world.set_counter(&chat, 10).await;
    let batch = process(&*stage, vec![send(&chat, "uuid-1")]).await;
    assert_eq!(told(&batch.slots()[0]), Told::Sent(11));
    assert_eq!(world.counter(&chat).await, Some(11));
    let stored = world.messages(&chat).await;
    assert_eq!(stored.len(), 1);
    assert_eq!((stored[0].sequence, stored[0].content.as_str()), (11, "content of uuid-1"));
    assert_eq!(MessagePersisted::of(stored[0].clone()), event(&batch.slots()[0]));
    let key = idempotency_keys::check_again(&*world.store, &chat, &"uuid-1".into()).await.unwrap().unwrap();
    assert_eq!((key.sequence, &key.message_id), (11, &stored[0].message_id));
}

/// Scenario 2.
#[tokio::test]
async fn a_retry_gets_the_answer_of_the_first_time_and_its_event_again() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN, BOB]).await;
    let first = process(&*stage, vec![send(&chat, "uuid-1")]).await;
    let again = process(&*stage, vec![send(&chat, "uuid-1"), send(&chat, "uuid-2")]).await;
    assert_eq!(told(&again.slots()[0]), Told::Again(1));
    assert_eq!(event(&again.slots()[0]), event(&first.slots()[0]), "by its id known for a copy");
    assert_eq!(told(&again.slots()[1]), Told::Sent(2), "nothing was allocated for the retry");
    assert_eq!(world.sequences(&chat).await, [1, 2]);
}

/// Scenario 3, with the hundred writers that the design asks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_get_sequences_of_their_own() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let mut writers = JoinSet::new();
    for writer in 0..100 {
        let (stage, record) = (Arc::clone(&stage), send(&chat, &format!("uuid-{writer}")));
        writers.spawn(async move { tell(&*stage, vec![record]).await.remove(0) });
    }
    let mut sequences: Vec<u64> = writers
        .join_all()
        .await
        .into_iter()
        .map(|told| if let Told::Sent(sequence) = told { sequence } else { panic!("{told:?}") })
        .collect();
    sequences.sort_unstable();
    assert_eq!(sequences, (1..=100).collect::<Vec<_>>());
    assert_eq!(world.sequences(&chat).await, sequences);
    assert_eq!(world.counter(&chat).await, Some(100));
}

/// Scenario 4: both look before either has stored, so the slower one finds out when it writes.
#[tokio::test]
async fn a_race_of_two_copies_is_one_message_and_a_gap() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    world.set_counter(&chat, 10).await;
    let first = process(&*stage, vec![send(&chat, "uuid-1")]).await;
    assert_eq!(told(&first.slots()[0]), Told::Sent(11));
    world.store.once(|call| matches!(call, Call::BatchGet), Fault::Stale);
    let second = process(&*stage, vec![send(&chat, "uuid-1")]).await;
    assert_eq!(told(&second.slots()[0]), Told::Again(11));
    assert_eq!(event(&second.slots()[0]), event(&first.slots()[0]));
    assert_eq!(world.counter(&chat).await, Some(12), "one sequence is a gap");
    assert_eq!(world.sequences(&chat).await, [11]);
}

/// The same in the midst of others: they are stored in the same call, and the gap is told.
#[tokio::test]
async fn only_those_at_fault_are_not_stored() {
    let (world, stage) = world().await;
    let (chat, other) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    assert_eq!(tell(&*stage, vec![send(&chat, "known"), send(&chat, "taken")]).await.len(), 2);
    world.store.take_calls();
    world.store.once(|call| matches!(call, Call::BatchGet), Fault::Stale);
    let mismatch = commands::record(command(&chat, ANN, "taken", "something else"));
    let records = vec![send(&chat, "a"), send(&chat, "known"), send(&other, "b"), mismatch, send(&chat, "c")];
    let batch = process(&*stage, records).await;
    let all: Vec<_> = batch.slots().iter().map(told).collect();
    let mismatch = Told::Refused(Code::IdempotencyMismatch);
    assert_eq!(all, [Told::Sent(3), Told::Again(1), Told::Sent(1), mismatch, Told::Sent(6)]);
    assert_eq!(previous(&batch), [None, None, None, None, Some("3")], "4 and 5 are never used");
    assert_eq!(world.sequences(&chat).await, [1, 2, 3, 6]);
    let calls = world.store.take_calls();
    assert_eq!(calls, ["batch_get", "write", "write", "transact", "batch_get", "transact"]);
}

/// Scenario 5 and 7 are among the failures. What follows is about batches.
#[tokio::test]
async fn the_same_message_twice_in_a_batch_is_stored_once() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN, BOB]).await;
    let records = vec![
        send(&chat, "twice"),
        send(&chat, "between"),
        send(&chat, "twice"),
        commands::record(command(&chat, ANN, "twice", "other body")),
        commands::record(command(&chat, BOB, "twice", "content of twice")),
        send(&chat, "twice"),
    ];
    let batch = process(&*stage, records).await;
    let all: Vec<_> = batch.slots().iter().map(told).collect();
    let mismatch = Told::Refused(Code::IdempotencyMismatch);
    assert_eq!(
        all,
        [Told::Sent(1), Told::Sent(2), Told::Again(1), mismatch.clone(), mismatch, Told::Again(1)]
    );
    assert_eq!(event(&batch.slots()[2]), event(&batch.slots()[0]));
    assert_eq!(world.sequences(&chat).await, [1, 2]);
    assert_eq!(world.counter(&chat).await, Some(2), "nothing was allocated for the copies");
}

#[tokio::test]
async fn strangers_send_nothing_and_learn_nothing() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    assert_eq!(tell(&*stage, vec![send(&chat, "uuid-1")]).await, [Told::Sent(1)]);
    let stranger = |id: &str| commands::record(command(&chat, "user_eve", id, "content of uuid-1"));
    let records = vec![stranger("new"), stranger("uuid-1"), stranger("new")];
    assert_eq!(tell(&*stage, records).await, vec![Told::Refused(Code::NotAMember); 3]);
    assert_eq!(world.counter(&chat).await, Some(1));
}

#[tokio::test]
async fn a_key_of_another_sender_is_no_answer() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN, BOB]).await;
    assert_eq!(tell(&*stage, vec![send(&chat, "uuid-1")]).await, [Told::Sent(1)]);
    let by = |sender, content| commands::record(command(&chat, sender, "uuid-1", content));
    let batch = process(&*stage, vec![by(BOB, "content of uuid-1"), by(ANN, "changed")]).await;
    let answers: Vec<_> = batch.slots().iter().map(answer).collect();
    assert_eq!(told(&batch.slots()[0]), Told::Refused(Code::IdempotencyMismatch));
    assert_eq!(answers[0], answers[1], "nothing tells whose it is");
    assert_eq!(world.sequences(&chat).await, [1]);
}

/// Somebody who was removed after the message was stored and before its ack arrived.
#[tokio::test]
async fn who_has_left_still_learns_that_their_message_is_stored() {
    use courant_connectors::model::tables::chat_memberships;
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    assert_eq!(tell(&*stage, vec![send(&chat, "uuid-1")]).await, [Told::Sent(1)]);
    chat_memberships::remove(&*world.connected.store, &chat, &ANN.into()).await.unwrap();
    let told = tell(&*stage, vec![send(&chat, "uuid-1"), send(&chat, "uuid-2")]).await;
    assert_eq!(told, [Told::Again(1), Told::Refused(Code::NotAMember)]);
}

#[tokio::test]
async fn headers_stay_with_the_record() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let mut record = send(&chat, "uuid-1");
    record.headers.set(ORIGIN, "conn_1");
    let batch = process(&*stage, vec![record]).await;
    let headers: Vec<_> = batch.slots()[0].record().headers.iter().collect();
    assert_eq!(headers, [(ORIGIN, "conn_1")]);
}

/// More than a transaction holds, of one chat: in their order, and the event of each is its own.
#[tokio::test]
async fn a_busy_chat_is_stored_in_order() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let batch = process(&*stage, (0..120).map(|n| send(&chat, &format!("uuid-{n}"))).collect()).await;
    for (n, slot) in batch.slots().iter().enumerate() {
        assert_eq!(told(slot), Told::Sent(n as u64 + 1));
        assert_eq!(event(slot).payload.content, format!("content of uuid-{n}"));
    }
    assert_eq!(previous(&batch), vec![None; 120]);
    assert_eq!(world.store.take_calls(), ["batch_get", "write", "transact", "transact", "transact"]);
    assert_eq!(world.sequences(&chat).await, (1..=120).collect::<Vec<_>>());
}

/// What a message costs of the store when there are many: a full batch of a hundred chats.
#[tokio::test]
async fn a_full_batch_costs_few_calls() {
    let (world, stage) = world().await;
    let mut chats = Vec::new();
    for _ in 0..100 {
        chats.push(world.chat(&[ANN]).await);
    }
    let records = (0..512).map(|n| send(&chats[n % 100], &format!("uuid-{n}"))).collect();
    let told = tell(&*stage, records).await;
    assert!(told.iter().all(|told| matches!(told, Told::Sent(_))), "{told:?}");
    let calls = world.store.take_calls();
    let of = |name| calls.iter().filter(|call| **call == name).count();
    assert_eq!((of("batch_get"), of("write")), (1, 100));
    assert!(of("transact") <= 12, "{} transactions for 512 messages", of("transact"));
    assert!(calls.len() * 2 <= 512, "{} calls", calls.len());
}
