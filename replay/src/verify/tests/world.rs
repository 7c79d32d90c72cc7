//! A deployment on the embedded engine, written through the model's own functions, and ways to damage it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use courant_connectors::embedded::{Engine, Options as EngineOptions};
use courant_connectors::log::{AdminLog, NewRecord, WriteLog};
use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType, Roster};
use courant_connectors::model::tables::idempotency_keys::{self, BodyHash, IdempotencyKey};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::sessions::{self, Session};
use courant_connectors::model::tables::users::{self, User};
use courant_connectors::model::tables::{TABLES, delivery_state};
use courant_connectors::model::topics::chats_created::CreatedChat;
use courant_connectors::model::topics::memberships_changed::{ChangeType, ChangedMembership};
use courant_connectors::model::topics::{
    self, ChatCreated, Event, MembershipChanged, MessagePersisted, Payload,
};
use courant_connectors::model::{ChatId, EventId, MessageId, SessionId, Timestamp, UserId};
use courant_connectors::store::{AdminStore, Durability, Item, Returning, Transaction, Write, WriteStore};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::lies::Lies;
use crate::verify::context::{before, now};
use crate::verify::{Deployment, Options, Report, verify};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    /// What the store and the log are made to say beside what is in them.
    pub(crate) lies: Arc<Lies>,
    numbers: AtomicU32,
    _folder: TempDir,
}

/// Short, since an index that is wrong is waited for this long.
pub(crate) fn options() -> Options {
    Options { grace: Duration::from_millis(20), ..Options::default() }
}

impl World {
    pub(crate) async fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), EngineOptions::default()).await.unwrap();
        for schema in TABLES {
            engine.create_table(schema).await.unwrap();
        }
        for topic in topics::all() {
            engine.create_topic(&topic).await.unwrap();
        }
        let lies = Arc::new(Lies::about(Arc::clone(&engine)));
        Self { engine, lies, numbers: AtomicU32::new(0), _folder: folder }
    }

    /// With everything that a deployment in order may have: gaps, copies of events, messages whose keys have ended.
    pub(crate) async fn healthy() -> Self {
        let world = Self::empty().await;
        let (ann, ben, cem) = (world.user().await, world.user().await, world.user().await);
        let team = world.chat(ChatType::Group, &[&ann, &ben, &cem]).await;
        let pair = world.chat(ChatType::Direct, &[&ann, &ben]).await;
        world.chat(ChatType::Group, &[&cem]).await;
        for (chat, sender) in [(&team, &ann), (&pair, &ben), (&team, &cem), (&team, &ann)] {
            world.send(chat, sender).await;
        }
        world.allocate(&team).await; // and never used
        let late = world.send(&team, &ben).await;
        world.publish(&late).await; // once more
        let mut old = world.message(&pair, &ann).await;
        old.created_at = before(now(), 8 * DAY);
        world.store(messages::put_write(&old)).await;
        world.publish(&old).await;
        world.count_members(&pair, Roster { members: 2, owners: 1 }).await;
        for (user, sequence) in [(&ann, 5), (&ben, 2)] {
            delivery_state::advance(&*world.engine, user, &team, sequence, now()).await.unwrap();
        }
        world.session(&ann).await;
        world
    }

    pub(crate) fn deployment(&self) -> Deployment {
        let lies = &self.lies;
        Deployment { store: Arc::clone(lies) as _, scan: Arc::clone(lies) as _, log: Arc::clone(lies) as _ }
    }

    pub(crate) async fn verify(&self, options: Options) -> Report {
        let lies = Arc::clone(&self.lies);
        let arm = move |progress: crate::verify::Progress| {
            if progress.phase == "second look" {
                lies.begin_second_look();
            }
        };
        verify(self.deployment(), options, arm, CancellationToken::new()).await.unwrap()
    }

    /// How much was found, by check.
    pub(crate) async fn found(&self, options: Options) -> BTreeMap<String, u64> {
        found(&self.verify(options).await)
    }

    pub(crate) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) async fn store(&self, write: Write) {
        self.engine.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
    }

    pub(crate) async fn put(&self, table: &'static str, item: Item) {
        self.store(Write::put(table, item)).await;
    }

    pub(crate) async fn user(&self) -> UserId {
        let user_id = UserId::generate();
        let user = User {
            user_id: user_id.clone(),
            phone_number: format!("+4179{:07}", self.number()),
            phone_verified: true,
            display_name: "Ann".to_owned(),
            created_at: now(),
            updated_at: now(),
        };
        let number = number_kept_for(&user.phone_number, &user_id);
        let writes = vec![users::create_write(&user), Write::put("users", number)];
        self.engine.transact(Transaction { writes, token: None }).await.unwrap();
        user_id
    }

    /// A chat of an hour ago; the first member owns it.
    pub(crate) async fn chat(&self, chat_type: ChatType, members: &[&UserId]) -> ChatId {
        let (chat_id, then) = (ChatId::generate(), before(now(), HOUR));
        let chat = Chat {
            chat_id: chat_id.clone(),
            chat_type,
            name: (chat_type == ChatType::Group).then(|| "Team".to_owned()),
            created_by: members[0].clone(),
            created_at: then,
            updated_at: then,
        };
        let mut writes = vec![
            chats::create_write(&chat),
            chat_counters::create_write(&ChatCounter::new(chat_id.clone(), then)),
        ];
        writes.extend(
            members.iter().zip([Role::Owner].into_iter().chain(std::iter::repeat(Role::Member))).map(
                |(user, role)| {
                    chat_memberships::add_write(&Membership { role, ..membership(&chat_id, user) })
                },
            ),
        );
        self.engine.transact(Transaction { writes, token: None }).await.unwrap();
        let payload = CreatedChat {
            chat_id: chat_id.clone(),
            chat_type,
            name: chat.name.clone(),
            created_by: members[0].clone(),
            initial_members: members.iter().map(|user| (*user).clone()).collect(),
        };
        self.tell(
            topics::chats_created::NAME,
            &ChatCreated { event_id: EventId::generate(), event_time: then, payload },
        )
        .await;
        chat_id
    }

    /// A group of somebody new, for damage that is not to touch anything else.
    pub(crate) async fn own_chat(&self) -> (ChatId, UserId) {
        let user = self.user().await;
        (self.chat(ChatType::Group, &[&user]).await, user)
    }

    /// A large group that was begun, with so many of its members, and not made.
    pub(crate) async fn begin_group(&self, at: Timestamp, members: usize) -> Chat {
        let chat = Chat {
            chat_id: ChatId::generate(),
            chat_type: ChatType::Group,
            name: Some("Everybody".to_owned()),
            created_by: self.user().await,
            created_at: at,
            updated_at: at,
        };
        self.store(chats::begin_write(&chat)).await;
        self.stage_members(&chat, members).await;
        chat
    }

    pub(crate) async fn stage_members(&self, chat: &Chat, members: usize) {
        for number in 0..members {
            let user = if number == 0 { chat.created_by.clone() } else { self.user().await };
            let member = Membership { joined_at: chat.created_at, ..membership(&chat.chat_id, &user) };
            self.store(chat_memberships::stage_write(&member)).await;
        }
    }

    /// Writes down how many are in a chat.
    pub(crate) async fn count_members(&self, chat: &ChatId, roster: Roster) {
        self.store(chats::count_write(chat, roster)).await;
    }

    pub(crate) async fn allocate(&self, chat: &ChatId) -> u64 {
        *chat_counters::allocate(&*self.engine, chat, NonZeroU32::MIN, now()).await.unwrap().start()
    }

    /// The next message of a chat, of an hour ago, not stored yet.
    pub(crate) async fn message(&self, chat: &ChatId, sender: &UserId) -> Message {
        message(chat, sender, self.allocate(chat).await, before(now(), HOUR))
    }

    pub(crate) async fn store_message(&self, message: &Message) {
        let writes = vec![messages::put_write(message), idempotency_keys::put_write(&key_of(message))];
        self.engine.transact(Transaction { writes, token: None }).await.unwrap();
    }

    pub(crate) async fn publish(&self, message: &Message) {
        self.tell(topics::messages_persisted::NAME, &MessagePersisted::of(message.clone())).await;
    }

    pub(crate) async fn send(&self, chat: &ChatId, sender: &UserId) -> Message {
        let message = self.message(chat, sender).await;
        self.store_message(&message).await;
        self.publish(&message).await;
        message
    }

    pub(crate) async fn tell<P: Payload>(&self, topic: &str, event: &Event<P>) {
        self.append(topic, event.encode()).await;
    }

    pub(crate) async fn append(&self, topic: &str, record: NewRecord) {
        for appended in self.engine.produce(&topic.into(), vec![record]).await {
            appended.unwrap();
        }
    }

    pub(crate) async fn change_member(&self, chat: &ChatId, user: &UserId, change_type: ChangeType) {
        match change_type {
            ChangeType::Added => {
                chat_memberships::add(&*self.engine, &membership(chat, user)).await.map(drop).unwrap();
            }
            ChangeType::Removed => {
                chat_memberships::remove(&*self.engine, chat, user).await.map(drop).unwrap();
            }
            ChangeType::RoleChanged => {
                let changed = chat_memberships::set_role(&*self.engine, chat, user, Role::Admin).await;
                changed.map(drop).unwrap();
            }
        }
        let payload = ChangedMembership {
            chat_id: chat.clone(),
            user_id: user.clone(),
            change_type,
            role: Role::Member,
            changed_by: user.clone(),
        };
        let event = MembershipChanged { event_id: EventId::generate(), event_time: now(), payload };
        self.tell(topics::memberships_changed::NAME, &event).await;
    }

    pub(crate) async fn session(&self, user: &UserId) -> SessionId {
        let session_id = SessionId::generate();
        let session = Session {
            session_id: session_id.clone(),
            user_id: user.clone(),
            device_id: "dev_1".into(),
            device_name: None,
            refresh_token_hash: "hash".to_owned(),
            spent: Vec::new(),
            created_at: now(),
            last_used_at: now(),
            expires_at: now().plus(DAY),
        };
        sessions::create(&*self.engine, &session).await.unwrap();
        session_id
    }
}

pub(crate) fn found(report: &Report) -> BTreeMap<String, u64> {
    let broken = report.checks.iter().filter(|check| check.found > 0);
    broken.map(|check| (check.id.clone(), check.found)).collect()
}

/// The item that keeps a phone number for a user.
pub(crate) fn number_kept_for(phone_number: &str, user: &UserId) -> Item {
    let id = format!("phone#{phone_number}");
    Item::new().with("user_id", id).with("owner_id", user).with("created_at", now())
}

pub(crate) fn membership(chat: &ChatId, user: &UserId) -> Membership {
    Membership {
        chat_id: chat.clone(),
        user_id: user.clone(),
        role: Role::Member,
        joined_at: before(now(), HOUR),
        muted_until: None,
    }
}

pub(crate) fn message(chat: &ChatId, sender: &UserId, sequence: u64, created_at: Timestamp) -> Message {
    let message_id = MessageId::generate();
    Message {
        chat_id: chat.clone(),
        sequence,
        client_message_id: format!("c-{message_id}").into(),
        message_id,
        sender_id: sender.clone(),
        content: format!("message {sequence}").into(),
        content_type: "text/plain".into(),
        created_at,
    }
}

pub(crate) fn key_of(message: &Message) -> IdempotencyKey {
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
