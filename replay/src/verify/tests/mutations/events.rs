//! Damage to the log.

use courant_connectors::log::{LogRecord, NewRecord, Topic, TopicPartition};
use courant_connectors::model::tables::chats::ChatType;
use courant_connectors::model::topics::chats_created::CreatedChat;
use courant_connectors::model::topics::{
    ChatCreated, MessagePersisted, PARTITIONS, chats_created, messages_persisted,
};
use courant_connectors::model::{ChatId, EventId, UserId};

use super::Expected;
use crate::verify::context::now;
use crate::verify::tests::world::World;

pub(super) async fn message_without_event(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    let unpublished = world.message(&chat, &user).await;
    world.store_message(&unpublished).await;
    world.send(&chat, &user).await;
    Expected::of("message-event", &chat).at(2).saying(unpublished.message_id.as_str())
}

pub(super) async fn first_message_without_event(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let unpublished = world.message(&chat, &user).await;
    world.store_message(&unpublished).await;
    Expected::of("message-event", &chat).at(1).saying(unpublished.message_id.as_str())
}

pub(super) async fn event_without_message(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let never = world.message(&chat, &user).await;
    world.publish(&never).await;
    Expected::of("event-message", &chat).at(1).saying(never.message_id.as_str())
}

pub(super) async fn event_with_other_content(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.send(&chat, &user).await;
    sent.content = "not what was said".into();
    world.publish(&sent).await;
    Expected::of("event-content", &chat).at(1).saying("not as stored: content")
}

pub(super) async fn event_with_other_id(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.message(&chat, &user).await;
    world.store_message(&sent).await;
    let event = MessagePersisted { event_id: EventId::generate(), ..MessagePersisted::of(sent) };
    world.tell(messages_persisted::NAME, &event).await;
    Expected::of("event-content", &chat).at(1).saying("not as stored: event_id")
}

pub(super) async fn record_that_is_no_event(world: &World) -> Expected {
    let key = format!("chat_{}", world.number());
    let record = NewRecord { key: Some(key.into()), payload: "{}".into(), ..NewRecord::default() };
    world.append(chats_created::NAME, record).await;
    Expected::in_general("event-readable").saying("not a ChatCreated event")
}

pub(super) async fn record_with_another_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut record = MessagePersisted::of(sent).encode();
    record.key = Some("elsewhere".into());
    world.append(messages_persisted::NAME, record).await;
    Expected::in_general("event-readable").saying("has another key")
}

pub(super) async fn events_out_of_order(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let late = world.message(&chat, &user).await;
    world.store_message(&late).await;
    let prompt = world.send(&chat, &user).await;
    world.publish(&late).await;
    world.publish(&prompt).await; // a copy may come at any time
    Expected::of("event-order", &chat).at(1).saying("after the event of sequence 2")
}

pub(super) async fn event_in_another_partition(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let first = world.send(&chat, &user).await;
    let second = world.message(&chat, &user).await;
    world.store_message(&second).await;
    let topic = Topic::from(messages_persisted::NAME);
    let mut home = None;
    for partition in 0..PARTITIONS {
        let events = world.lies.events_of(&TopicPartition::new(&topic, partition)).await;
        if events.iter().any(|event| event.payload.message_id == first.message_id) {
            home = Some(partition);
        }
    }
    let home = home.expect("it was published");
    let record = MessagePersisted::of(second).encode();
    let record = LogRecord {
        offset: 0,
        at: courant_pipeline::clock::now(),
        key: record.key,
        payload: record.payload,
        headers: record.headers,
    };
    // After all others, whichever of the two partitions is read first.
    let other = TopicPartition::new(&topic, (home + 1) % PARTITIONS);
    world.lies.appended.lock().unwrap().entry(other).or_default().push(record);
    let expected = Expected::of("event-partition", &chat).saying("others are in partition");
    // Which of them is the stranger depends on the order.
    Expected { sequence: None, ..expected }
}

pub(super) async fn event_of_no_chat(world: &World) -> Expected {
    let chat_id = ChatId::generate();
    let payload = CreatedChat {
        chat_id: chat_id.clone(),
        chat_type: ChatType::Group,
        name: None,
        created_by: UserId::generate(),
        initial_members: Vec::new(),
    };
    let event = ChatCreated { event_id: EventId::generate(), event_time: now(), payload };
    world.tell(chats_created::NAME, &event).await;
    Expected::of("chat-event", &chat_id).saying("was told to be made")
}
