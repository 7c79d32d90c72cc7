//! The store as the event bus, as several processes on DynamoDB, Kafka and Redis: a worker killed at each point of an
//! event's way, and agents that are killed while they answer.
//!
//! The point is one call to a server, as in `crash_points`: a proxy holds it, before it is done or with its answer.
//! Any worker may be the one that waits for it, so all of them are killed, and started again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use courant_conformance::servers::{Fault, Point};
use courant_tests::chat::{connect, group, history, next_of, send, send_until_acked};
use courant_tests::deployment::{Deployment, EVENT_BUS};
use courant_tests::{LIMIT, home, until};
use serde_json::json;

struct People {
    ann: SignedIn,
    bob: SignedIn,
    anns: Socket,
    bobs: Socket,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_anywhere_tells_of_everything_in_order() {
    let mut deployment = Deployment::start_as(EVENT_BUS, || home!()).await;
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let (anns, bobs) = (connect(&ann).await, connect(&bob).await);
    let mut people = People { ann, bob, anns, bobs };

    let reading = |fault| move |on: &Deployment| on.before_store.plan("GetRecords", [fault]);
    // A place that is kept, or a sign of life.
    let keeping = |fault| move |on: &Deployment| on.before_store.plan("UpdateItem", [fault]);
    let publishing = |point| move |on: &Deployment| on.before_kafka.stick(point);
    let on = &mut deployment;
    kill_at(on, &mut people, "before it is read", reading(Fault::Hang)).await;
    kill_at(on, &mut people, "after it is read", reading(Fault::HangAnswer)).await;
    kill_at(on, &mut people, "before it is published", publishing(Point::Request)).await;
    kill_at(on, &mut people, "after it is published", publishing(Point::Answer)).await;
    kill_at(on, &mut people, "before the place is kept", keeping(Fault::Hang)).await;
    kill_at(on, &mut people, "after the place is kept", keeping(Fault::HangAnswer)).await;
}

/// One row of the table, in a chat of its own.
async fn kill_at(
    deployment: &mut Deployment,
    people: &mut People,
    point: &str,
    hold: impl FnOnce(&Deployment),
) {
    let chat = group(&[&people.ann, &people.bob]).await;
    assert_eq!(send(&mut people.anns, &chat, "m-1", "whole").await["sequence"], 1, "{point}");
    assert_eq!(next_of(&mut people.bobs, "message").await["content"], "whole", "{point}");

    let held = held_calls(deployment);
    hold(deployment);
    people.anns.send_message(&chat, "m-2", point).await.unwrap();
    until("the call is held", LIMIT, || (held_calls(deployment) > held).then_some(()));
    for worker in &mut deployment.workers {
        worker.kill();
    }
    for worker in &mut deployment.workers {
        worker.start();
    }
    // An ack means stored, and what is stored is told, whether it was the worker's call or that of who stores.
    send_until_acked(&mut people.anns, &chat, "m-2", point).await;
    assert_eq!(send(&mut people.anns, &chat, "m-3", "the end").await["type"], "ack", "{point}");
    let mut heard = Vec::new();
    while heard.last().is_none_or(|content| content != "the end") {
        let frame = next_of(&mut people.bobs, "message").await;
        assert_eq!(frame["chat_id"], json!(chat), "{point}");
        heard.push(frame["content"].as_str().unwrap().to_owned());
    }
    heard.dedup();
    heard.retain(|content| content != "whole");
    assert_eq!(heard, [point, "the end"]);
    eventually("everything is published", || async { deployment.errors().is_empty().then_some(()) }).await;
    deployment.events_are_in_order();
}

fn held_calls(deployment: &Deployment) -> usize {
    deployment.before_store.hanging() + deployment.before_kafka.stuck()
}

/// A consumer that cannot do something: kept, counted, and done when it is told to. And one that is held up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_follower_gives_up_is_a_dead_letter_and_what_holds_it_up_is_lag() {
    let followers = |expr: &str| {
        format!(
            r#"{}
[[pipeline]]
name = "audit"
stage = [
  {{ kind = "dynamo-stream", params = {{ table = "messages" }} }},
  {{ kind = "map", params = {{ expr = '{expr}' }} }},
  {{ kind = "file", params = {{ path = "audit.out" }} }},
]
[[pipeline]]
name = "watch"
stage = [
  {{ kind = "dynamo-stream", params = {{ table = "chats" }} }},
  {{ kind = "webhook", params = {{ url = "http://127.0.0.1:9/" }} }},
]
"#,
            courant_tests::chat::shipped("pipelines.toml")
        )
    };
    let home = home!();
    home.replace_config(&followers(
        r#".new.content | if . == "bad" then error("no") else . end | {said: .}"#,
    ));
    let mut process = home.start(&[]);
    let (ann, bob) = (process.person("Ann").await, process.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let mut socket = connect(&ann).await;
    for content in ["good", "bad", "fine"] {
        assert_eq!(send(&mut socket, &chat, content, content).await["type"], "ack");
    }
    let said = || -> Vec<String> {
        let lines = home.json_lines("audit.out").into_iter();
        lines.map(|line| line["said"].as_str().unwrap().to_owned()).collect()
    };
    until("poison holds nobody up", LIMIT, || (said() == ["good", "fine"]).then_some(()));
    until("a dead letter", LIMIT, || (home.letters("audit").len() == 1).then_some(()));
    until("nobody answers the other, which is told in seconds", LIMIT, || {
        (process.metric("courant_stream_lag_seconds", "pipeline=\"watch\"") > 1.0).then_some(())
    });
    assert!(process.metric("courant_stream_lag_seconds", "pipeline=\"audit\"") < 1.0, "it is done");
    process.kill();

    home.replace_config(&followers(".new.content | {said: .}"));
    let mut process = home.start(&[]);
    until("the letter is counted", LIMIT, || {
        (process.metric("courant_dead_letters_waiting", "queue=\"audit\"") > 0.0).then_some(())
    });
    let redriven = home.run(&["dead-letters", "redrive", "audit"]).ok();
    assert!(redriven.starts_with("1 redriven: 1 delivered"), "{redriven}");
    until("it is done now", LIMIT, || (said().last()? == "bad").then_some(()));
    assert!(home.letters("audit").is_empty());
}

/// In place of publication, so that each table has two followers.
const AGENT: &str = r#"
[[pipeline]]
name = "agent"
plane = "durability"
[[pipeline.stage]]
kind = "dynamo-stream"
params = { table = "messages", lease = "2s" }
[[pipeline.stage]]
kind = "change-to-event"
[[pipeline.stage]]
kind = "agent"
params = { agent = "agent_helper", responder = "scripted", pace = "30ms", script = [{ say = "so {content} it is" }] }
[[pipeline.stage]]
kind = "dynamo-persist"
params = { store_origin = true }
[[pipeline.stage]]
kind = "blackhole"
"#;

/// Killed where they are, one after the other and both at once, while they answer one chat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_are_killed_answer_each_question_once_and_in_order() {
    let layout = EVENT_BUS.instead("publish-messages", AGENT, "fanout,memberships,agent");
    let mut deployment = Deployment::start_as(layout, || home!()).await;
    let ann = deployment.person(0, "Ann").await;
    let wanted = json!({"chat_type": "direct", "members": ["agent_helper"]});
    let made =
        eventually("the agent is there", async || ann.client.post("/api/v1/chats", &wanted).await.ok());
    let chat = made.await["chat_id"].as_str().unwrap().to_owned();
    let mut socket = connect(&ann).await;
    let questions: Vec<String> = (0..12).map(|n| format!("q-{n}")).collect();
    for question in &questions {
        assert_eq!(send(&mut socket, &chat, question, question).await["type"], "ack");
    }
    let answers = async || -> Vec<String> {
        let said = history(&ann, &chat).await.into_iter();
        let answers = said.filter(|message| message["sender_id"] == "agent_helper");
        answers.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    };
    for (killed, answered) in [(0..1, 1), (1..2, 3), (0..2, 6), (0..1, 8)] {
        eventually("some answers", async || (answers().await.len() >= answered).then_some(())).await;
        for worker in &mut deployment.workers[killed.clone()] {
            worker.kill();
        }
        for worker in &mut deployment.workers[killed] {
            worker.start();
        }
    }
    let all = eventually("all answers", async || {
        Some(answers().await).filter(|answers| answers.len() >= questions.len())
    });
    let expected: Vec<String> = questions.iter().map(|question| format!("so {question} it is")).collect();
    assert_eq!(all.await, expected);
    // Each was delivered, too: by those who follow the same table.
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        let frame = next_of(&mut socket, "message").await;
        heard.push(frame["content"].as_str().unwrap().to_owned());
        heard.dedup();
    }
    assert_eq!(heard, expected);
}
