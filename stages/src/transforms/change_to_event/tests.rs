//! On the embedded engine: changes as the source gives them.

use courant_connectors::model::tables::chat_memberships::{Change, ChangeType, Role};
use courant_connectors::model::tables::chats::{Chat, ChatType};
use courant_pipeline::Record;
use serde_json::{Value, json};

use super::*;
use crate::changes::ChangeKind;
use crate::testing::chat::World;
use crate::testing::{fates, problem};

fn change(table: &str, old: Option<Item>, new: Option<Item>) -> Record {
    let kind = ChangeKind::Modified;
    let change = TableChange { table: table.into(), kind, at: clock::now(), key: Item::new(), old, new };
    Record::new(Payload::value(change)).with_key("chat_1")
}

fn message_sent(ago: Duration) -> Item {
    let message = Message {
        chat_id: "chat_1".into(),
        sequence: 7,
        message_id: "msg_1".into(),
        sender_id: "user_ann".into(),
        client_message_id: "c-1".into(),
        content: "hello".into(),
        content_type: "text/plain".into(),
        created_at: clock::now().checked_sub(ago).unwrap().into(),
    };
    message.to_item()
}

async fn told(world: &World, params: Value, record: Record) -> String {
    let stage = world.stage(&SPEC, params).await;
    let mut batch = Batch::from(vec![record]);
    stage.process(&mut batch).await.unwrap();
    fates(&batch).remove(0)
}

#[tokio::test]
async fn a_new_message_is_an_event_and_goes_to_whom_it_did_not_come_from() {
    let world = World::new().await;
    let item = message_sent(Duration::ZERO);
    let expected = MessagePersisted::of(Message::from_item(&item).unwrap()).encode().payload;
    let stage = world.stage(&SPEC, json!({})).await;
    let with_origin = item.clone().with(messages::ORIGIN, "conn_1");
    let mut batch = Batch::from(vec![change("messages", None, Some(with_origin))]);
    stage.process(&mut batch).await.unwrap();
    assert_eq!(fates(&batch), [String::from_utf8(expected.to_vec()).unwrap()], "as its writer would tell it");
    assert_eq!(batch.slots()[0].record().headers.get(ORIGIN), Some("conn_1"));

    let nothing = "dropped: no-event";
    let gone = change("messages", Some(item.clone()), None);
    assert_eq!(told(&world, json!({}), gone).await, nothing);
    let again = change("messages", Some(item.clone()), Some(item));
    assert_eq!(told(&world, json!({}), again).await, nothing, "it is told of once");
    let damaged = change("messages", None, Some(Item::new().with("chat_id", "chat_1")));
    assert!(told(&world, json!({}), damaged).await.starts_with("reject: "));
    let other = change("users", None, Some(Item::new()));
    assert!(told(&world, json!({}), other).await.contains("changes in the table 'users'"));
}

/// A scan tells of everything that there is.
#[tokio::test]
async fn what_is_old_is_delivered_to_nobody() {
    let world = World::new().await;
    let hours = |hours: u64| change("messages", None, Some(message_sent(Duration::from_secs(hours * 3600))));
    let limited = || json!({"max_age": "2h"});
    assert!(told(&world, limited(), hours(1)).await.starts_with('{'));
    assert_eq!(told(&world, limited(), hours(3)).await, "dropped: too-old");
    assert!(told(&world, json!({}), hours(3)).await.starts_with('{'), "only if told so");
    assert_eq!(problem(&SPEC, json!({"max_age": "0s"})).key, "max_age");
}

#[tokio::test]
async fn a_chat_is_told_of_when_it_is_there_and_when_its_members_change() {
    let world = World::new().await;
    let chat_id = world.chat(&["user_ann", "user_bob"]).await;
    let at = Timestamp::from_unix_millis(1_769_783_400_000);
    let chat = Chat {
        chat_id: chat_id.clone(),
        chat_type: ChatType::Group,
        name: Some("tea".to_owned()),
        created_by: "user_ann".into(),
        created_at: at,
        updated_at: at,
    };
    let there = chat.to_item();
    let forming = there.clone().with("forming", true);
    let added = Change {
        user_id: "user_eve".into(),
        change_type: ChangeType::Added,
        role: Role::Member,
        by: "user_ann".into(),
        at,
    };
    let changed = there
        .clone()
        .with("changed_at", at)
        .with("changed_user_id", "user_eve")
        .with("change_type", "added")
        .with("changed_role", "member")
        .with("changed_by", "user_ann");
    let told = async |old: Option<&Item>, new: &Item| {
        told(&world, json!({}), change("chats", old.cloned(), Some(new.clone()))).await
    };
    let text = |event: bytes::Bytes| String::from_utf8(event.to_vec()).unwrap();
    let members = vec!["user_ann".into(), "user_bob".into()];
    let created = text(ChatCreated::of(chat, members).encode().payload);
    let membership = text(MembershipChanged::of(chat_id, added).encode().payload);
    assert_eq!(told(None, &forming).await, "dropped: no-event", "nobody knows of it yet");
    assert_eq!(told(Some(&forming), &there).await, created);
    assert_eq!(told(None, &there).await, created);
    assert_eq!(told(Some(&there), &changed).await, membership);
    let renamed = changed.clone().with("name", "coffee");
    assert_eq!(told(Some(&changed), &renamed).await, "dropped: no-event", "that was told already");
}
