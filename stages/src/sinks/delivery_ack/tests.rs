use courant_connectors::model::tables::delivery_state::DeliveryState;
use courant_connectors::store::StoreError;
use courant_pipeline::{Payload, Record};
use serde_json::json;

use super::*;
use crate::testing::chat::{Told, World, told};
use crate::testing::faulty::{Call, Fault};

const ANN: &str = "user_ann";
const BOB: &str = "user_bob";

async fn world() -> (World, Arc<dyn Stage>) {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({})).await;
    (world, stage)
}

/// A chat of Ann and Bob that has come this far.
async fn chat_at(world: &World, sequence: u64) -> ChatId {
    let chat = world.chat(&[ANN, BOB]).await;
    world.set_counter(&chat, sequence).await;
    world.store.take_calls();
    chat
}

fn ack(chat: &ChatId, user: &str, sequence: u64) -> Record {
    ack_with(chat, user, sequence, Beyond::Refused)
}

fn ack_with(chat: &ChatId, user: &str, sequence: u64, beyond: Beyond) -> Record {
    commands::record(Command::Ack(Ack { chat_id: chat.clone(), user_id: user.into(), sequence, beyond }))
}

async fn tell(stage: &dyn Stage, records: Vec<Record>) -> Vec<Told> {
    let mut batch = Batch::from(records);
    stage.process(&mut batch).await.unwrap();
    batch.slots().iter().map(told).collect()
}

async fn mark(world: &World, chat: &ChatId, user: &str) -> Option<u64> {
    let state: Option<DeliveryState> = delivery_state::get(&*world.store, &user.into(), chat).await.unwrap();
    state.map(|state| state.last_acked_sequence)
}

#[tokio::test]
async fn of_many_acks_the_highest_is_written() {
    let (world, stage) = world().await;
    let (one, two) = (chat_at(&world, 100).await, chat_at(&world, 100).await);
    let mut records: Vec<_> = (1..=20).map(|sequence| ack(&one, ANN, sequence)).collect();
    records.extend([ack(&one, ANN, 7), ack(&one, BOB, 3), ack(&two, ANN, 100)]);
    assert_eq!(tell(&*stage, records).await, vec![Told::Done; 23]);
    assert_eq!(world.store.take_calls(), ["batch_get", "write", "write", "write"]);
    assert_eq!(mark(&world, &one, ANN).await, Some(20));
    assert_eq!((mark(&world, &one, BOB).await, mark(&world, &two, ANN).await), (Some(3), Some(100)));
}

#[tokio::test]
async fn a_watermark_never_moves_back() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 10).await;
    for sequence in [9, 4, 9, 10, 1] {
        assert_eq!(tell(&*stage, vec![ack(&chat, ANN, sequence)]).await, [Told::Done]);
    }
    assert_eq!(mark(&world, &chat, ANN).await, Some(10));
}

#[tokio::test]
async fn what_was_not_sent_yet_cannot_have_arrived() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 5).await;
    let told = tell(&*stage, vec![ack(&chat, ANN, 6), ack(&chat, ANN, 4), ack(&chat, ANN, 0)]).await;
    let bad = Told::Refused(Code::BadRequest);
    assert_eq!(told, [bad.clone(), Told::Done, bad]);
    assert_eq!(mark(&world, &chat, ANN).await, Some(4), "a wrong ack does not spoil a right one");
}

/// What a socket collects is one ack, and whichever of them was right is in it.
#[tokio::test]
async fn one_made_of_several_moves_as_far_as_the_chat_has_come() {
    let (world, stage) = world().await;
    let (chat, empty) = (chat_at(&world, 5).await, chat_at(&world, 0).await);
    let collected = |chat, sequence| ack_with(chat, ANN, sequence, Beyond::AllThereIs);
    assert_eq!(tell(&*stage, vec![collected(&chat, 900), ack(&chat, ANN, 4)]).await, vec![Told::Done; 2]);
    assert_eq!(mark(&world, &chat, ANN).await, Some(5));
    assert_eq!(tell(&*stage, vec![collected(&empty, 1)]).await, [Told::Refused(Code::BadRequest)]);
    assert_eq!(mark(&world, &empty, ANN).await, None, "nothing can have arrived");
}

#[tokio::test]
async fn strangers_have_no_watermark() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 5).await;
    let nowhere = ChatId::generate();
    let told = tell(&*stage, vec![ack(&chat, "user_eve", 1), ack(&nowhere, ANN, 1), ack(&chat, ANN, 1)]);
    let refused = Told::Refused(Code::NotAMember);
    assert_eq!(told.await, [refused.clone(), refused, Told::Done]);
    assert_eq!(mark(&world, &chat, "user_eve").await, None);
    world.remove_counter(&chat).await;
    assert_eq!(tell(&*stage, vec![ack(&chat, ANN, 2)]).await, [Told::Refused(Code::CounterMissing)]);
}

#[tokio::test]
async fn what_is_no_ack_is_refused() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 5).await;
    let rename = courant_connectors::model::commands::RenameChat {
        chat_id: chat.clone(),
        by: ANN.into(),
        name: "x".to_owned(),
    };
    let long = ChatId::from("x".repeat(129));
    let records = vec![
        commands::record(Command::RenameChat(rename)),
        ack(&long, ANN, 1),
        ack(&chat, "", 1),
        Record::new(Payload::from_static("{nope")),
    ];
    let told = tell(&*stage, records).await;
    assert_eq!(told[..3], vec![Told::Refused(Code::BadRequest); 3]);
    assert!(matches!(told[3], Told::Rejected(_)), "{told:?}");
    assert!(world.store.take_calls().is_empty());
}

#[tokio::test]
async fn a_write_that_fails_is_tried_again_and_the_others_are_done() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 5).await;
    let mut writes = 0;
    world.store.plan(move |call| match call {
        Call::Write(_) => {
            writes += 1;
            (writes == 1).then(|| Fault::Lose(StoreError::UnknownOutcome("timeout".into())))
        }
        _ => None,
    });
    let records = || vec![ack(&chat, ANN, 2), ack(&chat, BOB, 3), ack(&chat, ANN, 4)];
    let told = tell(&*stage, records()).await;
    assert!(matches!((&told[0], &told[2]), (Told::Retry(_), Told::Retry(_))), "{told:?}");
    assert_eq!(told[1], Told::Done);
    assert_eq!(tell(&*stage, records()).await, vec![Told::Done; 3]);
    assert_eq!((mark(&world, &chat, ANN).await, mark(&world, &chat, BOB).await), (Some(4), Some(3)));
}

#[tokio::test]
async fn a_look_that_fails_speaks_for_all() {
    let (world, stage) = world().await;
    let chat = chat_at(&world, 5).await;
    world.store.plan(|_| Some(Fault::Refuse(StoreError::Throttled("slow down".into()))));
    let error = stage.process(&mut Batch::from(vec![ack(&chat, ANN, 2)])).await.unwrap_err();
    assert_eq!(error.class, courant_pipeline::Class::Retry);
}
