//! An agent in the shipped chat: the real process, killed while a slow model answers, and a model in the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::TcpListener;

use courant_client::SignedIn;
use courant_conformance::eventually;
use courant_tests::chat::{TOPOLOGIES, connect, history, next_of, send, shipped};
use courant_tests::model::{Model, Mood};
use courant_tests::{Home, LIMIT, home, repository, until};
use serde_json::json;

/// A shipped topology and the example's agent, with this model and at one address for all its lives.
fn with_agent(model: &Model, topology: &str) -> Home {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let example = std::fs::read_to_string(repository().join("examples/agent.toml")).unwrap();
    let (before, after) = example.split_once("responder = \"scripted\"").unwrap();
    let (_, after) = after.split_once("]\n\n").unwrap();
    let model = format!(
        "base_url = \"{}\"\nmodel = \"test\"\nsilence = \"60s\"\nshow_every = \"1ms\"\n\n",
        model.url
    );
    // With the store as the event bus it is published by those who follow the store.
    let after = if topology == TOPOLOGIES[0] {
        after.to_owned()
    } else {
        let (after, publishes) = after.rsplit_once("[[pipeline.stage]]").unwrap();
        assert!(publishes.contains("kafka-publish"), "{publishes}");
        format!("{after}[[pipeline.stage]]\nkind = \"blackhole\"\n")
    };
    let shipped = shipped(topology).replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let home = home!();
    home.replace_config(&format!("{shipped}\n{before}{model}{after}"));
    home
}

async fn said(person: &SignedIn, chat: &str) -> Vec<String> {
    let all = history(person, chat).await;
    all.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// An answer is stored once; how often a model was asked for it is another matter.
fn whatever_the_try(answer: &str) -> &str {
    answer.split_once(", try ").map_or(answer, |(answer, _)| answer)
}

/// What happens: a worker that dies while a model answers, questions behind it, and a refusal that is redriven.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_is_stored_once_and_in_order_although_the_process_is_killed() {
    is_killed_and_redriven(TOPOLOGIES[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_is_with_the_store_as_the_event_bus() {
    is_killed_and_redriven(TOPOLOGIES[1]).await;
}

async fn is_killed_and_redriven(topology: &str) {
    let model = Model::start().await;
    let home = with_agent(&model, topology);
    let mut process = home.start(&[]);
    let ann = process.person("Ann").await;
    let wanted = json!({"chat_type": "direct", "members": ["agent_helper"]});
    let made = ann.client.post("/api/v1/chats", &wanted).await.unwrap();
    let chat = made["chat_id"].as_str().unwrap().to_owned();
    // An answer may begin before the ack comes, so she listens elsewhere than where she asks.
    let (mut socket, mut heard) = (connect(&ann).await, connect(&ann).await);
    send(&mut socket, &chat, "c-1", "one").await;
    let shown = next_of(&mut heard, "reply").await;
    assert_eq!((&shown["sender_id"], &shown["status"]), (&json!("agent_helper"), &json!("writing")));
    send(&mut socket, &chat, "c-2", "two").await;
    eventually("the model is asked", async || (model.asked() == ["one"]).then_some(())).await;
    process.kill();

    model.is(Mood::Answers);
    let mut process = home.start(&[]);
    let four = async || Some(said(&ann, &chat).await).filter(|said| said.len() >= 4);
    let all = eventually("both answers", four).await;
    assert_eq!(
        all.iter().map(|said| whatever_the_try(said)).collect::<Vec<_>>(),
        ["one", "two", "to one", "to two"]
    );

    model.is(Mood::Refuses);
    let (mut socket, mut heard) = (connect(&ann).await, connect(&ann).await);
    send(&mut socket, &chat, "c-3", "three").await;
    assert_eq!(next_of(&mut heard, "message").await["content"], "three");
    assert_eq!(next_of(&mut heard, "message").await["content"], "Sorry, I could not answer that.");
    eventually("a dead letter", async || (home.letters("agent").len() == 1).then_some(())).await;
    assert_eq!(process.stop(), Some(0));
    let mut process = home.start(&[]);
    until("the letter is counted", LIMIT, || {
        (process.metric("courant_dead_letters_waiting", "queue=\"agent\"") > 0.0).then_some(())
    });
    let mut socket = connect(&ann).await;
    model.is(Mood::Answers);
    let redriven = home.run(&["dead-letters", "redrive", "agent"]).ok();
    assert!(redriven.starts_with("1 redriven: 1 delivered"), "{redriven}");
    let answer = next_of(&mut socket, "message").await;
    assert_eq!(whatever_the_try(answer["content"].as_str().unwrap()), "to three");
    assert_eq!(said(&ann, &chat).await.len(), 7, "nothing twice");
    assert_eq!(process.stop(), Some(0));
    home.run(&["verify"]).ok();
}

/// Each agent of a chat answers people, and none answers another: they would never come to an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_agents_each_answers_a_question_once_and_none_the_other() {
    let home = home!();
    let example = std::fs::read_to_string(repository().join("examples/agent.toml")).unwrap();
    let other =
        example.replace("name = \"agent\"", "name = \"other\"").replace("agent_helper", "agent_other");
    home.replace_config(&format!("{}\n{example}\n{other}", shipped(TOPOLOGIES[0])));
    let mut process = home.start(&[]);
    let ann = process.person("Ann").await;
    let wanted = json!({"chat_type": "group", "name": "all", "members": ["agent_helper", "agent_other"]});
    let made = ann.client.post("/api/v1/chats", &wanted).await.unwrap();
    let chat = made["chat_id"].as_str().unwrap().to_owned();
    let mut socket = connect(&ann).await;
    let mut expected = Vec::new();
    for question in ["one", "two", "three"] {
        send(&mut socket, &chat, question, question).await;
        let answer = format!("You said: {question}");
        expected.extend([question.to_owned(), answer.clone(), answer.clone()]);
        // A chat's messages are looked at in their order: those that were answered before this one are there by then.
        let both = async || {
            let all = said(&ann, &chat).await;
            (all.iter().filter(|said| **said == answer).count() >= 2).then_some(all)
        };
        assert_eq!(eventually("both answers", both).await, expected);
    }
}
