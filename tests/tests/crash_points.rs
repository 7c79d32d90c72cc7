//! A process killed at each point of a message's way (ADR-004, section 10).
//!
//! The point is one call to a server: a proxy holds it, before it is done or with its answer, and the process that waits
//! for it gets SIGKILL. Nothing in the product knows of it. Then the process is started again and its client retries
//! with the same id; what was stored reaches the others without that.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use courant_conformance::servers::{Fault, Point};
use courant_connectors::store::{Durability, Key, Returning, Write, WriteStore as _};
use courant_tests::chat::{connect, group, history, next_of, nothing_comes, send, send_until_acked};
use courant_tests::deployment::Deployment;
use courant_tests::{LIMIT, home, until};
use serde_json::{Value, json};

/// What becomes of a message whose process was killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// It is not stored, and no sequence was taken: the retry gets the next one.
    Nothing,
    /// It is not stored, and a sequence is lost: the retry gets the one after.
    Gap,
    /// It is stored: others get it without a retry, and the retry is told of it.
    Stored,
}

struct People {
    ann: SignedIn,
    bob: SignedIn,
    anns: Socket,
    bobs: Socket,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_anywhere_loses_no_message_and_stores_none_twice() {
    let mut deployment = Deployment::start(|| home!()).await;
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let (anns, bobs) = (connect(&ann).await, connect(&bob).await);
    let mut people = People { ann, bob, anns, bobs };

    let allocating = |fault| move |on: &Deployment| on.before_store.plan("UpdateItem", [fault]);
    let storing = |fault| move |on: &Deployment| on.before_store.plan("TransactWriteItems", [fault]);
    let publishing = |point| move |on: &Deployment| on.before_kafka.stick(point);
    let on = &mut deployment;
    kill_at(on, &mut people, "before the allocation", allocating(Fault::Hang), After::Nothing).await;
    kill_at(on, &mut people, "after the allocation", allocating(Fault::HangAnswer), After::Gap).await;
    kill_at(on, &mut people, "before the transaction", storing(Fault::Hang), After::Gap).await;
    kill_at(on, &mut people, "after the transaction", storing(Fault::HangAnswer), After::Stored).await;
    kill_at(on, &mut people, "before publishing", publishing(Point::Request), After::Stored).await;
    kill_at(on, &mut people, "before the ack", publishing(Point::Answer), After::Stored).await;
    lose_the_counter(on, &mut people).await;
}

/// One row of the table, in a chat of its own.
async fn kill_at(
    deployment: &mut Deployment,
    people: &mut People,
    point: &str,
    hold: impl FnOnce(&Deployment),
    after: After,
) {
    let chat = group(&[&people.ann, &people.bob]).await;
    assert_eq!(send(&mut people.anns, &chat, "m-1", "whole").await["sequence"], 1, "{point}");
    assert_eq!(next_of(&mut people.bobs, "message").await["content"], "whole", "{point}");

    let held = held_calls(deployment);
    hold(deployment);
    people.anns.send_message(&chat, "m-2", point).await.unwrap();
    until("the call is held", LIMIT, || (held_calls(deployment) > held).then_some(()));
    deployment.ingest.kill();
    let error = next_of(&mut people.anns, "error").await;
    assert_eq!((&error["client_message_id"], &error["retryable"]), (&json!("m-2"), &json!(true)), "{error}");
    deployment.ingest.start();

    let sequence = if after == After::Gap { 3 } else { 2 };
    if after == After::Stored {
        check(&next_of(&mut people.bobs, "message").await, point, sequence);
    }
    let ack = send_until_acked(&mut people.anns, &chat, "m-2", point).await;
    assert_eq!(
        (&ack["sequence"], &ack["deduplicated"]),
        (&json!(sequence), &json!(after == After::Stored)),
        "{point}"
    );
    if after != After::Stored {
        check(&next_of(&mut people.bobs, "message").await, point, sequence);
    }
    nothing_comes(&mut people.bobs).await;
    let stored: Vec<_> = history(&people.bob, &chat).await;
    let sequences: Vec<_> = stored.iter().map(|message| message["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, [1, sequence], "{point}");
    deployment.verify();
}

/// The table's last row: nothing is stored in the chat, and the client is told not to try again.
async fn lose_the_counter(deployment: &Deployment, people: &mut People) {
    let chat = group(&[&people.ann, &people.bob]).await;
    let store = deployment.store().await;
    let counter = Write::delete("chat_counters", Key::new("chat_id", chat.as_str()));
    store.write(counter, Returning::Nothing, Durability::Synced).await.unwrap();

    let refused = send(&mut people.anns, &chat, "m-1", "hello").await;
    assert_eq!((&refused["code"], &refused["retryable"]), (&json!("COUNTER_MISSING"), &json!(false)));
    assert!(history(&people.bob, &chat).await.is_empty());
    assert_eq!(deployment.errors(), BTreeMap::from([("counter-exists".to_owned(), 1)]));
}

fn held_calls(deployment: &Deployment) -> usize {
    deployment.before_store.hanging() + deployment.before_kafka.stuck()
}

fn check(message: &Value, content: &str, sequence: u64) {
    assert_eq!((&message["content"], &message["sequence"]), (&json!(content), &json!(sequence)));
}

/// A log that is down, and then the process that waited for it as well: what it had stored is missed by `verify`, and
/// published by `unpublished` when everything is back, although no client asks (ADR-003, sections 7.2 and 7.5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_and_not_published_is_found_and_published() {
    let mut deployment = Deployment::start(|| home!()).await;
    let (ann, bob) = (deployment.person(0, "Ann").await, deployment.person(1, "Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    assert_eq!(send(&mut anns, &chat, "m-1", "hello").await["type"], "ack");
    next_of(&mut bobs, "message").await;

    deployment.kafka.kill();
    for n in 2..=4 {
        anns.send_message(&chat, &format!("m-{n}"), &format!("into the void {n}")).await.unwrap();
    }
    let stored = eventually("the messages are stored", || async {
        let stored = history(&bob, &chat).await;
        (stored.len() == 4).then_some(stored)
    });
    assert_eq!(stored.await[3]["content"], "into the void 4");
    deployment.ingest.kill();
    deployment.kafka.start_again();
    assert_eq!(deployment.errors(), BTreeMap::from([("message-event".to_owned(), 3)]));

    deployment.ingest.start();
    for n in 2..=4 {
        check(&next_of(&mut bobs, "message").await, &format!("into the void {n}"), n);
    }
    deployment.verify();
}
