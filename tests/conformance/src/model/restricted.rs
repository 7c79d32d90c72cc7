//! Handles that cannot do more than was granted, in front of a store that would.

use std::sync::Arc;

use courant_connectors::capability::{Access, Grant, RestrictedStore};
use courant_connectors::model::tables::chat_counters::{self, AllocateError, ChatCounter};
use courant_connectors::model::tables::{
    chat_memberships, chats, delivery_state, idempotency_keys, messages, sessions, users,
};
use courant_connectors::model::{ChatId, SessionId, UserId};
use courant_connectors::store::{
    AdminStore as _, ChangeStream as _, Consistency, Scan, ScanStore as _, Segment, ShardRead, ShardStart,
    Store, StoreError, TableSchema, Transaction, WriteStore as _,
};

use super::counting::CountingStore;
use super::records::{count, key_of, new_membership, new_message, now, put_message};

/// What persisting messages takes: who may send, what was sent, and the next sequence.
fn durability() -> Grant {
    Grant::nothing()
        .table("chat_memberships", Access::Read)
        .table("idempotency_keys", Access::Read)
        .table("idempotency_keys", Access::Write)
        .table("chat_counters", Access::Write)
        .table("messages", Access::Write)
}

/// What delivering them takes. It never writes upstream.
fn fanout() -> Grant {
    Grant::nothing().table("chat_memberships", Access::Read)
}

fn restricted(store: &Arc<dyn Store>, grant: Grant) -> (RestrictedStore, Arc<CountingStore>) {
    let counting = CountingStore::before(Arc::clone(store));
    (RestrictedStore::new(Arc::clone(&counting) as Arc<_>, Arc::new(grant)), counting)
}

/// Asserts which access to which table was refused.
macro_rules! is_refused {
    ($answer:expr, $verb:literal $table:literal) => {
        match $answer {
            Err(StoreError::NotAllowed { access, name }) => {
                assert_eq!((access, name.as_str()), ($verb, $table));
            }
            other => panic!("expected that to {} {} is refused, got {other:?}", $verb, $table),
        }
    };
}

fn whole(schema: &TableSchema) -> Scan {
    Scan {
        table: schema.name.clone(),
        segment: Segment::WHOLE,
        limit: Some(1),
        start_after: None,
        consistency: Consistency::Eventual,
    }
}

pub async fn a_grant_is_enough_for_its_work(store: Arc<dyn Store>) {
    let (chat, sender) = (ChatId::generate(), UserId::generate());
    chat_memberships::add(&*store, &new_membership(&chat, &sender)).await.unwrap();
    chat_counters::create(&*store, &ChatCounter::new(chat.clone(), now())).await.unwrap();
    let (handle, asked) = restricted(&store, durability());
    assert!(chat_memberships::check(&handle, &chat, &sender).await.unwrap().is_some());
    let range = chat_counters::allocate(&handle, &chat, count(1), now()).await.unwrap();
    let message = new_message(&chat, *range.start());
    let known = idempotency_keys::check(&handle, &chat, &message.client_message_id).await.unwrap();
    assert_eq!(known, None);
    let writes = vec![idempotency_keys::put_write(&key_of(&message)), messages::put_write(&message)];
    handle.transact(Transaction { writes, token: None }).await.unwrap();
    assert_eq!(asked.asked(), 4);
    let stored = messages::get(&*store, &chat, message.sequence, Consistency::Strong).await.unwrap();
    assert_eq!(stored, Some(message));
}

pub async fn fanout_cannot_write_anything(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    chat_counters::create(&*store, &ChatCounter::new(chat.clone(), now())).await.unwrap();
    let (handle, asked) = restricted(&store, fanout());
    let message = new_message(&chat, 1);
    is_refused!(put_message(&handle, &message).await, "write" "messages");
    is_refused!(idempotency_keys::put(&handle, &key_of(&message)).await, "write" "idempotency_keys");
    let joined = chat_memberships::add(&handle, &new_membership(&chat, &user)).await;
    is_refused!(joined, "write" "chat_memberships");
    is_refused!(chat_memberships::remove(&handle, &chat, &user).await, "write" "chat_memberships");
    is_refused!(delivery_state::advance(&handle, &user, &chat, 1, now()).await, "write" "delivery_state");
    is_refused!(chats::rename(&handle, &chat, "Crew", now()).await, "write" "chats");
    is_refused!(users::edit(&handle, &user, users::Edit::PhoneVerified, now()).await, "write" "users");
    is_refused!(sessions::revoke(&handle, &SessionId::generate()).await, "write" "sessions");
    match chat_counters::allocate(&handle, &chat, count(1), now()).await {
        Err(AllocateError::Store(error)) => is_refused!(Err::<(), _>(error), "write" "chat_counters"),
        other => panic!("{other:?}"),
    }
    is_refused!(handle.drop_table(&messages::SCHEMA.name).await, "administer" "messages");
    assert_eq!(asked.asked(), 0, "none of it came as far as the store");
    assert_eq!(chat_memberships::list(&handle, &chat, None, None).await.unwrap().items, []);
    assert_eq!(asked.asked(), 1);
}

pub async fn what_was_not_granted_cannot_be_read(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let (handle, asked) = restricted(&store, durability());
    is_refused!(messages::after(&handle, &chat, 0, count(1)).await, "read" "messages");
    is_refused!(messages::recent(&handle, &chat, count(1)).await, "read" "messages");
    is_refused!(messages::get(&handle, &chat, 1, Consistency::Strong).await, "read" "messages");
    is_refused!(chat_counters::get_many(&handle, std::slice::from_ref(&chat)).await, "read" "chat_counters");
    is_refused!(delivery_state::of_user(&handle, &user, None, None).await, "read" "delivery_state");
    is_refused!(users::by_phone(&handle, "+41791234567").await, "read" "users");
    is_refused!(sessions::of_user(&handle, &user, None, None).await, "read" "sessions");
    is_refused!(chats::get(&handle, &chat).await, "read" "chats");
    let scanned = handle.scan(whole(&chat_memberships::SCHEMA)).await;
    is_refused!(scanned, "scan" "chat_memberships");
    assert_eq!(asked.asked(), 0, "none of it came as far as the store");
}

/// Who may write messages and not their keys writes neither.
pub async fn one_table_outside_the_grant_refuses_the_transaction(store: Arc<dyn Store>) {
    let (handle, asked) = restricted(&store, Grant::nothing().table("messages", Access::Write));
    let message = new_message(&ChatId::generate(), 1);
    let writes = vec![messages::put_write(&message), idempotency_keys::put_write(&key_of(&message))];
    let refused = handle.transact(Transaction { writes, token: None }).await;
    is_refused!(refused, "write" "idempotency_keys");
    assert_eq!(asked.asked(), 0);
    let stored = messages::get(&*store, &message.chat_id, 1, Consistency::Strong).await.unwrap();
    assert_eq!(stored, None);
}

/// How many changes of messages there are to read at once.
async fn changes(handle: &RestrictedStore) -> Result<usize, StoreError> {
    let (table, mut found) = (&messages::SCHEMA.name, 0);
    for shard in handle.shards(table).await? {
        let mut reader = handle.open_shard(table, &shard.id, ShardStart::Oldest).await?;
        if let ShardRead::Changes(changes) = reader.read(10).await? {
            found += changes.len();
        }
    }
    Ok(found)
}

/// Reading everything is not following, and following is not reading.
pub async fn following_is_granted_by_itself(store: Arc<dyn Store>) {
    let message = new_message(&ChatId::generate(), 1);
    put_message(&*store, &message).await.unwrap();
    let reader = Grant::nothing().table("messages", Access::Read).table("messages", Access::Scan);
    let (handle, asked) = restricted(&store, reader);
    is_refused!(changes(&handle).await, "follow the changes of" "messages");
    assert_eq!(asked.asked(), 0);
    let (handle, asked) = restricted(&store, Grant::nothing().table("messages", Access::Stream));
    assert!(changes(&handle).await.unwrap() > 0);
    let before = asked.asked();
    is_refused!(messages::recent(&handle, &message.chat_id, count(1)).await, "read" "messages");
    is_refused!(handle.scan(whole(&messages::SCHEMA)).await, "scan" "messages");
    assert_eq!(asked.asked(), before);
}
