//! A small deployment as the product leaves it, on any store and log: two people, a chat, messages with their keys and
//! events.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use courant_connectors::log::{Log, NewRecord};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType};
use courant_connectors::model::tables::idempotency_keys::{self, BodyHash, IdempotencyKey};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::users::{self, User};
use courant_connectors::model::tables::{delivery_state, sessions};
use courant_connectors::model::topics::chats_created::CreatedChat;
use courant_connectors::model::topics::{ChatCreated, MessagePersisted, chats_created, messages_persisted};
use courant_connectors::model::{ChatId, EventId, MessageId, SessionId, Timestamp, UserId};
use courant_connectors::store::{Item, Store, Transaction, Write};

pub struct Seeded {
    pub chat: ChatId,
    pub owner: UserId,
    pub messages: Vec<Message>,
}

/// An hour ago, so that nothing is too new to be missed.
#[allow(clippy::disallowed_methods, reason = "what is stored is compared with the wall clock")]
fn an_hour_ago() -> Timestamp {
    (SystemTime::now() - Duration::from_secs(3600)).into()
}

/// Writes it; the last messages, `unpublished` of them, without their events.
///
/// # Panics
/// If store or log refuse anything.
pub async fn seed(store: &dyn Store, log: &dyn Log, messages: u32, unpublished: u32) -> Seeded {
    let (owner, guest) = (user(store).await, user(store).await);
    let chat = chat(store, log, &owner, &guest).await;
    let count = NonZeroU32::new(messages).expect("at least one message");
    let sequences = chat_counters::allocate(store, &chat, count, an_hour_ago()).await.unwrap();
    let messages: Vec<_> = sequences.map(|sequence| message(&chat, &owner, sequence)).collect();
    for part in messages.chunks(50) {
        let both =
            |message: &Message| [messages::put_write(message), idempotency_keys::put_write(&key_of(message))];
        transact(store, part.iter().flat_map(both).collect()).await;
    }
    let published = messages.iter().take(messages.len() - unpublished as usize);
    let events = published.map(|message| MessagePersisted::of(message.clone()).encode());
    append(log, messages_persisted::NAME, events.collect()).await;
    delivery_state::advance(store, &guest, &chat, 1, an_hour_ago()).await.unwrap();
    Seeded { chat, owner, messages }
}

/// A large group of an hour ago that was begun, with so many of its members, and never made.
///
/// # Panics
/// If the store refuses anything.
pub async fn begin_group(store: &dyn Store, owner: &UserId, members: u32) -> ChatId {
    let (chat_id, now) = (ChatId::generate(), an_hour_ago());
    let chat = Chat {
        chat_id: chat_id.clone(),
        chat_type: ChatType::Group,
        name: Some("Everybody".to_owned()),
        created_by: owner.clone(),
        created_at: now,
        updated_at: now,
    };
    let mut writes = vec![chats::begin_write(&chat)];
    for number in 0..members {
        let user_id = if number == 0 { owner.clone() } else { user(store).await };
        let (chat_id, role) = (chat_id.clone(), Role::Member);
        let member = Membership { chat_id, user_id, role, joined_at: now, muted_until: None };
        writes.push(chat_memberships::stage_write(&member));
    }
    transact(store, writes).await;
    chat_id
}

/// Publishes what was not.
///
/// # Panics
/// If the log refuses.
pub async fn publish(log: &dyn Log, message: &Message) {
    append(log, messages_persisted::NAME, vec![MessagePersisted::of(message.clone()).encode()]).await;
}

async fn transact(store: &dyn Store, writes: Vec<Write>) {
    store.transact(Transaction { writes, token: None }).await.unwrap();
}

async fn append(log: &dyn Log, topic: &str, records: Vec<NewRecord>) {
    for appended in log.produce(&topic.into(), records).await {
        appended.unwrap();
    }
}

/// Somebody who has registered, with a session.
///
/// # Panics
/// If the store refuses.
pub async fn user(store: &dyn Store) -> UserId {
    let (user_id, now) = (UserId::generate(), an_hour_ago());
    let phone_number = format!("+4179{:09}", rand::random_range(0..1_000_000_000));
    let kept = Item::new().with("user_id", format!("phone#{phone_number}")).with("owner_id", &user_id);
    let user = User {
        user_id: user_id.clone(),
        phone_number,
        phone_verified: true,
        display_name: "Ann".to_owned(),
        created_at: now,
        updated_at: now,
    };
    transact(store, vec![users::create_write(&user), Write::put("users", kept)]).await;
    let session = sessions::Session {
        session_id: SessionId::generate(),
        user_id: user_id.clone(),
        device_id: "dev_1".into(),
        device_name: None,
        refresh_token_hash: "hash".to_owned(),
        spent: Vec::new(),
        created_at: now,
        last_used_at: now,
        expires_at: now.plus(Duration::from_secs(7200)),
    };
    sessions::create(store, &session).await.unwrap();
    user_id
}

async fn chat(store: &dyn Store, log: &dyn Log, owner: &UserId, guest: &UserId) -> ChatId {
    let (chat_id, now) = (ChatId::generate(), an_hour_ago());
    let chat = Chat {
        chat_id: chat_id.clone(),
        chat_type: ChatType::Direct,
        name: None,
        created_by: owner.clone(),
        created_at: now,
        updated_at: now,
    };
    let member = |user: &UserId, role| {
        let (chat_id, user_id) = (chat_id.clone(), user.clone());
        let member = Membership { chat_id, user_id, role, joined_at: now, muted_until: None };
        chat_memberships::add_write(&member)
    };
    let writes = vec![
        chats::create_write(&chat),
        chat_counters::create_write(&ChatCounter::new(chat_id.clone(), now)),
        member(owner, Role::Owner),
        member(guest, Role::Member),
    ];
    transact(store, writes).await;
    let payload = CreatedChat {
        chat_id: chat_id.clone(),
        chat_type: ChatType::Direct,
        name: None,
        created_by: owner.clone(),
        initial_members: vec![owner.clone(), guest.clone()],
    };
    let event = ChatCreated { event_id: EventId::generate(), event_time: now, payload };
    append(log, chats_created::NAME, vec![event.encode()]).await;
    chat_id
}

fn message(chat: &ChatId, sender: &UserId, sequence: u64) -> Message {
    let message_id = MessageId::generate();
    Message {
        chat_id: chat.clone(),
        sequence,
        client_message_id: format!("c-{message_id}").into(),
        message_id,
        sender_id: sender.clone(),
        content: format!("message {sequence}").into(),
        content_type: "text/plain".into(),
        created_at: an_hour_ago(),
    }
}

fn key_of(message: &Message) -> IdempotencyKey {
    IdempotencyKey {
        chat_id: message.chat_id.clone(),
        client_message_id: message.client_message_id.clone(),
        message_id: message.message_id.clone(),
        sequence: message.sequence,
        sender_id: message.sender_id.clone(),
        body_hash: BodyHash::of(&message.content_type, &message.content),
        created_at: message.created_at,
    }
}
