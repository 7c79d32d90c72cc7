//! Every documented access pattern beside the function that serves it: what the function really asks of the store is
//! what the documentation says, no pattern is without a function, and no function without a pattern.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;

use futures::future::BoxFuture;

use super::chat_memberships::{Membership, Role};
use super::recording::{Answer, Asked, RecordingStore, Request};
use super::*;
use crate::model::{ChatId, ClientMessageId, SessionId, Timestamp, UserId};
use crate::store::{Consistency, Page};

/// Where a pattern is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    /// Data model and index strategy, section 4.
    QuickReference,
    /// Source of truth and dataflow, section 1: patterns that the quick reference leaves out.
    Dataflow,
    /// By us, since a stage or the edge needs it.
    Beyond,
}
use Decided::{Beyond, Dataflow, QuickReference};

type Row = (Decided, &'static str, &'static str, &'static [&'static str]);

/// Pattern, function, and what it asks: table or table/index, operation, consistency.
#[rustfmt::skip]
const PATTERNS: &[Row] = &[
    (QuickReference, "get user by id", "users::get", &["users GetItem eventual"]),
    (QuickReference, "find user by phone", "users::by_phone", &["users/phone_number-index Query eventual"]),
    (Beyond, "get several users", "users::get_many", &["users BatchGetItem eventual"]),
    (Beyond, "who registered a phone", "users::owner_of_phone", &["users GetItem strong"]),
    (Beyond, "sign in by phone", "users::credentials", &["users GetItem strong", "users GetItem strong"]),
    (Beyond, "verify a phone", "users::registered", &["users GetItem strong", "users GetItem strong"]),
    (Beyond, "make user", "users::create", &["users PutItem conditional"]),
    (Beyond, "edit user", "users::edit", &["users UpdateItem conditional"]),

    (QuickReference, "get chat metadata", "chats::get", &["chats GetItem eventual"]),
    (Beyond, "get several chats", "chats::get_many", &["chats BatchGetItem eventual"]),
    (Beyond, "rename chat", "chats::rename", &["chats UpdateItem conditional"]),

    (QuickReference, "list chat members", "chat_memberships::list", &["chat_memberships Query strong"]),
    (QuickReference, "list user's chats", "chat_memberships::of_user",
        &["chat_memberships/user_chats-index Query eventual"]),
    (QuickReference, "check user in chat", "chat_memberships::check", &["chat_memberships GetItem strong"]),
    (Beyond, "check user in several chats", "chat_memberships::check_many",
        &["chat_memberships BatchGetItem strong"]),
    (QuickReference, "add member", "chat_memberships::add", &["chat_memberships PutItem conditional"]),
    (QuickReference, "remove member", "chat_memberships::remove", &["chat_memberships DeleteItem"]),
    (Beyond, "set role", "chat_memberships::set_role", &["chat_memberships UpdateItem conditional"]),

    (QuickReference, "get messages after sequence", "messages::after", &["messages Query strong"]),
    (QuickReference, "get recent n messages", "messages::recent", &["messages Query strong backward"]),
    (QuickReference, "get specific message", "messages::get", &["messages GetItem strong"]),
    (Beyond, "get messages before sequence", "messages::before", &["messages Query strong backward"]),

    (QuickReference, "allocate sequence", "chat_counters::allocate",
        &["chat_counters UpdateItem conditional"]),
    (Beyond, "create counter", "chat_counters::create", &["chat_counters PutItem conditional"]),
    (Beyond, "get counter", "chat_counters::get", &["chat_counters GetItem strong"]),
    (Beyond, "get several counters", "chat_counters::get_many", &["chat_counters BatchGetItem eventual"]),

    (QuickReference, "check duplicate", "idempotency_keys::check", &["idempotency_keys GetItem eventual"]),
    (Dataflow, "insert key", "idempotency_keys::put", &["idempotency_keys PutItem conditional"]),
    (Beyond, "check duplicate after a refused write", "idempotency_keys::check_again",
        &["idempotency_keys GetItem strong"]),

    (QuickReference, "get delivery state", "delivery_state::get", &["delivery_state GetItem eventual"]),
    (QuickReference, "update watermark", "delivery_state::advance",
        &["delivery_state UpdateItem conditional"]),
    (Dataflow, "list delivery states of user", "delivery_state::of_user",
        &["delivery_state Query eventual"]),
    (Dataflow, "list unread chats", "delivery_state::unread_of_user",
        &["delivery_state Query eventual", "chat_counters BatchGetItem eventual"]),
    (Beyond, "get several delivery states", "delivery_state::get_many",
        &["delivery_state BatchGetItem eventual"]),

    (QuickReference, "validate session", "sessions::validate", &["sessions GetItem eventual"]),
    (QuickReference, "list user sessions", "sessions::of_user",
        &["sessions/user_sessions-index Query eventual"]),
    (Beyond, "validate several sessions", "sessions::validate_all", &["sessions BatchGetItem strong"]),
    (Beyond, "change session", "sessions::current", &["sessions GetItem strong"]),
    (Beyond, "list sessions of a device", "sessions::of_device",
        &["sessions/user_sessions-index Query eventual"]),
    (Dataflow, "revoke session", "sessions::revoke", &["sessions DeleteItem"]),
    (Dataflow, "revoke all sessions", "sessions::revoke_all",
        &["sessions/user_sessions-index Query eventual", "sessions BatchWriteItem"]),
    (Beyond, "create session", "sessions::create", &["sessions PutItem conditional"]),
    (Beyond, "rotate refresh token", "sessions::rotate", &["sessions UpdateItem conditional"]),

    (Beyond, "see who reads which shard", "stream_leases::of_group", &["stream_leases Query strong"]),
];

/// How many the quick reference has.
const IN_QUICK_REFERENCE: usize = 17;

const NOW: Timestamp = Timestamp::from_unix_millis(1_769_783_400_000);
const TEN: NonZeroU32 = NonZeroU32::new(10).unwrap();

fn chat() -> ChatId {
    "chat_1".into()
}

fn user() -> UserId {
    "user_1".into()
}

fn client_message() -> ClientMessageId {
    "c-1".into()
}

fn session() -> sessions::Session {
    sessions::Session {
        session_id: "sess_1".into(),
        user_id: user(),
        device_id: "dev_1".into(),
        device_name: None,
        refresh_token_hash: "hash".to_owned(),
        spent: Vec::new(),
        created_at: NOW,
        last_used_at: NOW,
        expires_at: NOW,
    }
}

fn a_user() -> users::User {
    users::User {
        user_id: user(),
        phone_number: "+41791234567".to_owned(),
        phone_verified: true,
        display_name: "Ada".to_owned(),
        created_at: NOW,
        updated_at: NOW,
    }
}

fn idempotency_key() -> idempotency_keys::IdempotencyKey {
    idempotency_keys::IdempotencyKey {
        chat_id: chat(),
        client_message_id: client_message(),
        message_id: "msg_1".into(),
        sequence: 1,
        sender_id: user(),
        body_hash: idempotency_keys::BodyHash::of("text/plain", "hello"),
        created_at: NOW,
    }
}

fn membership() -> Membership {
    Membership { chat_id: chat(), user_id: user(), role: Role::Member, joined_at: NOW, muted_until: None }
}

fn rotation() -> sessions::Rotation {
    sessions::Rotation { new_hash: "next".to_owned(), at: NOW, expires_at: NOW }
}

/// A page of the one item that a function goes on from.
fn page(item: crate::store::Item) -> Answer {
    Answer::Page(Page { items: vec![item], next: None })
}

type Call = for<'a> fn(&'a RecordingStore) -> BoxFuture<'a, ()>;

/// The functions by name, each with something to ask for. Answers do not matter here, questions do.
macro_rules! calls {
    ($($table:ident::$function:ident |$store:ident| $call:expr;)*) => {
        &[$((
            concat!(stringify!($table), "::", stringify!($function)),
            |$store| Box::pin(async move { let _ = $call.await; }),
        )),*]
    };
}

#[rustfmt::skip]
const CALLS: &[(&str, Call)] = calls! {
    users::get |store| users::get(store, &user());
    users::by_phone |store| users::by_phone(store, "+41791234567");
    users::get_many |store| users::get_many(store, &[user()]);
    users::owner_of_phone |store| users::owner_of_phone(store, "+41791234567");
    users::credentials |store| users::credentials(store, "+41791234567");
    users::registered |store| users::registered(store, "+41791234567");
    users::create |store| users::create(store, &a_user());
    users::edit |store| users::edit(store, &user(), users::Edit::PhoneVerified, NOW);
    chats::get |store| chats::get(store, &chat());
    chats::get_many |store| chats::get_many(store, &[chat()]);
    chats::rename |store| chats::rename(store, &chat(), "Team", NOW);
    chat_memberships::list |store| chat_memberships::list(store, &chat(), None, None);
    chat_memberships::of_user |store| chat_memberships::of_user(store, &user(), None, None);
    chat_memberships::check |store| chat_memberships::check(store, &chat(), &user());
    chat_memberships::check_many |store| chat_memberships::check_many(store, &[chat()], &user());
    chat_memberships::add |store| chat_memberships::add(store, &membership());
    chat_memberships::remove |store| chat_memberships::remove(store, &chat(), &user());
    chat_memberships::set_role |store| chat_memberships::set_role(store, &chat(), &user(), Role::Admin);
    messages::after |store| messages::after(store, &chat(), 5, TEN);
    messages::recent |store| messages::recent(store, &chat(), TEN);
    messages::before |store| messages::before(store, &chat(), 5, TEN);
    messages::get |store| messages::get(store, &chat(), 5, Consistency::Strong);
    chat_counters::allocate |store| chat_counters::allocate(store, &chat(), NonZeroU32::MIN, NOW);
    chat_counters::create |store| chat_counters::create(store, &chat_counters::ChatCounter::new(chat(), NOW));
    chat_counters::get |store| chat_counters::get(store, &chat(), Consistency::Strong);
    chat_counters::get_many |store| chat_counters::get_many(store, &[chat()]);
    idempotency_keys::check |store| idempotency_keys::check(store, &chat(), &client_message());
    idempotency_keys::check_again |store| idempotency_keys::check_again(store, &chat(), &client_message());
    idempotency_keys::put |store| idempotency_keys::put(store, &idempotency_key());
    delivery_state::get |store| delivery_state::get(store, &user(), &chat());
    delivery_state::get_many |store| delivery_state::get_many(store, &user(), &[chat()]);
    delivery_state::advance |store| delivery_state::advance(store, &user(), &chat(), 5, NOW);
    delivery_state::of_user |store| delivery_state::of_user(store, &user(), None, None);
    delivery_state::unread_of_user |store| delivery_state::unread_of_user(store, &user(), None, None);
    sessions::validate |store| sessions::validate(store, &SessionId::from("sess_1"), NOW);
    sessions::validate_all |store| sessions::validate_all(store, &[SessionId::from("sess_1")], NOW);
    sessions::of_user |store| sessions::of_user(store, &user(), None, None);
    sessions::current |store| sessions::current(store, &SessionId::from("sess_1"), NOW);
    sessions::of_device |store| sessions::of_device(store, &user(), &"dev_1".into());
    sessions::create |store| sessions::create(store, &session());
    sessions::rotate |store| sessions::rotate(store, &session(), &rotation());
    sessions::revoke |store| sessions::revoke(store, &SessionId::from("sess_1"));
    sessions::revoke_all |store| sessions::revoke_all(store, &user());
    stream_leases::of_group |store| stream_leases::of_group(store, "fanout");
};

/// What a function must be answered with so that it asks its second question.
fn store_for(function: &str) -> RecordingStore {
    let state = delivery_state::DeliveryState {
        user_id: user(),
        chat_id: chat(),
        last_acked_sequence: 1,
        read_sequence: 0,
        updated_at: NOW,
    };
    RecordingStore::answering(match function {
        "users::credentials" | "users::registered" => {
            let reserved = crate::store::Item::new().with("user_id", "phone#+41791234567");
            vec![Answer::Item(Some(reserved.with("owner_id", &user())))]
        }
        "sessions::revoke_all" => vec![page(session().to_item())],
        "delivery_state::unread_of_user" => vec![page(state.to_item())],
        _ => Vec::new(),
    })
}

fn in_words(asked: &Asked) -> String {
    let index = asked.index.as_ref().map(|index| format!("/{index}")).unwrap_or_default();
    let mut words = format!("{}{index} {}", asked.table, asked.operation);
    match asked.consistency {
        Some(Consistency::Strong) => words += " strong",
        Some(Consistency::Eventual) => words += " eventual",
        None => {}
    }
    if asked.is_conditional() {
        words += " conditional";
    }
    if asked.is_backward() {
        words += " backward";
    }
    words
}

#[tokio::test]
async fn every_pattern_is_asked_as_documented() {
    let calls: BTreeMap<_, _> = CALLS.iter().copied().collect();
    assert_eq!(calls.len(), PATTERNS.len(), "each function once, in both lists");
    for (_, pattern, function, expected) in PATTERNS {
        let call = calls.get(function).unwrap_or_else(|| panic!("'{pattern}': nothing calls {function}"));
        let store = store_for(function);
        call(&store).await;
        let asked: Vec<_> = store.asked().iter().map(in_words).collect();
        assert_eq!(asked, *expected, "'{pattern}', {function}");
    }
    let documented = PATTERNS.iter().filter(|(decided, ..)| *decided == QuickReference).count();
    assert_eq!(documented, IN_QUICK_REFERENCE);
}

/// Queries on keys that the table or index does not have would fail on a real store; this fails sooner.
#[tokio::test]
async fn every_query_names_the_keys_of_its_table_or_index() {
    for (function, call) in CALLS {
        let store = store_for(function);
        call(&store).await;
        for asked in store.asked() {
            let Request::Query(query) = &asked.request else { continue };
            let table = TABLES.into_iter().find(|table| table.name == query.table).unwrap();
            let (partition, sort) = match &query.index {
                None => (&table.partition, &table.sort),
                Some(index) => {
                    let index = table.index(index).unwrap_or_else(|| panic!("{function}: no index {index}"));
                    (&index.partition, &index.sort)
                }
            };
            assert_eq!(query.partition.0, partition.name, "{function}");
            assert!(partition.kind.fits(&query.partition.1), "{function}");
            if let Some(range) = &query.range {
                assert_eq!(Some(&range.attribute), sort.as_ref().map(|sort| &sort.name), "{function}");
            }
        }
    }
}

/// Reads the sources: a function that asks a store and is not in the list above is found, and so is a scan.
#[test]
fn every_function_is_a_documented_pattern() {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("src/model/tables");
    let mut found = BTreeSet::new();
    for table in TABLES {
        let source = std::fs::read_to_string(folder.join(format!("{}.rs", table.name))).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        assert!(!code.contains("Scan"), "{}: only 'dynamo-scan' scans", table.name);
        for line in code.lines() {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                let name = rest.split('(').next().unwrap();
                found.insert(format!("{}::{name}", table.name));
            }
        }
    }
    let documented: BTreeSet<_> = PATTERNS.iter().map(|(_, _, function, _)| (*function).to_owned()).collect();
    assert_eq!(found, documented);
}
