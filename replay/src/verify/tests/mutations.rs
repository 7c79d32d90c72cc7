//! One kind of damage for each check. Each makes a chat or a user of its own, so that any number of them can be done to one
//! deployment and each be found.

use std::collections::BTreeSet;
use std::time::Duration;

use courant_connectors::log::{LogRecord, NewRecord, Topic, TopicPartition};
use courant_connectors::model::tables::chat_memberships::Role;
use courant_connectors::model::tables::chats::ChatType;
use courant_connectors::model::tables::{chat_counters, chat_memberships, messages, sessions, users};
use courant_connectors::model::topics::chats_created::CreatedChat;
use courant_connectors::model::topics::{ChatCreated, MessagePersisted, chats_created, messages_persisted};
use courant_connectors::model::{ChatId, EventId, MessageId, UserId};
use courant_connectors::store::{Item, Key, ReadStore as _, Write};
use futures::future::BoxFuture;

use super::world::{DAY, HOUR, World, key_of, membership, message, number_kept_for, options};
use crate::verify::context::{before, now};
use crate::verify::report::Example;
use crate::verify::{CHECKS, Options};

/// What to find of it.
pub(super) struct Expected {
    check: &'static str,
    chat: Option<ChatId>,
    sequence: Option<u64>,
    user: Option<UserId>,
    detail: String,
}

impl Expected {
    pub(super) fn check(&self) -> &'static str {
        self.check
    }

    fn of(check: &'static str, chat: &ChatId) -> Self {
        Self { chat: Some(chat.clone()), ..Self::in_general(check) }
    }

    fn in_general(check: &'static str) -> Self {
        Self { check, chat: None, sequence: None, user: None, detail: String::new() }
    }

    fn at(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    fn with(mut self, user: &UserId) -> Self {
        self.user = Some(user.clone());
        self
    }

    fn saying(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    fn is(&self, example: &Example) -> bool {
        (&self.chat, self.sequence, &self.user) == (&example.chat_id, example.sequence, &example.user_id)
            && example.detail.contains(&self.detail)
    }
}

pub(super) type Mutation = for<'a> fn(&'a World) -> BoxFuture<'a, Expected>;

macro_rules! mutations {
    ($($name:ident)*) => { &[$((stringify!($name), |world| Box::pin($name(world)))),*] };
}

pub(super) const MUTATIONS: &[(&str, Mutation)] = mutations! {
    unreadable_watermark huge_chat endless_key endless_session message_zero two_messages_with_a_sequence
    chat_without_counter counter_without_chat counter_set_back message_without_chat key_without_message
    key_of_another_sender key_of_another_body message_without_key message_stored_twice
    message_without_event first_message_without_event event_without_message event_with_other_content
    event_with_other_id record_that_is_no_event record_with_another_key events_out_of_order
    event_in_another_partition event_of_no_chat membership_without_chat chat_without_owner
    direct_chat_of_three direct_chat_of_one row_missing_in_index row_left_in_index membership_without_user
    watermark_beyond_counter watermark_without_chat watermark_goes_back counter_goes_back
    session_without_user number_of_nobody number_of_somebody_with_another
    user_without_number two_users_with_a_number
};

async fn unreadable_watermark(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let item = Item::new()
        .with("user_id", &user)
        .with("chat_id", &chat)
        .with("last_acked_sequence", "five")
        .with("updated_at", now());
    world.put("delivery_state", item).await;
    Expected::of("readable", &chat).with(&user).saying("'last_acked_sequence' is text")
}

async fn huge_chat(world: &World) -> Expected {
    let (chat, _) = world.own_chat().await;
    let update = courant_connectors::store::Update::new().set("name", "x".repeat(250_000));
    world.store(Write::update("chats", Key::new("chat_id", &chat), update)).await;
    Expected::of("item-size", &chat).saying("of 409600 bytes")
}

async fn endless_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut key = key_of(&sent).to_item();
    key.remove("ttl");
    world.put("idempotency_keys", key).await;
    Expected::of("ends", &chat).at(sent.sequence).saying("no number 'ttl'")
}

async fn endless_session(world: &World) -> Expected {
    let user = world.user().await;
    let session = world.session(&user).await;
    let mut item = sessions::validate(&*world.engine, &session, now()).await.unwrap().unwrap().to_item();
    item.remove("ttl");
    world.put("sessions", item).await;
    Expected::in_general("ends").with(&user).saying(session.as_str())
}

async fn message_zero(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let zero = message(&chat, &user, 0, before(now(), HOUR));
    world.store_message(&zero).await;
    world.publish(&zero).await;
    Expected::of("sequence-positive", &chat).at(0).saying(zero.message_id.as_str())
}

async fn two_messages_with_a_sequence(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    let mut second = world.send(&chat, &user).await;
    second.message_id = MessageId::generate();
    world.lies.doubled.lock().unwrap().push(second.to_item());
    Expected::of("sequence-unique", &chat).at(2).saying(second.message_id.as_str())
}

async fn chat_without_counter(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    world.store(Write::delete("chat_counters", Key::new("chat_id", &chat))).await;
    Expected::of("counter-exists", &chat)
}

async fn counter_without_chat(world: &World) -> Expected {
    let chat = ChatId::generate();
    let counter = chat_counters::ChatCounter::new(chat.clone(), before(now(), HOUR));
    chat_counters::create(&*world.engine, &counter).await.unwrap();
    Expected::of("counter-chat", &chat).saying("the counter is at 0")
}

async fn counter_set_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    for _ in 0..3 {
        world.send(&chat, &user).await;
    }
    let mut counter = chat_counters::ChatCounter::new(chat.clone(), before(now(), HOUR));
    counter.sequence_counter = 2;
    world.put("chat_counters", counter.to_item()).await;
    Expected::of("counter-bound", &chat).at(3).saying("the counter is at 2")
}

async fn message_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    let lost = message(&chat, &user, 1, before(now(), HOUR));
    world.store_message(&lost).await;
    world.publish(&lost).await;
    Expected::of("message-chat", &chat).at(1).saying(lost.message_id.as_str())
}

async fn key_without_message(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let never = world.message(&chat, &user).await;
    world.put("idempotency_keys", key_of(&never).to_item()).await;
    Expected::of("key-message", &chat).at(1).saying(never.message_id.as_str())
}

async fn key_of_another_sender(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut key = key_of(&sent);
    key.sender_id = UserId::generate();
    world.put("idempotency_keys", key.to_item()).await;
    Expected::of("key-agrees", &chat).at(1).saying("has another sender_id")
}

async fn key_of_another_body(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.send(&chat, &user).await;
    sent.content = "something else".to_owned();
    sent.message_id = MessageId::generate();
    world.put("idempotency_keys", key_of(&sent).to_item()).await;
    Expected::of("key-agrees", &chat).at(1).saying("has another message_id, body_hash")
}

async fn message_without_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.message(&chat, &user).await;
    // Not the moment at which its key would have ended, and not long before it.
    sent.created_at = before(now(), 7 * DAY - Duration::from_secs(600));
    world.store(messages::put_write(&sent)).await;
    world.publish(&sent).await;
    Expected::of("message-key", &chat).at(1).saying(sent.client_message_id.as_str())
}

async fn message_stored_twice(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let first = world.send(&chat, &user).await;
    let mut second = world.message(&chat, &user).await;
    second.client_message_id = first.client_message_id.clone();
    world.store(messages::put_write(&second)).await;
    world.publish(&second).await;
    Expected::of("message-once", &chat).at(2).saying("and the one with sequence 1")
}

async fn message_without_event(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    let unpublished = world.message(&chat, &user).await;
    world.store_message(&unpublished).await;
    world.send(&chat, &user).await;
    Expected::of("message-event", &chat).at(2).saying(unpublished.message_id.as_str())
}

async fn first_message_without_event(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let unpublished = world.message(&chat, &user).await;
    world.store_message(&unpublished).await;
    Expected::of("message-event", &chat).at(1).saying(unpublished.message_id.as_str())
}

async fn event_without_message(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let never = world.message(&chat, &user).await;
    world.publish(&never).await;
    Expected::of("event-message", &chat).at(1).saying(never.message_id.as_str())
}

async fn event_with_other_content(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let mut sent = world.send(&chat, &user).await;
    sent.content = "not what was said".to_owned();
    world.publish(&sent).await;
    Expected::of("event-content", &chat).at(1).saying("not as stored: content")
}

async fn event_with_other_id(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.message(&chat, &user).await;
    world.store_message(&sent).await;
    let event = MessagePersisted { event_id: EventId::generate(), ..MessagePersisted::of(sent) };
    world.tell(messages_persisted::NAME, &event).await;
    Expected::of("event-content", &chat).at(1).saying("not as stored: event_id")
}

async fn record_that_is_no_event(world: &World) -> Expected {
    let key = format!("chat_{}", world.number());
    let record = NewRecord { key: Some(key.into()), payload: "{}".into(), ..NewRecord::default() };
    world.append(chats_created::NAME, record).await;
    Expected::in_general("event-readable").saying("not a ChatCreated event")
}

async fn record_with_another_key(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let sent = world.send(&chat, &user).await;
    let mut record = MessagePersisted::of(sent).encode();
    record.key = Some("elsewhere".into());
    world.append(messages_persisted::NAME, record).await;
    Expected::in_general("event-readable").saying("has another key")
}

async fn events_out_of_order(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let late = world.message(&chat, &user).await;
    world.store_message(&late).await;
    let prompt = world.send(&chat, &user).await;
    world.publish(&late).await;
    world.publish(&prompt).await; // a copy may come at any time
    Expected::of("event-order", &chat).at(1).saying("after the event of sequence 2")
}

async fn event_in_another_partition(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let first = world.send(&chat, &user).await;
    let second = world.message(&chat, &user).await;
    world.store_message(&second).await;
    let topic = Topic::from(messages_persisted::NAME);
    let mut home = None;
    for partition in 0..courant_connectors::model::topics::PARTITIONS {
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
    let other = TopicPartition::new(&topic, (home + 1) % courant_connectors::model::topics::PARTITIONS);
    world.lies.appended.lock().unwrap().entry(other).or_default().push(record);
    let expected = Expected::of("event-partition", &chat).saying("others are in partition");
    // Which of them is the stranger depends on the order.
    Expected { sequence: None, ..expected }
}

async fn event_of_no_chat(world: &World) -> Expected {
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

async fn membership_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    chat_memberships::add(&*world.engine, &membership(&chat, &user)).await.unwrap();
    Expected::of("membership-chat", &chat).with(&user)
}

async fn chat_without_owner(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    chat_memberships::set_role(&*world.engine, &chat, &user, Role::Admin).await.unwrap();
    Expected::of("chat-owner", &chat).saying("none of 1 members")
}

async fn direct_chat_of_three(world: &World) -> Expected {
    let (ann, ben, cem) = (world.user().await, world.user().await, world.user().await);
    let chat = world.chat(ChatType::Direct, &[&ann, &ben]).await;
    chat_memberships::add(&*world.engine, &membership(&chat, &cem)).await.unwrap();
    Expected::of("direct-pair", &chat).saying("3 members")
}

async fn direct_chat_of_one(world: &World) -> Expected {
    let ann = world.user().await;
    let chat = world.chat(ChatType::Direct, &[&ann]).await;
    Expected::of("direct-pair", &chat).saying("1 members")
}

async fn row_missing_in_index(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.lies.hidden.lock().unwrap().insert((chat.to_string(), user.to_string()));
    Expected::of("index-agrees", &chat).with(&user).saying("the index does not")
}

async fn row_left_in_index(world: &World) -> Expected {
    let (chat, user) = (world.own_chat().await.0, world.user().await);
    world.lies.ghosts.lock().unwrap().push(membership(&chat, &user).to_item());
    Expected::of("index-agrees", &chat).with(&user).saying("the table does not")
}

async fn membership_without_user(world: &World) -> Expected {
    let (chat, stranger) = (world.own_chat().await.0, UserId::generate());
    chat_memberships::add(&*world.engine, &membership(&chat, &stranger)).await.unwrap();
    Expected::of("membership-user", &chat).with(&stranger)
}

async fn watermark_beyond_counter(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    ack(world, &user, &chat, 2).await;
    Expected::of("watermark-bound", &chat).with(&user).at(2).saying("the counter is at 1")
}

async fn watermark_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    ack(world, &user, &chat, 1).await;
    Expected::of("watermark-chat", &chat).with(&user).at(1)
}

async fn ack(world: &World, user: &UserId, chat: &ChatId, sequence: u64) {
    let advance = courant_connectors::model::tables::delivery_state::advance;
    advance(&*world.engine, user, chat, sequence, now()).await.unwrap();
}

async fn watermark_goes_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    ack(world, &user, &chat, 1).await;
    world.lies.set_back.lock().unwrap().insert(("delivery_state", chat.to_string()));
    Expected::of("watermark-forward", &chat).with(&user).saying("was at 1 and is at 0")
}

async fn counter_goes_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    world.lies.set_back.lock().unwrap().insert(("chat_counters", chat.to_string()));
    Expected::of("counter-forward", &chat).saying("was at 1 and is at 0")
}

async fn session_without_user(world: &World) -> Expected {
    let stranger = UserId::generate();
    let session = world.session(&stranger).await;
    Expected::in_general("session-user").with(&stranger).saying(session.as_str())
}

async fn phone_of(world: &World, user: &UserId) -> String {
    let item = world.engine.get(users::lookup(user)).await.unwrap().unwrap();
    item.text("phone_number").unwrap().to_owned()
}

async fn number_of_nobody(world: &World) -> Expected {
    let stranger = UserId::generate();
    let number = format!("+4178{:07}", world.number());
    world.put("users", number_kept_for(&number, &stranger)).await;
    Expected::in_general("phone-user").with(&stranger).saying("is not there")
}

async fn number_of_somebody_with_another(world: &World) -> Expected {
    let user = world.user().await;
    let number = format!("+4178{:07}", world.number());
    world.put("users", number_kept_for(&number, &user)).await;
    Expected::in_general("phone-user")
        .with(&user)
        .saying(format!("{number} is kept for a user who has another"))
}

async fn user_without_number(world: &World) -> Expected {
    let user = world.user().await;
    let number = phone_of(world, &user).await;
    let key = Key::new("user_id", format!("phone#{number}"));
    world.store(Write::delete("users", key)).await;
    Expected::in_general("phone-user").with(&user).saying(format!("{number} is kept for nobody"))
}

async fn two_users_with_a_number(world: &World) -> Expected {
    let (first, second) = (world.user().await, world.user().await);
    let (number, own) = (phone_of(world, &first).await, phone_of(world, &second).await);
    let taken = world.engine.get(users::lookup(&second)).await.unwrap().unwrap();
    world.put("users", taken.with("phone_number", number)).await;
    world.store(Write::delete("users", Key::new("user_id", format!("phone#{own}")))).await;
    Expected::in_general("phone-user").with(&second).saying(format!("is kept for user {first}"))
}

pub(super) fn watching() -> Options {
    Options { watch: Some(Duration::from_millis(1)), examples: 1000, ..options() }
}

#[tokio::test]
async fn each_kind_of_damage_is_found_and_nothing_else() {
    for (name, mutation) in MUTATIONS {
        let world = World::healthy().await;
        let expected = mutation(&world).await;
        let report = world.verify(watching()).await;
        let found: Vec<_> = report.checks.iter().filter(|check| check.found > 0).collect();
        let [broken] = found[..] else { panic!("{name}: {found:#?}") };
        assert_eq!((broken.id.as_str(), broken.found), (expected.check, 1), "{name}: {broken:#?}");
        let [example] = &broken.examples[..] else { panic!("{name}: {broken:#?}") };
        let example = match expected.check {
            "event-partition" => &Example { sequence: None, ..example.clone() },
            _ => example,
        };
        assert!(expected.is(example), "{name}: {example:?}");
    }
}

#[test]
fn there_is_damage_for_every_check() {
    let source = include_str!("mutations.rs");
    let named = |id: &str| {
        source.contains(&format!("Expected::of(\"{id}\"")) || source.contains(&format!("in_general(\"{id}\""))
    };
    let without: BTreeSet<_> = CHECKS.iter().map(|check| check.id).filter(|id| !named(id)).collect();
    assert_eq!(without, BTreeSet::new());
}
