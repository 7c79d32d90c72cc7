//! Saying something and reading it.

use courant_connectors::model::commands::Code;
use serde_json::{Value, json};

use super::world::{Answer, World};

#[tokio::test]
async fn a_message_is_sent_once() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let path = format!("/chats/{}/messages", world.group(&ada, &[]).await);
    let message = json!({"client_message_id": "c-1", "content": "hello"});
    let sent = world.post(&path, &ada, message.clone()).await;
    assert_eq!(
        (sent.status, &sent.body["sequence"], &sent.body["deduplicated"]),
        (201, &json!(1), &json!(false))
    );
    let again = world.post(&path, &ada, message).await;
    assert_eq!((again.status, &again.body["deduplicated"]), (200, &json!(true)));
    assert_eq!((&again.body["message_id"], &again.body["sequence"]), (&sent.body["message_id"], &json!(1)));
    let other = world.post(&path, &ada, json!({"client_message_id": "c-1", "content": "bye"})).await;
    assert_eq!(other.refusal(), (409, "IDEMPOTENCY_MISMATCH"));
    let read = world.get(&format!("{path}?latest=1"), &ada).await;
    let message = &read.body["messages"][0];
    assert_eq!((&message["content"], &message["content_type"]), (&json!("hello"), &json!("text/plain")));
    assert_eq!(
        (&message["sender_id"], &message["message_id"]),
        (&json!(ada.user_id), &sent.body["message_id"])
    );
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    let world = World::new().await;
    let (ada, eve) = (world.person(1).await, world.person(2).await);
    let path = format!("/chats/{}/messages", world.group(&ada, &[]).await);
    let message = |id: &str, content: &str| json!({"client_message_id": id, "content": content});
    for (body, status, code) in [
        (message("", "x"), 400, "BAD_REQUEST"),
        (message("é", "x"), 400, "BAD_REQUEST"),
        (message(&"c".repeat(129), "x"), 400, "BAD_REQUEST"),
        (message("c", ""), 400, "BAD_REQUEST"),
        (message("c", &"x".repeat(4097)), 413, "TOO_LARGE"),
        (json!({"client_message_id": "c", "content": "x", "content_type": "text"}), 400, "BAD_REQUEST"),
        (json!({"client_message_id": "c", "content": "x", "sequence": 1}), 400, "BAD_REQUEST"),
        (json!({"content": "x"}), 400, "BAD_REQUEST"),
        (json!({"client_message_id": 7, "content": "x"}), 400, "BAD_REQUEST"),
    ] {
        assert_eq!(world.post(&path, &ada, body.clone()).await.refusal(), (status, code), "{body}");
    }
    assert_eq!(world.post(&path, &ada, message(&"c".repeat(128), &"\u{1}".repeat(4096))).await.status, 201);
    assert_eq!(world.post(&path, &eve, message("c", "x")).await.refusal(), (403, "NOT_A_MEMBER"));
    world.script_refusal(Code::CounterMissing);
    let missing = world.post(&path, &ada, message("d", "x")).await;
    assert_eq!(
        (missing.refusal(), &missing.body["error"]["retryable"]),
        ((503, "COUNTER_MISSING"), &json!(false))
    );
}

fn sequences(answer: &Answer) -> (Vec<u64>, bool) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let messages = answer.body["messages"].as_array().unwrap();
    let sequences = messages.iter().map(|message| message["sequence"].as_u64().unwrap()).collect();
    (sequences, answer.body["has_more"].as_bool().unwrap())
}

#[tokio::test]
async fn messages_are_read_from_either_end() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let path = format!("/chats/{}/messages", world.group(&ada, &[]).await);
    assert_eq!(sequences(&world.get(&format!("{path}?latest=3"), &ada).await), (vec![], false));
    for at in 1..=7 {
        let message = json!({"client_message_id": at.to_string(), "content": "x"});
        assert_eq!(world.post(&path, &ada, message).await.body["sequence"], at);
    }
    for (query, expected, has_more) in [
        ("after=0&limit=3", vec![1, 2, 3], true),
        ("after=4&limit=3", vec![5, 6, 7], false),
        ("after=5", vec![6, 7], false),
        ("after=7", vec![], false),
        ("after=99", vec![], false),
        ("before=5&limit=3", vec![2, 3, 4], true),
        ("before=4&limit=3", vec![1, 2, 3], false),
        ("before=1", vec![], false),
        ("latest=3", vec![5, 6, 7], true),
        ("latest=7", vec![1, 2, 3, 4, 5, 6, 7], false),
        ("latest=100", vec![1, 2, 3, 4, 5, 6, 7], false),
        ("", vec![1, 2, 3, 4, 5, 6, 7], false),
        ("limit=3", vec![1, 2, 3], true),
    ] {
        let answer = world.get(&format!("{path}?{query}"), &ada).await;
        assert_eq!(sequences(&answer), (expected, has_more), "{query}");
    }
    for bad in [
        "after=1&before=3",
        "after=1&latest=3",
        "latest=3&limit=3",
        "latest=101",
        "after=0&limit=101",
        "after=0&limit=0",
        "after=-1",
        "after=99999999999999999999",
        "since=1",
    ] {
        assert_eq!(world.get(&format!("{path}?{bad}"), &ada).await.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    let largest = world.get(&format!("{path}?before={}", u64::MAX), &ada).await;
    assert_eq!(sequences(&largest).0.len(), 7);
}

#[tokio::test]
async fn what_arrived_is_acknowledged() {
    let world = World::new().await;
    let ada = world.person(1).await;
    let path = format!("/chats/{}/ack", world.group(&ada, &[]).await);
    let acked = world.post(&path, &ada, json!({"sequence": 3})).await;
    assert_eq!((acked.status, &acked.body), (204, &Value::Null));
    for bad in [json!({"sequence": 0}), json!({"sequence": -1}), json!({"sequence": "1"}), json!({})] {
        assert_eq!(world.post(&path, &ada, bad.clone()).await.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    world.script_refusal(Code::NotAMember);
    let strange = world.post(&path, &ada, json!({"sequence": 3})).await;
    assert_eq!(strange.refusal(), (403, "NOT_A_MEMBER"));
}

/// Pipelines say of both that one is no member.
#[tokio::test]
async fn a_chat_that_is_nowhere_is_not_found_whatever_is_asked_of_it() {
    let world = World::new().await;
    let (ada, eve) = (world.person(1).await, world.person(2).await);
    let chat = world.group(&ada, &[]).await;
    let message = json!({"client_message_id": "c-1", "content": "x"});
    for (path, body) in [
        ("/chats/{}/messages", message.clone()),
        ("/channels/{}/events", message),
        ("/chats/{}/ack", json!({"sequence": 1})),
    ] {
        for (chat, refusal) in [(&*chat, (403, "NOT_A_MEMBER")), ("chat_0", (404, "NOT_FOUND"))] {
            world.script_refusal(Code::NotAMember);
            let answer = world.post(&path.replace("{}", chat), &eve, body.clone()).await;
            assert_eq!(answer.refusal(), refusal, "{path}");
        }
    }
}
