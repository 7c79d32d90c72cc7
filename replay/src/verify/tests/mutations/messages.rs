//! Damage to messages, counters and keys.

use courant_connectors::model::tables::{chat_counters, messages};
use courant_connectors::model::{ChatId, MessageId, UserId};
use courant_connectors::store::{Key, Write};

use super::Expected;
use crate::verify::context::{before, now};
use crate::verify::tests::world::{DAY, HOUR, World, key_of, message};

pub(super) async fn message_zero(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let zero = message(&chat, &user, 0, before(now(), HOUR));
    world.store_message(&zero).await;
    world.publish(&zero).await;
    Expected::of("sequence-positive", &chat).at(0).saying(zero.message_id.as_str())
}

pub(super) async fn two_messages_with_a_sequence(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    let mut second = world.send(&chat, &user).await;
    second.message_id = MessageId::generate();
    world.lies.doubled.lock().unwrap().push(second.to_item());
    Expected::of("sequence-unique", &chat).at(2).saying(second.message_id.as_str())
}

pub(super) async fn chat_without_counter(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    world.store(Write::delete("chat_counters", Key::new("chat_id", &chat))).await;
    Expected::of("counter-exists", &chat)
}

pub(super) async fn counter_without_chat(world: &World) -> Expected {
    let chat = ChatId::generate();
    let counter = chat_counters::ChatCounter::new(chat.clone(), before(now(), HOUR));
    chat_counters::create(&*world.engine, &counter).await.unwrap();
    Expected::of("counter-chat", &chat).saying("the counter is at 0")
}

pub(super) async fn counter_set_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    for _ in 0..3 {
        world.send(&chat, &user).await;
    }
    let mut counter = chat_counters::ChatCounter::new(chat.clone(), before(now(), HOUR));
    counter.sequence_counter = 2;
    world.put("chat_counters", counter.to_item()).await;
    Expected::of("counter-bound", &chat).at(3).saying("the counter is at 2")
}

pub(super) async fn message_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    let lost = message(&chat, &user, 1, before(now(), HOUR));
    world.store_message(&lost).await;
    world.publish(&lost).await;
    Expected::of("message-chat", &chat).at(1).saying(lost.message_id.as_str())
}

pub(super) async fn endless_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut key = key_of(&sent).to_item();
    key.remove("ttl");
    world.put("idempotency_keys", key).await;
    Expected::of("ends", &chat).at(sent.sequence).saying("no number 'ttl'")
}

pub(super) async fn key_without_message(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let never = world.message(&chat, &user).await;
    world.put("idempotency_keys", key_of(&never).to_item()).await;
    Expected::of("key-message", &chat).at(1).saying(never.message_id.as_str())
}

pub(super) async fn key_of_another_sender(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut key = key_of(&sent);
    key.sender_id = UserId::generate();
    world.put("idempotency_keys", key.to_item()).await;
    Expected::of("key-agrees", &chat).at(1).saying("has another sender_id")
}

pub(super) async fn key_of_another_body(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.send(&chat, &user).await;
    sent.content = "something else".into();
    sent.message_id = MessageId::generate();
    world.put("idempotency_keys", key_of(&sent).to_item()).await;
    Expected::of("key-agrees", &chat).at(1).saying("has another message_id, body_hash")
}

pub(super) async fn message_without_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.message(&chat, &user).await;
    // Not the moment at which its key would have ended, and not long before it.
    sent.created_at = before(now(), 6 * DAY + 23 * HOUR);
    world.store(messages::put_write(&sent)).await;
    world.publish(&sent).await;
    Expected::of("message-key", &chat).at(1).saying(sent.client_message_id.as_str())
}

pub(super) async fn message_stored_twice(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let first = world.send(&chat, &user).await;
    let mut second = world.message(&chat, &user).await;
    second.client_message_id = first.client_message_id.clone();
    world.store(messages::put_write(&second)).await;
    world.publish(&second).await;
    Expected::of("message-once", &chat).at(2).saying("and the one with sequence 1")
}
