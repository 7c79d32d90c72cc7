//! The main road: from socket to socket, on both shipped topologies and the embedded engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use courant_client::Heard;
use courant_tests::chat::{TOPOLOGIES, connect, group, history, next_of, nothing_comes, send};
use courant_tests::{LIMIT, Signal, home, until};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Every scenario on every topology.
macro_rules! on_both {
    ($($scenario:ident),* $(,)?) => {
        mod dual_write {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(courant_tests::chat::TOPOLOGIES[0]).await;
            })*
        }
        mod event_bus {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                super::$scenario(courant_tests::chat::TOPOLOGIES[1]).await;
            })*
        }
    };
}

on_both! {
    a_message_goes_from_socket_to_socket,
    the_same_id_is_the_same_message_and_never_another,
    a_hundred_writers_get_a_hundred_sequences,
    who_was_removed_neither_sends_nor_hears,
    signing_out_closes_the_sockets_of_the_session,
    nothing_acknowledged_is_lost_when_the_process_is_killed,
}

async fn a_message_goes_from_socket_to_socket(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let (ann, bob) = (courant.person("Ann").await, courant.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut at_desk, mut on_phone, mut bobs) =
        (connect(&ann).await, connect(&ann).await, connect(&bob).await);

    let ack = send(&mut at_desk, &chat, "m-1", "hello Bob").await;
    assert_eq!(
        (&ack["type"], &ack["sequence"], &ack["deduplicated"]),
        (&json!("ack"), &json!(1), &json!(false))
    );
    for other in [&mut bobs, &mut on_phone] {
        let message = next_of(other, "message").await;
        for (field, value) in [
            ("message_id", &ack["message_id"]),
            ("chat_id", &json!(chat)),
            ("sequence", &json!(1)),
            ("sender_id", &json!(ann.user_id)),
            ("content", &json!("hello Bob")),
            ("content_type", &json!("text/plain")),
            ("created_at", &ack["created_at"]),
        ] {
            assert_eq!(&message[field], value, "{field} of {message}");
        }
    }
    nothing_comes(&mut at_desk).await;

    bobs.send(&json!({"type": "ack", "chat_id": chat, "sequence": 1})).await.unwrap();
    let delivered = async {
        loop {
            let chats = bob.client.get("/api/v1/chats").await.unwrap();
            if chats["chats"][0]["delivered_sequence"] == 1 {
                return chats["chats"][0].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let listed = timeout(LIMIT, delivered).await.unwrap();
    assert_eq!(
        (&listed["chat_id"], &listed["role"], &listed["last_sequence"]),
        (&json!(chat), &json!("member"), &json!(1))
    );
    bobs.send(&json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": 0})).await.unwrap();
    let batch = next_of(&mut bobs, "sync_batch").await;
    assert_eq!((&batch["messages"][0]["content"], &batch["has_more"]), (&json!("hello Bob"), &json!(false)));
}

async fn the_same_id_is_the_same_message_and_never_another(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let (ann, bob) = (courant.person("Ann").await, courant.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let mut socket = connect(&ann).await;
    let first = send(&mut socket, &chat, "m-1", "hello").await;
    let again = send(&mut socket, &chat, "m-1", "hello").await;
    assert_eq!((&again["sequence"], &again["deduplicated"]), (&first["sequence"], &json!(true)));
    assert_eq!(again["message_id"], first["message_id"]);
    let other = send(&mut socket, &chat, "m-1", "other words").await;
    assert_eq!((&other["type"], &other["code"]), (&json!("error"), &json!("IDEMPOTENCY_MISMATCH")));
    let path = format!("/api/v1/chats/{chat}/messages");
    let over_rest = json!({"client_message_id": "m-1", "content": "hello"});
    let answer = ann.client.call(hyper::Method::POST, &path, Some(&over_rest)).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body["sequence"]), (200, &first["sequence"]));
    assert_eq!(history(&bob, &chat).await.len(), 1);
}

async fn a_hundred_writers_get_a_hundred_sequences(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let ann = courant.person("Ann").await;
    let bob = courant.person("Bob").await;
    let chat = group(&[&ann, &bob]).await;
    let sends = (0..100).map(|writer| {
        let (client, path) = (ann.client.clone(), format!("/api/v1/chats/{chat}/messages"));
        async move {
            let message = json!({"client_message_id": format!("m-{writer}"), "content": "hello"});
            client.post(&path, &message).await.unwrap()["sequence"].as_u64().unwrap()
        }
    });
    let sequences: BTreeSet<u64> = join_all(sends).await.into_iter().collect();
    assert_eq!(sequences.len(), 100);
    let stored = history(&bob, &chat).await;
    let stored: Vec<u64> = stored.iter().map(|message| message["sequence"].as_u64().unwrap()).collect();
    assert_eq!(stored, sequences.into_iter().collect::<Vec<_>>());
}

async fn who_was_removed_neither_sends_nor_hears(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let (ann, bob, eve) =
        (courant.person("Ann").await, courant.person("Bob").await, courant.person("Eve").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs, mut eves) = (connect(&ann).await, connect(&bob).await, connect(&eve).await);
    let stranger = send(&mut eves, &chat, "m-1", "let me in").await;
    assert_eq!((&stranger["type"], &stranger["code"]), (&json!("error"), &json!("NOT_A_MEMBER")));
    let path = format!("/api/v1/chats/{chat}/messages?latest=10");
    assert_eq!(eve.client.get(&path).await.unwrap_err().code(), Some("NOT_A_MEMBER"));

    assert_eq!(send(&mut anns, &chat, "m-1", "hello").await["type"], "ack");
    next_of(&mut bobs, "message").await;
    let members = format!("/api/v1/chats/{chat}/members");
    ann.client.post(&members, &json!({"user_id": bob.user_id, "action": "remove"})).await.unwrap();
    let told = next_of(&mut bobs, "membership_changed").await;
    assert_eq!((&told["change_type"], &told["user_id"]), (&json!("removed"), &json!(bob.user_id)));
    assert_eq!(send(&mut bobs, &chat, "m-2", "am I still here?").await["code"], "NOT_A_MEMBER");
    ann.client
        .post(&members, &json!({"user_id": eve.user_id, "action": "add", "role": "member"}))
        .await
        .unwrap();
    next_of(&mut eves, "membership_changed").await;
    assert_eq!(send(&mut anns, &chat, "m-3", "without Bob").await["type"], "ack");
    assert_eq!(next_of(&mut eves, "message").await["content"], "without Bob");
    nothing_comes(&mut bobs).await;
}

async fn signing_out_closes_the_sockets_of_the_session(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let ann = courant.person("Ann").await;
    let mut socket = connect(&ann).await;
    assert_eq!(ann.client.call(hyper::Method::POST, "/api/v1/auth/logout", None).await.unwrap().status, 204);
    let closed = timeout(Duration::from_secs(5), async {
        loop {
            if let Heard::Closed(code) = socket.next().await {
                return code;
            }
        }
    });
    assert_eq!(closed.await.unwrap(), Some(4401));
    let refused = ann.client.connect().await.err().unwrap();
    assert_eq!(refused.code(), Some("UNAUTHENTICATED"), "{refused}");
}

/// What was acknowledged is there after a kill, under the sequence that was told, and everything is in order.
async fn nothing_acknowledged_is_lost_when_the_process_is_killed(topology: &str) {
    let home = home!().with_topology(topology);
    let mut courant = home.start(&[]);
    let (ann, bob) = (courant.person("Ann").await, courant.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let mut acked: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..3 {
        let ann = re_signed(&mut courant, &ann);
        let mut socket = connect(&ann).await;
        for n in 0..200 {
            socket.send_message(&chat, &format!("m-{round}-{n}"), "hello").await.unwrap();
        }
        // Killed in the middle of it.
        let mut heard = 0;
        while heard < 50 {
            let frame = timeout(LIMIT, socket.next_json()).await.unwrap().unwrap();
            heard += usize::from(note(&frame, &mut acked));
        }
        courant.signal(Signal::KILL);
        courant.wait(LIMIT);
        while let Ok(Some(frame)) = timeout(Duration::from_secs(1), socket.next_json()).await {
            note(&frame, &mut acked);
        }
        courant = home.start(&[]);
    }
    let bob = re_signed(&mut courant, &bob);
    let stored: BTreeMap<u64, Value> = history(&bob, &chat)
        .await
        .into_iter()
        .map(|message| (message["sequence"].as_u64().unwrap(), message))
        .collect();
    for (id, sequence) in &acked {
        assert!(stored.contains_key(sequence), "{id} was acknowledged as {sequence}");
    }
    assert!(acked.len() >= 150);
    // Every event follows, in order, although nobody sends anything again.
    until("every message has its event", LIMIT, || {
        let report = home.run(&["verify", "--grace", "0s", "--json"]);
        let report: Value = serde_json::from_str(&report.stdout).unwrap();
        let found = |id: &str| {
            let mut checks = report["checks"].as_array().unwrap().iter();
            checks.find(|check| check["id"] == id).unwrap()["found"].as_u64().unwrap()
        };
        // What is written twice may be published late.
        assert!(topology == TOPOLOGIES[0] || found("event-order") == 0, "{report}");
        (found("message-event") == 0).then_some(())
    });
}

/// Remembers an ack.
fn note(frame: &Value, acked: &mut BTreeMap<String, u64>) -> bool {
    if frame["type"] != "ack" {
        return false;
    }
    let id = frame["client_message_id"].as_str().unwrap().to_owned();
    acked.insert(id, frame["sequence"].as_u64().unwrap());
    true
}

/// The same person at a process that was started again: on another port, with the same session.
fn re_signed(
    courant: &mut courant_tests::Courant,
    person: &courant_client::SignedIn,
) -> courant_client::SignedIn {
    let token = person.client.token().unwrap();
    courant_client::SignedIn { client: courant.client().with_token(token), ..person.clone() }
}
