//! New chats: all of them or nothing, whatever fails on the way.

use courant_connectors::model::commands::Answer;
use courant_connectors::store::{Consistency, StoreError};
use serde_json::json;
use tokio::sync::Barrier;

use super::*;
use crate::testing::faulty::Fault;

/// The writes that a group of a thousand takes: its beginning, ten parts and its end.
const WRITES: u32 = 12;

fn thousand(chat: &ChatId) -> Record {
    group(chat, (1..1000).map(user).collect())
}

fn down() -> Fault {
    Fault::Refused(StoreError::Unavailable("connection refused".to_owned()))
}

/// Nothing of a chat can be seen or used: those who look at a user's chats leave out what has no chat.
async fn assert_absent(world: &World, chat: &ChatId) {
    let store = &*world.embedded.store;
    assert_eq!(chats::get(store, chat).await.unwrap(), None);
    assert_eq!(chats::get_many(store, std::slice::from_ref(chat)).await.unwrap(), [None]);
    assert_eq!(chat_counters::get(store, chat, Consistency::Strong).await.unwrap(), None);
    for asked in [rename(chat, 0, "Mine"), add(chat, 0, 1, Role::Owner), remove(chat, 0, 0)] {
        assert_eq!(world.ask(asked).await.code(), Some(Code::NotFound));
    }
}

async fn assert_whole(world: &World, chat: &ChatId, told: &Told) {
    let Answer::Chat(answer) = told.answer() else { panic!("{told:?}") };
    assert_eq!(answer.members.len(), 1000);
    let members = world.members(chat).await;
    assert_eq!(members.len(), 1000);
    assert_eq!(members.iter().filter(|(_, role)| *role == Role::Owner).count(), 1);
    world.assert_counted(chat).await;
    let stored = chats::get(&*world.embedded.store, chat).await.unwrap().unwrap();
    assert_eq!(stored.created_at, answer.created_at);
    let counter = chat_counters::get(&*world.embedded.store, chat, Consistency::Strong).await.unwrap();
    assert_eq!(counter.unwrap().sequence_counter, 0);
    assert_eq!(told.event()["payload"]["initial_members"].as_array().unwrap().len(), 1000);
}

#[tokio::test]
async fn a_new_chat_is_told_as_documented() {
    let world = World::of(3).await;
    let chat = ChatId::generate();
    let told = world.ask(group(&chat, vec![user(2), user(1)])).await;
    let Told::Happened(Answer::Chat(answer), event, key, output) = told else { panic!("{told:?}") };
    assert_eq!((key.as_str(), output), (chat.as_str(), CREATED));
    let roles: Vec<_> = answer.members.iter().map(|member| (member.user_id.as_str(), member.role)).collect();
    assert_eq!(roles, [("user_0", Role::Owner), ("user_2", Role::Member), ("user_1", Role::Member)]);
    let expected = json!({
        "event_type": "ChatCreated",
        "event_id": format!("evt_{}", chat.as_str().strip_prefix("chat_").unwrap()),
        "event_time": answer.created_at,
        "partition_key": chat,
        "payload": {
            "chat_id": chat,
            "chat_type": "group",
            "name": "Team",
            "created_by": "user_0",
            "initial_members": ["user_0", "user_2", "user_1"],
        },
    });
    assert_eq!(event, expected);
    world.assert_counted(&chat).await;
    assert_eq!(world.embedded.faulty.writes(), 1, "a small chat is one transaction");
}

#[tokio::test]
async fn what_is_no_chat_is_refused_and_nothing_written() {
    let world = World::of(2).await;
    let ask = async |chat_type, name: Option<&str>, members: Vec<UserId>| {
        let command = create(&ChatId::generate(), chat_type, name, members);
        world.ask(record(Command::CreateChat(command))).await.code()
    };
    let bad = Some(Code::BadRequest);
    assert_eq!(ask(ChatType::Direct, None, vec![]).await, bad);
    assert_eq!(ask(ChatType::Direct, None, vec![user(0)]).await, bad, "with oneself");
    assert_eq!(ask(ChatType::Direct, None, vec![user(1), user(2)]).await, bad);
    assert_eq!(ask(ChatType::Direct, Some("Us"), vec![user(1)]).await, bad);
    assert_eq!(ask(ChatType::Group, None, vec![user(1), user(1)]).await, bad);
    assert_eq!(ask(ChatType::Group, Some(" "), vec![user(1)]).await, bad);
    assert_eq!(ask(ChatType::Group, None, (1..=1000).map(user).collect()).await, bad, "a thousand and one");
    assert_eq!(ask(ChatType::Group, None, vec![user(1), user(7)]).await, Some(Code::NotFound));
    let number = UserId::from("phone#+41791234567");
    assert_eq!(ask(ChatType::Group, None, vec![number]).await, Some(Code::NotFound));
    assert_eq!(world.embedded.faulty.writes(), 0);
    assert_eq!(ask(ChatType::Group, None, vec![]).await, None, "a group of one");
    assert_eq!(ask(ChatType::Direct, None, vec![user(1)]).await, None);
}

/// As many as a transaction holds beside the chat and its counter, and one more.
#[tokio::test]
async fn what_fits_into_a_transaction_is_one() {
    let world = World::of(100).await;
    for (people, writes) in [(98, 1), (99, 3)] {
        let before = world.embedded.faulty.writes();
        let chat = ChatId::generate();
        assert!(matches!(world.ask(group(&chat, (1..people).map(user).collect())).await, Told::Happened(..)));
        assert_eq!(world.embedded.faulty.writes() - before, writes, "{people} people");
        assert_eq!(world.members(&chat).await.len(), people);
        world.assert_counted(&chat).await;
    }
}

#[tokio::test]
async fn a_thousand_are_made_or_nobody() {
    let world = World::of(1000).await;
    let chat = ChatId::generate();
    let told = world.ask(thousand(&chat)).await;
    assert_whole(&world, &chat, &told).await;
    assert_eq!(world.embedded.faulty.writes(), WRITES);
    for failing in [1, 2, 6, WRITES - 1, WRITES] {
        let chat = ChatId::generate();
        world.embedded.faulty.nth(failing, down());
        let told = world.ask(thousand(&chat)).await;
        assert!(told.has_to_wait(), "write {failing}: {told:?}");
        assert_absent(&world, &chat).await;
        let told = world.ask(thousand(&chat)).await;
        assert_whole(&world, &chat, &told).await;
    }
}

/// What was done is not known, at any step: carrying the command out again comes to the same.
#[tokio::test]
async fn a_thousand_are_made_once_however_often_it_is_tried() {
    let world = World::of(1000).await;
    for unheard in [1, 2, WRITES - 1, WRITES] {
        let chat = ChatId::generate();
        world.embedded.faulty.nth(unheard, Fault::Unheard);
        assert!(world.ask(thousand(&chat)).await.has_to_wait());
        if unheard < WRITES {
            assert_absent(&world, &chat).await;
        }
        let told = world.ask(thousand(&chat)).await;
        assert_whole(&world, &chat, &told).await;
        assert_eq!(world.ask(thousand(&chat)).await, told);
    }
}

/// A store that will never take it: nothing is left behind.
#[tokio::test]
async fn what_will_never_be_is_removed() {
    let world = World::of(1000).await;
    for failing in [2, 7, WRITES] {
        let chat = ChatId::generate();
        let never = StoreError::Invalid("an item is too large".to_owned());
        world.embedded.faulty.nth(failing, Fault::Refused(never));
        let told = world.ask(thousand(&chat)).await;
        assert!(matches!(told, Told::Failed("reject", _)), "{told:?}");
        assert_eq!(world.members(&chat).await, []);
        assert_eq!(world.state(&chat).await, None);
        assert_absent(&world, &chat).await;
    }
}

/// The same command in two processes: one gives it up while the other goes on.
#[tokio::test]
async fn two_who_make_the_same_group_make_one() {
    let world = World::of(1000).await;
    let other_process = world.embedded.stage(&SPEC);
    let chat = ChatId::generate();
    let (one, two) = tokio::join!(world.ask(thousand(&chat)), carry(&*other_process, thousand(&chat)));
    assert_eq!(one, two);
    assert_whole(&world, &chat, &one).await;

    // The first waits before its last write until the second has come to an end, which is to give the group up.
    let chat = ChatId::generate();
    let meeting = Arc::new(Barrier::new(2));
    world.embedded.faulty.nth(WRITES, Fault::Meets(Arc::clone(&meeting)));
    let second = async {
        while world.state(&chat).await.is_none() || world.members(&chat).await.len() < 902 {
            tokio::task::yield_now().await;
        }
        let abandoned = Transaction { writes: vec![chats::abandon_write(&chat)], token: None };
        world.embedded.store.transact(abandoned).await.unwrap();
        for n in 98..1000 {
            chat_memberships::remove(&*world.embedded.store, &chat, &user(n)).await.unwrap();
        }
        meeting.wait().await;
    };
    let (told, ()) = tokio::join!(world.ask(thousand(&chat)), second);
    assert_whole(&world, &chat, &told).await;
}

/// One process stands still in the middle, another makes the group, and somebody is removed; then the first goes on.
#[tokio::test]
async fn what_comes_late_brings_nobody_back() {
    let world = World::of(1000).await;
    let other_process = world.embedded.stage(&SPEC);
    let chat = ChatId::generate();
    let meeting = Arc::new(Barrier::new(2));
    // The fifth write is the fourth part, in which `user_400` is.
    world.embedded.faulty.nth(5, Fault::Meets(Arc::clone(&meeting)));
    let others = async {
        while world.embedded.faulty.writes() < 5 {
            tokio::task::yield_now().await;
        }
        let told = carry(&*other_process, thousand(&chat)).await;
        assert!(matches!(carry(&*other_process, remove(&chat, 0, 400)).await, Told::Happened(..)));
        meeting.wait().await;
        told
    };
    let (late, told) = tokio::join!(world.ask(thousand(&chat)), others);
    assert_eq!(late, told, "answered as then");
    let members = world.members(&chat).await;
    assert_eq!(members.len(), 999);
    assert!(!members.iter().any(|(member, _)| member == "user_400"));
    world.assert_counted(&chat).await;
}

#[tokio::test]
async fn the_same_command_again_is_answered_as_then() {
    let world = World::of(100).await;
    for people in [3, 100] {
        let chat = ChatId::generate();
        let command = || group(&chat, (1..people).map(user).collect());
        let told = world.ask(command()).await;
        assert!(matches!(world.ask(rename(&chat, 0, "Crew")).await, Told::Done(_)));
        assert!(matches!(world.ask(remove(&chat, 0, 1)).await, Told::Happened(..)));
        assert_eq!(world.ask(command()).await, told);
        assert_eq!(world.members(&chat).await.len(), people - 1, "who was removed does not come back");
        assert_eq!(world.state(&chat).await.unwrap().chat.name.as_deref(), Some("Crew"));
        let stolen = create(&chat, ChatType::Group, None, vec![]);
        let stolen = CreateChat { created_by: user(1), ..stolen };
        let told = world.ask(record(Command::CreateChat(stolen))).await;
        assert_eq!(told.code(), Some(Code::Conflict), "another's id");
    }
}
