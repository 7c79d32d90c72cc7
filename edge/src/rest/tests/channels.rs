//! The same messages as events of a channel.

use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::store::{Transaction, WriteStore as _};
use serde_json::json;

use super::world::World;

#[tokio::test]
async fn messages_are_events_with_a_role() {
    let world = World::new().await;
    let (ada, eve) = (world.person(1).await, world.person(2).await);
    let chat = world.group(&ada, &[]).await;
    let path = format!("/channels/{chat}/events");
    let event = json!({"client_message_id": "c-1", "content": "*hello*", "content_type": "markdown"});
    let sent = world.post(&path, &ada, event.clone()).await;
    assert_eq!((sent.status, &sent.body["role"]), (201, &json!("user")));
    let again = world.post(&path, &ada, event).await;
    assert_eq!((again.status, &again.body), (200, &sent.body), "the same event");
    // What others wrote, and what stands in the store.
    for (sequence, sender) in [(2, "agent_helper"), (3, "system_notices")] {
        let message = Message {
            chat_id: chat.as_str().into(),
            sequence,
            message_id: format!("msg_{sequence}").into(),
            sender_id: sender.into(),
            client_message_id: format!("c-{sequence}").into(),
            content: "hi".into(),
            content_type: "text/plain; charset=utf-8".into(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_123),
        };
        let transaction = Transaction { writes: vec![messages::put_write(&message)], token: None };
        world.engine.transact(transaction).await.unwrap();
    }
    let page = world.get(&format!("{path}?limit=2"), &ada).await;
    assert_eq!(page.body["events"][0], sent.body);
    assert_eq!(
        page.body["events"][1],
        json!({"channel_id": chat, "ts": 1_769_783_400_123_u64, "event_id": "evt_2", "message_id": "msg_2",
            "sender_id": "agent_helper", "role": "ai", "content": "hi", "content_type": "text",
            "created_at_iso": "2026-01-30T14:30:00.123Z", "metadata": {"sequence": 2}})
    );
    let rest = world.get(&format!("{path}?cursor={}", page.body["next"]), &ada).await;
    let roles: Vec<_> = rest.body["events"].as_array().unwrap().iter().map(|event| &event["role"]).collect();
    assert_eq!((roles, &rest.body["next"]), (vec![&json!("system")], &json!(null)));
    let read = world.get(&format!("/chats/{chat}/messages?latest=3"), &ada).await;
    assert_eq!(read.body["messages"][0]["content_type"], "text/markdown", "one message, two shapes");
    assert_eq!(world.get(&path, &eve).await.refusal(), (403, "NOT_A_MEMBER"));
    let foreign = json!({"client_message_id": "c", "content": "x"});
    assert_eq!(world.post(&path, &eve, foreign).await.refusal(), (403, "NOT_A_MEMBER"));
    for bad in [
        json!({"client_message_id": "c", "content": "x", "role": "ai"}),
        json!({"client_message_id": "c", "content": "x", "content_type": "text/html"}),
        json!({"client_message_id": "c", "content": ""}),
    ] {
        assert_eq!(world.post(&path, &ada, bad.clone()).await.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    assert_eq!(world.get(&format!("{path}?limit=101"), &ada).await.refusal(), (400, "BAD_REQUEST"));
}
