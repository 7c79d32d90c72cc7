//! The ways of data through a whole deployment (ADR-003, sections 4.1 to 4.4): what clients see, and what store, log and
//! live state hold after it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use courant_conformance::log::LogServer as _;
use courant_connectors::dynamodb::DynamoDb;
use courant_connectors::log::{Fetch, Topic, TopicPartition};
use courant_connectors::model::ChatId;
use courant_connectors::model::tables::{
    chat_counters, chat_memberships, chats, delivery_state, idempotency_keys, messages,
};
use courant_connectors::store::Consistency::Strong;
use courant_tests::chat::{connect, group, next_of, nothing_comes, send};
use courant_tests::deployment::Deployment;
use courant_tests::home;
use hyper::Method;
use serde_json::{Value, json};

/// A deployment, and three people with a chat.
struct World {
    on: Deployment,
    store: DynamoDb,
    ann: SignedIn,
    bob: SignedIn,
    eve: SignedIn,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_flows_as_it_was_decided() {
    let mut on = Deployment::start(|| home!()).await;
    let (ann, bob) = (on.person(0, "Ann").await, on.person(1, "Bob").await);
    let eve = on.person(1, "Eve").await;
    let store = on.store().await;
    let mut world = World { on, store, ann, bob, eve };
    let (anns, mut bobs) = (connect(&world.ann).await, connect(&world.bob).await);

    let chat = a_chat_is_made(&world, &mut bobs).await;
    let (mut anns, bobs) = a_message_is_sent(&world, &chat, anns, bobs).await;
    let mut bobs = a_client_comes_back(&mut world, &chat, &mut anns, bobs).await;
    members_change(&world, &chat, &mut anns, &mut bobs).await;
    world.on.verify();
}

/// Section 4.3.
async fn a_chat_is_made(world: &World, bobs: &mut Socket) -> ChatId {
    let chat = ChatId::from(group(&[&world.ann, &world.bob]).await.as_str());
    let made = chats::get(&world.store, &chat).await.unwrap().unwrap();
    assert_eq!(made.created_by.as_str(), world.ann.user_id);
    let counter = chat_counters::get(&world.store, &chat, Strong).await.unwrap().unwrap();
    assert_eq!(counter.sequence_counter, 0);
    assert_eq!(members(world, &chat).await, ids(&[&world.ann, &world.bob]));
    let created = events(world, "chats.created", &chat).await;
    assert_eq!((created.len(), &created[0]["event_type"]), (1, &json!("ChatCreated")));
    assert_eq!(created[0]["payload"]["initial_members"].as_array().unwrap().len(), 2);
    assert_eq!(next_of(bobs, "chat_created").await["chat_id"], chat.as_str());
    chat
}

/// Section 4.1: its table of what is written where.
async fn a_message_is_sent(
    world: &World,
    chat: &ChatId,
    mut anns: Socket,
    mut bobs: Socket,
) -> (Socket, Socket) {
    let ack = send(&mut anns, chat.as_str(), "m-1", "hello").await;
    assert_eq!((&ack["type"], &ack["sequence"]), (&json!("ack"), &json!(1)), "{ack}");
    let counter = chat_counters::get(&world.store, chat, Strong).await.unwrap().unwrap();
    assert_eq!(counter.sequence_counter, 1);
    let stored = messages::get(&world.store, chat, 1, Strong).await.unwrap().unwrap();
    assert_eq!((stored.message_id.as_str(), stored.content.as_str()), (text(&ack, "message_id"), "hello"));
    let key = idempotency_keys::check_again(&world.store, chat, &"m-1".into()).await.unwrap().unwrap();
    assert_eq!((key.sequence, key.message_id), (1, stored.message_id));
    let published = events(world, "messages.persisted", chat).await;
    assert_eq!((published.len(), &published[0]["payload"]["sequence"]), (1, &json!(1)));

    let heard = next_of(&mut bobs, "message").await;
    assert_eq!((&heard["message_id"], &heard["content"]), (&ack["message_id"], &json!("hello")));
    assert!(cached(world, chat).is_superset(&ids(&[&world.ann, &world.bob])), "{:?}", cached(world, chat));
    bobs.send(&json!({"type": "ack", "chat_id": chat.as_str(), "sequence": 1})).await.unwrap();
    eventually("the watermark moves", || async {
        let user = world.bob.user_id.as_str().into();
        let state = delivery_state::get(&world.store, &user, chat).await.unwrap();
        state.filter(|state| state.last_acked_sequence == 1)
    })
    .await;
    (anns, bobs)
}

/// Section 4.2: at another gateway, with nothing left in live state, and the log down.
async fn a_client_comes_back(world: &mut World, chat: &ChatId, anns: &mut Socket, bobs: Socket) -> Socket {
    drop(bobs);
    for n in 2..=3 {
        assert_eq!(send(anns, chat.as_str(), &format!("m-{n}"), "while away").await["sequence"], n);
    }
    world.on.redis.wipe();
    world.on.kafka.kill();
    let elsewhere = world.on.at(0, &world.bob);
    let mut bobs = connect(&elsewhere).await;
    let key = format!("user_connections:{}", world.bob.user_id);
    eventually("the connection is registered", || async {
        (!world.on.redis.set(&key).is_empty()).then_some(())
    })
    .await;
    let missed = json!({"type": "sync_request", "chat_id": chat.as_str(), "last_acked_sequence": 1});
    bobs.send(&missed).await.unwrap();
    let batch = next_of(&mut bobs, "sync_batch").await;
    let sequences: Vec<_> =
        batch["messages"].as_array().unwrap().iter().map(|one| &one["sequence"]).collect();
    assert_eq!((sequences, &batch["has_more"]), (vec![&json!(2), &json!(3)], &json!(false)));
    for sequence in [3, 2] {
        let path = format!("/api/v1/chats/{chat}/ack");
        let ack = json!({"sequence": sequence});
        let answer = elsewhere.client.call(Method::POST, &path, Some(&ack)).await.unwrap();
        assert!(answer.status.is_success(), "{answer:?}");
    }
    let state = delivery_state::get(&world.store, &world.bob.user_id.as_str().into(), chat).await.unwrap();
    assert_eq!(state.unwrap().last_acked_sequence, 3, "an ack that comes late moves nothing back");
    world.on.kafka.start_again();
    bobs
}

/// Section 4.4.
async fn members_change(world: &World, chat: &ChatId, anns: &mut Socket, bobs: &mut Socket) {
    let path = format!("/api/v1/chats/{chat}/members");
    let change = |user: &SignedIn, action: &str| json!({"user_id": user.user_id, "action": action});
    let mut eves = connect(&world.eve).await;
    let mut added = change(&world.eve, "add");
    added["role"] = json!("member");
    world.ann.client.post(&path, &added).await.unwrap();
    assert_eq!(members(world, chat).await, ids(&[&world.ann, &world.bob, &world.eve]));
    for socket in [&mut eves, &mut *bobs] {
        let told = next_of(socket, "membership_changed").await;
        assert_eq!((&told["change_type"], &told["user_id"]), (&json!("added"), &json!(world.eve.user_id)));
    }
    assert_eq!(send(anns, chat.as_str(), "m-4", "for three").await["type"], "ack");
    hears(&mut eves, "for three").await;
    assert!(cached(world, chat).contains(&world.eve.user_id), "filled again from the store");

    world.ann.client.post(&path, &change(&world.bob, "remove")).await.unwrap();
    assert_eq!(members(world, chat).await, ids(&[&world.ann, &world.eve]));
    let told = next_of(bobs, "membership_changed").await;
    assert_eq!((&told["change_type"], &told["user_id"]), (&json!("removed"), &json!(world.bob.user_id)));
    let changes = events(world, "memberships.changed", chat).await;
    let kinds: Vec<_> = changes.iter().map(|event| text(&event["payload"], "change_type")).collect();
    assert_eq!(kinds, ["added", "removed"]);
    assert_eq!(send(anns, chat.as_str(), "m-5", "for two").await["type"], "ack");
    hears(&mut eves, "for two").await;
    assert!(!cached(world, chat).contains(&world.bob.user_id));
    nothing_comes(bobs).await;
    assert_eq!(send(bobs, chat.as_str(), "m-6", "let me in").await["code"], "NOT_A_MEMBER");
}

/// Passes over what came before: events are read again that were not committed when the log went down.
async fn hears(socket: &mut Socket, content: &str) {
    while next_of(socket, "message").await["content"] != content {}
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

fn ids(people: &[&SignedIn]) -> BTreeSet<String> {
    people.iter().map(|person| person.user_id.clone()).collect()
}

async fn members(world: &World, chat: &ChatId) -> BTreeSet<String> {
    let listed = chat_memberships::list(&world.store, chat, None, None).await.unwrap();
    listed.items.iter().map(|member| member.user_id.as_str().to_owned()).collect()
}

/// Who is in the chat as far as live state knows.
fn cached(world: &World, chat: &ChatId) -> BTreeSet<String> {
    world.on.redis.set(&format!("chat_members:{chat}"))
}

/// The events of a chat in a topic, in their order.
async fn events(world: &World, topic: &str, chat: &ChatId) -> Vec<Value> {
    let (log, topic) = (world.on.kafka.log().await, Topic::from(topic));
    let marks = log.watermarks(&topic).await.unwrap();
    let mut waiting: u64 = marks.iter().map(|marks| marks.high - marks.low).sum();
    let from = (0..).zip(marks).map(|(at, marks)| (TopicPartition::new(&topic, at), marks.low)).collect();
    let mut reader = log.read_from(from).await.unwrap();
    let mut events = Vec::new();
    while waiting > 0 {
        let Fetch::Records { records, .. } = reader.fetch(1000).await.unwrap() else { continue };
        waiting -= records.len() as u64;
        let of_chat = records.iter().filter(|record| record.key.as_deref() == Some(chat.as_str().as_bytes()));
        events.extend(of_chat.map(|record| serde_json::from_slice::<Value>(&record.payload).unwrap()));
    }
    events
}
