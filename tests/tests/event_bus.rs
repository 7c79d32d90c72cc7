//! The store as the event bus, as several processes on DynamoDB, Kafka and Redis: a worker killed at each point of an
//! event's way, one that sleeps while it is replaced, changes that are lost, and agents that are killed while they answer.
//!
//! The point is one call to a server, as in `crash_points`: a proxy holds it, before it is done or with its answer.
//! Any worker may be the one that waits for it, so all of them are killed, and started again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use courant_conformance::servers::{Fault, Point};
use courant_connectors::model::tables::stream_leases::{self, Lease};
use courant_tests::asking::Asking;
use courant_tests::chat::{connect, group, next_of, send, send_until_acked};
use courant_tests::deployment::{Deployment, EVENT_BUS};
use courant_tests::model::{Model, Mood};
use courant_tests::{LIMIT, Signal, home, until};
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
    let keeping = |fault| move |on: &Deployment| keeps_a_place(on, PUBLISHING, fault);
    let publishing = |point| move |on: &Deployment| on.before_kafka.stick(point);
    let on = &mut deployment;
    kill_at(on, &mut people, "before it is read", reading(Fault::Hang)).await;
    kill_at(on, &mut people, "after it is read", reading(Fault::HangAnswer)).await;
    kill_at(on, &mut people, "before it is published", publishing(Point::Request)).await;
    kill_at(on, &mut people, "after it is published", publishing(Point::Answer)).await;
    kill_at(on, &mut people, "before the place is kept", keeping(Fault::Hang)).await;
    kill_at(on, &mut people, "after the place is kept", keeping(Fault::HangAnswer)).await;
}

/// What happens when a group next keeps its place; a sign of life names none.
fn keeps_a_place(deployment: &Deployment, group: &str, fault: Fault) {
    deployment.before_store.plan_where("UpdateItem", &["stream_leases", group, r#""after""#], fault);
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
    // An ack means stored, and what is stored is told.
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

/// As shipped, with a lease that runs out sooner.
const PUBLISH: &str = r#"
[[pipeline]]
name = "publish-messages"
plane = "fanout"
[[pipeline.stage]]
kind = "dynamo-stream"
params = { table = "messages", lease = "4s" }
[[pipeline.stage]]
kind = "change-to-event"
[[pipeline.stage]]
kind = "kafka-publish"
params = { topic = "messages.persisted" }
"#;
const PUBLISHING: &str = "publish-messages/messages";

/// A worker that sleeps for longer than its lease lasts is replaced. What it still had to write then changes nothing, and
/// when it wakes up it is one of two again, of whom nobody takes what the other has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_slept_leaves_its_place_to_who_took_over() {
    let workers = "fanout,memberships,publish-messages,publish-chats";
    let layout = EVENT_BUS.instead("publish-messages", PUBLISH, workers);
    let mut deployment = Deployment::start_as(layout, || home!()).await;
    let store = deployment.store().await;
    let lease = async |is_wanted: &dyn Fn(&Lease) -> bool| {
        let look = async || {
            let (_, leases) = stream_leases::of_group(&store, PUBLISHING).await.unwrap();
            leases.into_iter().find(is_wanted)
        };
        eventually("the lease is as it should be", look).await
    };
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let mut socket = connect(&ann).await;
    deployment.workers[1].kill();
    assert_eq!(send(&mut socket, &chat, "m-1", "one").await["type"], "ack");
    lease(&|lease| lease.place.count == 1).await;

    keeps_a_place(&deployment, PUBLISHING, Fault::HoldBack);
    assert_eq!(send(&mut socket, &chat, "m-2", "two").await["type"], "ack");
    until("its place is on the way", LIMIT, || (held_calls(&deployment) > 0).then_some(()));
    deployment.workers[0].process().signal(Signal::STOP);
    deployment.workers[1].start();
    assert_eq!(send(&mut socket, &chat, "m-3", "three").await["type"], "ack");
    let taken = lease(&|lease| lease.place.count == 3).await;
    deployment.before_store.let_through().await;
    assert_eq!(lease(&|_| true).await.place, taken.place, "what is late is refused");

    deployment.workers[0].process().signal(Signal::CONT);
    assert_eq!(send(&mut socket, &chat, "m-4", "four").await["type"], "ack");
    let both = lease(&|lease| lease.place.count == 4).await;
    // Both look at the lease meanwhile.
    let later = lease(&|lease| lease.beat > both.beat + 4).await;
    assert_eq!((later.term, later.place), (taken.term, both.place), "who lives keeps its shard");
    deployment.workers[1].kill();
    assert_eq!(send(&mut socket, &chat, "m-5", "five").await["type"], "ack");
    lease(&|lease| lease.place.count == 5).await;
    deployment.verify();
    deployment.events_are_in_order();
}

/// Nobody followed for too long: the store says that changes are not kept any more, and is scanned in their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_changes_are_not_kept_any_more_everything_is_told_from_a_scan_and_from_then_on() {
    let mut deployment = Deployment::start_as(EVENT_BUS, || home!()).await;
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["type"], "ack");
    assert_eq!(next_of(&mut bobs, "message").await["content"], "before");
    for worker in &mut deployment.workers {
        worker.kill();
    }
    assert_eq!(send(&mut anns, &chat, "m-2", "meanwhile").await["type"], "ack");
    // No shard can be read, so whatever is told now is told by a scan.
    deployment.before_store.always("GetShardIterator", Fault::error("TrimmedDataAccessException"));
    for worker in &mut deployment.workers {
        worker.start();
    }
    assert_eq!(next_of(&mut bobs, "message").await["content"], "meanwhile");
    eventually("everything is published", || async { deployment.errors().is_empty().then_some(()) }).await;
    deployment.before_store.heal();
    for (id, content) in [("m-3", "after"), ("m-4", "the end")] {
        assert_eq!(send(&mut anns, &chat, id, content).await["type"], "ack");
        assert_eq!(next_of(&mut bobs, "message").await["content"], content);
    }
    eventually("that is published, too", || async { deployment.errors().is_empty().then_some(()) }).await;
    deployment.events_are_in_order();
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

/// What it says to a question.
fn scripted(question: &str) -> String {
    format!("so {question} it is")
}

/// Killed where they are, one after the other and both at once, while they answer one chat; then at each point of an
/// answer's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_are_killed_answer_each_question_once_and_in_order() {
    let layout = EVENT_BUS.instead("publish-messages", AGENT, "fanout,memberships,agent");
    let mut deployment = Deployment::start_as(layout, || home!()).await;
    let ann = deployment.person(0, "Ann").await;
    let mut asking = Asking::begin(&ann, "agent_helper").await;
    asking.ask(12).await;
    for (killed, answered) in [(0..1, 1), (1..2, 3), (0..2, 6), (0..1, 8)] {
        asking.has_answers(answered).await;
        for worker in &mut deployment.workers[killed.clone()] {
            worker.kill();
        }
        for worker in &mut deployment.workers[killed] {
            worker.start();
        }
    }
    asking.ends(scripted).await;

    let reading = |fault| move |on: &Deployment| on.before_store.plan("GetRecords", [fault]);
    let storing = |fault| {
        move |on: &Deployment| on.before_store.plan_where("TransactWriteItems", &["agent_helper/"], fault)
    };
    let keeping = |fault| move |on: &Deployment| keeps_a_place(on, "agent/messages", fault);
    let (on, ann) = (&mut deployment, &ann);
    kill_agents_at(on, ann, "before a question is read", reading(Fault::Hang)).await;
    kill_agents_at(on, ann, "after a question is read", reading(Fault::HangAnswer)).await;
    kill_agents_at(on, ann, "before an answer is stored", storing(Fault::Hang)).await;
    kill_agents_at(on, ann, "after an answer is stored", storing(Fault::HangAnswer)).await;
    kill_agents_at(on, ann, "before the place is kept", keeping(Fault::Hang)).await;
    kill_agents_at(on, ann, "after the place is kept", keeping(Fault::HangAnswer)).await;
}

/// One row, in a chat of its own.
async fn kill_agents_at(
    deployment: &mut Deployment,
    ann: &SignedIn,
    point: &str,
    hold: impl FnOnce(&Deployment),
) {
    let mut asking = Asking::begin(ann, "agent_helper").await;
    let held = held_calls(deployment);
    hold(deployment);
    asking.ask(3).await;
    until(&format!("it is held {point}"), LIMIT, || (held_calls(deployment) > held).then_some(()));
    for worker in &mut deployment.workers {
        worker.kill();
    }
    for worker in &mut deployment.workers {
        worker.start();
    }
    asking.ends(scripted).await;
}

/// With a model, which may be asked to come back later.
fn with_model(model: &Model) -> String {
    let (before, after) = AGENT.split_once("responder = ").unwrap();
    let (_, after) = after.split_once("}] }").unwrap();
    let retry = "retry = { initial = \"50ms\", max = \"200ms\" }";
    format!("{before}base_url = \"{}\", model = \"test\" }}\n{retry}{after}", model.url)
}

/// Of what is read at once some is done, and something behind that has to wait, and more comes: whoever is killed then
/// has kept its place before what waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_to_be_done_is_done_by_whoever_comes_after_a_kill() {
    let mut deployment = Deployment::start_as(EVENT_BUS, || home!()).await;
    let (model, store) = (Model::start().await, deployment.store().await);
    let mut agent = deployment.beside(home!(), &with_model(&model));
    agent.start();
    let ann = deployment.person(0, "Ann").await;
    let mut asking = Asking::begin(&ann, "agent_helper").await;
    agent.kill();
    asking.ask(6).await;
    model.is(Mood::AnswersBut("q-3"));
    agent.start();
    let lease = async || {
        let (_, leases) = stream_leases::of_group(&store, "agent/messages").await.unwrap();
        leases.into_iter().find(|lease| lease.place.count >= 3)
    };
    let kept = eventually("the place behind the third question is kept", lease).await;
    // Their answers are read, too, and done. Whoever would keep a place behind that has the time for it.
    eventually("more signs of life", async || lease().await.filter(|lease| lease.beat > kept.beat + 2)).await;
    agent.kill();

    model.is(Mood::Answers);
    agent.start();
    asking.ends(|question| format!("to {question}")).await;
}
