//! The process dies at every step: each answer is stored once, and no model is asked for one that is.

use super::server::{Model, words};
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

/// The model says something else each time, as models do.
#[tokio::test]
async fn an_answer_is_stored_once_wherever_the_process_dies() {
    let model = Model::start(|number, _| words(&format!("answer {number}"))).await;
    let scene = Scene::new(model.params(&json!({}))).await;
    let rows: [(&str, Step, Fault, usize); 6] = [
        ("while the agent looks", is_look, Fault::CrashBefore, 1),
        ("after the agent has looked", is_look, Fault::CrashAfter, 1),
        ("before a sequence is allocated", is_allocation, Fault::CrashBefore, 2),
        ("after a sequence is allocated", is_allocation, Fault::CrashAfter, 2),
        ("before it is stored", is_transaction, Fault::CrashBefore, 2),
        ("after it is stored and before its event", is_transaction, Fault::CrashAfter, 1),
    ];
    for (row, at, fault, expected) in rows {
        let chat = scene.world.chat(&[ANN, AGENT]).await;
        let question = scene.say(&chat, ANN, "hello").await;
        let asked_before = model.asked().len();
        scene.world.store.once(at, fault);
        tokio::select! {
            fates = scene.run(vec![question.clone()]) => panic!("{row}: it did not crash: {fates:?}"),
            () = scene.world.store.crashed() => {}
        }
        scene.world.store.works_again();
        for _ in 0..2 {
            let fates = scene.run(vec![question.clone()]).await;
            assert!(fates[0].starts_with('{'), "{row}: {fates:?}");
        }
        let answers = scene.answers(&chat).await;
        assert_eq!(answers.len(), 1, "{row}: {answers:?}");
        assert_eq!(model.asked().len() - asked_before, expected, "{row}: how often the model was asked");
    }
}

/// The second try publishes what is stored, whatever a model would say now.
#[tokio::test]
async fn what_is_stored_goes_on_as_it_is() {
    let model = Model::start(|number, _| words(&format!("answer {number}"))).await;
    let scene = Scene::new(model.params(&json!({}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let question = scene.say(&chat, ANN, "hello").await;
    scene.run(vec![question.clone()]).await;
    let again = scene.ask(vec![question]).await;
    let events = scene.store(again.records().cloned().collect()).await;
    let event = MessagePersisted::from_json(&events[0].payload.to_json()).unwrap();
    assert_eq!((event.payload.content.as_str(), event.payload.sequence), ("answer 0", 2));
    assert_eq!(model.asked().len(), 1);
}

/// Two processes have the same partition for a moment.
#[tokio::test]
async fn of_two_answers_to_one_question_the_first_stays() {
    let model = Model::start(|number, _| words(&format!("answer {number}"))).await;
    let scene = Scene::new(model.params(&json!({}))).await;
    let chat = scene.world.chat(&[ANN, AGENT]).await;
    let question = scene.say(&chat, ANN, "hello").await;
    let (one, other) = (scene.ask(vec![question.clone()]).await, scene.ask(vec![question]).await);
    scene.store(one.records().cloned().collect()).await;
    let mut late = Batch::from(other.records().cloned().collect::<Vec<_>>());
    scene.persist.process(&mut late).await.unwrap();
    assert_eq!(fates(&late), ["dropped: idempotency-mismatch"], "it is no failure");
    assert_eq!(scene.answers(&chat).await, ["answer 0"]);
}

/// A member takes the id that the answer would have.
#[tokio::test]
async fn an_id_that_is_taken_costs_that_answer_and_no_retry() {
    let scene = Scene::new(scripted()).await;
    let chat = scene.world.chat(&[ANN, BOB, AGENT]).await;
    let question = scene.say(&chat, ANN, "hello").await;
    let squat = SendMessage {
        chat_id: chat.clone(),
        sender_id: BOB.into(),
        client_message_id: format!("{AGENT}/{}", question_id(&question)).into(),
        content: "mine".into(),
        content_type: "text/plain".into(),
    };
    scene.store(vec![commands::record(Command::SendMessage(squat))]).await;
    assert_eq!(scene.run(vec![question]).await, ["dropped: id-taken"]);
}
