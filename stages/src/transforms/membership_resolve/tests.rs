//! On the embedded engine: chats with members, events about them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use courant_connectors::live::{Channel, MembershipCache as _, Publish as _};
use courant_connectors::model::frames::Invalidated;
use courant_connectors::model::topics::memberships_changed::ChangeType;
use courant_connectors::store::{Durability, Name, Returning, Write};
use courant_pipeline::Fate;
use serde_json::json;

use super::*;
use crate::deliveries::testing::{World, changed, created, message, record};
use crate::testing::{fates, problem};

/// The users that each record is for, or what else became of it.
async fn resolve(stage: &dyn Stage, records: Vec<Record>) -> Vec<String> {
    let mut batch = Batch::from(records);
    stage.process(&mut batch).await.unwrap();
    let told = fates(&batch);
    let whom = |(slot, fate): (&courant_pipeline::Slot, String)| match slot.fate() {
        Fate::Forward => {
            let addressed = slot.record().payload.decode::<Addressed>().unwrap();
            addressed
                .users
                .iter()
                .map(|user| user.as_str().trim_start_matches("user_"))
                .collect::<Vec<_>>()
                .join(" ")
        }
        _ => fate,
    };
    batch.slots().iter().zip(told).map(whom).collect()
}

async fn resolve_message(stage: &dyn Stage, chat: &str) -> String {
    resolve(stage, vec![record(message(chat, 1))]).await.remove(0)
}

/// As `cache-invalidate` does it.
async fn invalidate(world: &World, chat: &str) {
    let chats = [ChatId::from(chat)];
    world.live.invalidate(&chats).await.unwrap();
    let told = serde_json::to_vec(&Invalidated { chat_ids: chats.into() }).unwrap();
    world.live.publish(&[(Channel::invalidated_members(), told.into())]).await.unwrap();
}

/// Lets the task that listens run.
async fn let_it_hear() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_batch_is_resolved_with_one_question_and_frames_are_complete() {
    let world = World::new().await;
    world.join("chat_1", &["user_1", "user_2"]).await;
    world.join("chat_2", &["user_3"]).await;
    let stage = world.stage(&SPEC, json!({})).await;
    let mut first = record(message("chat_1", 7));
    first.headers.set(PREVIOUS_SEQUENCE, "3");
    let mut batch = Batch::from(vec![first, record(message("chat_2", 1)), record(message("chat_1", 8))]);
    stage.process(&mut batch).await.unwrap();
    assert_eq!(world.live.asked_members.load(Ordering::SeqCst), 1);
    let addressed: Vec<_> =
        batch.records().map(|record| record.payload.decode::<Addressed>().unwrap()).collect();
    assert!(Arc::ptr_eq(&addressed[0].users, &addressed[2].users), "one list for a chat");
    assert_eq!(*addressed[1].users, ["user_3".into()]);
    let previous = |index: usize| {
        let frame: serde_json::Value = serde_json::from_slice(&addressed[index].frame).unwrap();
        assert_eq!(frame["type"], "message");
        (frame["sequence"].as_u64().unwrap(), frame["previous_sequence"].as_u64().unwrap())
    };
    assert_eq!([previous(0), previous(1), previous(2)], [(7, 3), (1, 0), (8, 7)]);
    let headers = &batch.slots()[0].record().headers;
    assert_eq!(headers.get("origin"), Some("conn_user_1_phone"), "goes on to whoever delivers");
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2");
    assert_eq!(world.live.asked_members.load(Ordering::SeqCst), 1, "it is remembered");
}

#[tokio::test]
async fn what_tells_nobody_ends_here() {
    let world = World::new().await;
    let stage = world.stage(&SPEC, json!({})).await;
    let later = Record::new(Payload::from_static(r#"{"event_type":"MessageEdited"}"#));
    let garbage = Record::new(Payload::from_static("{nope"));
    let told = resolve(&*stage, vec![later, garbage, record(message("nowhere", 1))]).await;
    assert_eq!(told[0], "dropped: unknown-event");
    assert!(
        told[1].starts_with("reject: read the event: the record is not a well-formed event"),
        "{}",
        told[1]
    );
    assert_eq!(told[2], "dropped: no-members");
}

#[tokio::test]
async fn changes_are_told_to_current_members_and_whom_they_happened_to() {
    let world = World::new().await;
    world.join("chat_1", &["user_1", "user_2", "user_3"]).await;
    let stage = world.stage(&SPEC, json!({})).await;
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2 3");
    world.leave("chat_1", "user_2").await;
    // Neither cache was told of it: an event of a change does not believe them.
    let change = record(changed("chat_1", "user_2", ChangeType::Removed));
    let told = resolve(&*stage, vec![change, record(message("chat_1", 1))]).await;
    assert_eq!(told, ["1 3 2", "1 3"]);
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 3", "from then on");
    let cached = world.live.members(&["chat_1".into()]).await.unwrap();
    assert_eq!(cached[0].as_ref().unwrap().len(), 2, "for every process");
    world.join("chat_2", &["user_4", "user_5"]).await;
    assert_eq!(resolve(&*stage, vec![record(created("chat_2"))]).await, ["4 5"]);
    let gone = record(changed("empty", "user_9", ChangeType::Removed));
    assert_eq!(resolve(&*stage, vec![gone]).await, ["9"], "the last one to leave hears of it");
}

#[tokio::test]
async fn who_was_removed_gets_nothing_after_the_invalidation() {
    let world = World::new().await;
    world.join("chat_1", &["user_1", "user_2"]).await;
    let stage = world.stage(&SPEC, json!({})).await;
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2");
    world.leave("chat_1", "user_2").await;
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2", "not heard of yet");
    invalidate(&world, "chat_1").await;
    let_it_hear().await;
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1");
}

#[tokio::test]
async fn messages_missed_on_the_channel_clear_everything() {
    let world = World::new().await;
    world.join("chat_1", &["user_1"]).await;
    world.join("chat_2", &["user_1"]).await;
    let stage = world.stage(&SPEC, json!({})).await;
    for chat in ["chat_1", "chat_2"] {
        assert_eq!(resolve_message(&*stage, chat).await, "1");
    }
    let asked = world.live.asked_members.load(Ordering::SeqCst);
    // More than wait for a listener: the last of them leave a gap.
    let other = serde_json::to_vec(&Invalidated { chat_ids: [ChatId::from("other")].into() }).unwrap();
    let flood = vec![(Channel::invalidated_members(), Bytes::from(other)); 5000];
    world.live.publish(&flood).await.unwrap();
    while_it_hears().await;
    resolve(&*stage, vec![record(message("chat_1", 1)), record(message("chat_2", 1))]).await;
    assert_eq!(world.live.asked_members.load(Ordering::SeqCst), asked + 1);
}

async fn while_it_hears() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_fill_that_an_invalidation_overtakes_is_void() {
    let world = World::new().await;
    world.join("chat_1", &["user_1", "user_2"]).await;
    let stage = world.stage(&SPEC, json!({})).await;
    // The store answers, and before the answer is kept somebody is removed.
    let live = Arc::clone(&world.live);
    live.before_fill(Box::pin({
        let (live, store) = (Arc::clone(&live), Arc::clone(&world.connected.store));
        async move {
            chat_memberships::remove(&*store, &"chat_1".into(), &"user_2".into()).await.unwrap();
            live.invalidate(&["chat_1".into()]).await.unwrap();
        }
    }));
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2", "as it was when it was asked");
    assert_eq!(world.live.members(&["chat_1".into()]).await.unwrap(), [None]);
    // Nothing was published on the channel: the void fill alone keeps it from being remembered.
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1");
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_ends_by_itself() {
    let world = World::new().await;
    world.join("chat_1", &["user_1"]).await;
    let stage = world.stage(&SPEC, json!({"remember": "20s"})).await;
    resolve_message(&*stage, "chat_1").await;
    let asked = || world.live.asked_members.load(Ordering::SeqCst);
    assert_eq!(asked(), 1);
    tokio::time::advance(Duration::from_secs(19)).await;
    resolve_message(&*stage, "chat_1").await;
    assert_eq!(asked(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    resolve_message(&*stage, "chat_1").await;
    assert_eq!(asked(), 2);
}

#[tokio::test]
async fn while_live_state_is_down_the_store_answers() {
    let world = World::new().await;
    world.join("chat_1", &["user_1", "user_2"]).await;
    world.live.is_down(true);
    // It could not even subscribe.
    let stage = world.stage(&SPEC, json!({})).await;
    assert_eq!(resolve_message(&*stage, "chat_1").await, "1 2");
    world.leave("chat_1", "user_2").await;
    assert_eq!(
        resolve_message(&*stage, "chat_1").await,
        "1",
        "nothing is remembered that nobody could correct"
    );
}

#[tokio::test(start_paused = true)]
async fn when_live_state_is_back_it_listens_again() {
    let world = World::new().await;
    world.join("chat_1", &["user_1"]).await;
    world.live.is_down(true);
    let stage = world.stage(&SPEC, json!({})).await;
    world.live.is_down(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    resolve_message(&*stage, "chat_1").await;
    resolve_message(&*stage, "chat_1").await;
    assert_eq!(world.live.asked_members.load(Ordering::SeqCst), 1, "it remembers");
    stage.close().await.unwrap();
}

#[tokio::test]
async fn a_chat_that_the_store_cannot_tell_is_given_up_and_the_others_go_on() {
    let world = World::new().await;
    world.join("chat_1", &["user_1"]).await;
    let damaged = courant_connectors::store::Item::new().with("chat_id", "chat_2").with("user_id", "user_2");
    let write = Write::put(Name::new_static("chat_memberships"), damaged);
    world.connected.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
    let stage = world.stage(&SPEC, json!({})).await;
    let told =
        resolve(&*stage, ["chat_2", "chat_1", "chat_2"].map(|chat| record(message(chat, 1))).into()).await;
    assert_eq!(told[1], "1");
    for index in [0, 2] {
        let of_it_alone = told[index].starts_with("reject: list members") && told[index].contains("chat_2");
        assert!(of_it_alone, "what is fatal would stop every chat: {told:?}");
    }
}

#[test]
fn no_time_is_no_memory() {
    assert_eq!(problem(&SPEC, json!({"remember": "0s"})).key, "remember");
}
