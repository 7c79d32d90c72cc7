//! Who may come, go and become what; and whom a race leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use courant_connectors::model::commands::{Answer, Member};
use courant_connectors::model::tables::chat_memberships::{Change, ChangeType};
use courant_connectors::store::{Durability, Returning, StoreError};
use serde_json::json;
use tokio::sync::Barrier;

use super::*;
use crate::testing::embedded::carry_all;
use crate::testing::faulty::Fault;

const OWNER: Role = Role::Owner;
const ADMIN: Role = Role::Admin;
const MEMBER: Role = Role::Member;

#[tokio::test]
async fn what_happened_is_told_as_documented() {
    let world = World::of(3).await;
    let chat = world.group(&[OWNER, MEMBER]).await;
    let told = world.ask(add(&chat, 0, 2, MEMBER)).await;
    let Told::Happened(Answer::Member(Member { user_id, role, joined_at }), event, key, output) = told else {
        panic!("{told:?}")
    };
    assert_eq!((user_id, role, key.as_str(), output), (user(2), MEMBER, chat.as_str(), MEMBERSHIP));
    let expected = json!({
        "event_type": "MembershipChanged",
        "event_id": event["event_id"],
        "event_time": joined_at,
        "partition_key": chat,
        "payload": {
            "chat_id": chat,
            "user_id": "user_2",
            "change_type": "added",
            "role": "member",
            "changed_by": "user_0",
        },
    });
    assert_eq!(event, expected);
    let told = world.ask(set_role(&chat, 0, 2, ADMIN)).await;
    assert_eq!(told.answer(), &Answer::Member(Member { user_id: user(2), role: ADMIN, joined_at }));
    assert_eq!(told.event()["payload"]["change_type"], "role_changed");
    let told = world.ask(remove(&chat, 0, 2)).await;
    assert_eq!(told.answer(), &Answer::Done);
    assert_eq!(told.event()["payload"]["change_type"], "removed");
    assert_eq!(told.event()["payload"]["role"], "admin", "the last one");
    world.assert_counted(&chat).await;
}

/// A chat, who asks, and whom it is about.
type Asks = fn(&ChatId, usize, usize) -> Record;

/// Who asks, whom it is about, what is asked, and whether it is done. The group has two of each.
#[tokio::test]
async fn roles_decide_who_may_do_what() {
    const ROLES: [Role; 6] = [OWNER, ADMIN, MEMBER, OWNER, ADMIN, MEMBER];
    let stranger = ROLES.len();
    let world = World::of(stranger + 1).await;
    let removes: Asks = remove;
    let makes_owner: Asks = |chat, by, who| set_role(chat, by, who, OWNER);
    let makes_member: Asks = |chat, by, who| set_role(chat, by, who, MEMBER);
    let adds: Asks = |chat, by, who| add(chat, by, who, MEMBER);
    let adds_owner: Asks = |chat, by, who| add(chat, by, who, OWNER);
    let cases: &[(&str, Asks, usize, usize, Option<Code>)] = &[
        ("an owner removes an owner", removes, 0, 3, None),
        ("an owner removes a member", removes, 0, 2, None),
        ("an admin removes an owner", removes, 1, 0, Some(Code::Forbidden)),
        ("an admin removes an admin", removes, 1, 4, None),
        ("a member removes a member", removes, 2, 5, Some(Code::Forbidden)),
        ("a member leaves", removes, 2, 2, None),
        ("an admin leaves", removes, 1, 1, None),
        ("an owner of two leaves", removes, 0, 0, None),
        ("a stranger leaves", removes, stranger, stranger, Some(Code::NotAMember)),
        ("a stranger removes a member", removes, stranger, 2, Some(Code::NotAMember)),
        ("an owner removes a stranger", removes, 0, stranger, Some(Code::NotFound)),
        ("an owner makes an owner", makes_owner, 0, 2, None),
        ("an admin makes an owner", makes_owner, 1, 2, Some(Code::Forbidden)),
        ("an admin becomes owner", makes_owner, 1, 1, Some(Code::Forbidden)),
        ("a member becomes owner", makes_owner, 2, 2, Some(Code::Forbidden)),
        ("an owner makes a stranger owner", makes_owner, 0, stranger, Some(Code::NotFound)),
        ("an owner demotes an owner", makes_member, 0, 3, None),
        ("an owner of two steps down", makes_member, 0, 0, None),
        ("an admin demotes an owner", makes_member, 1, 0, Some(Code::Forbidden)),
        ("an admin demotes an admin", makes_member, 1, 4, None),
        ("an admin adds", adds, 1, stranger, None),
        ("a member adds", adds, 2, stranger, Some(Code::Forbidden)),
        ("a stranger comes in", adds, stranger, stranger, Some(Code::NotAMember)),
        ("an owner adds an owner", adds_owner, 0, stranger, None),
        ("an admin adds an owner", adds_owner, 1, stranger, Some(Code::Forbidden)),
        ("an owner adds who is there as something else", adds, 0, 1, Some(Code::Conflict)),
        ("an owner adds nobody", adds, 0, 99, Some(Code::NotFound)),
    ];
    for (what, asks, by, who, refused) in cases {
        let chat = world.group(&ROLES).await;
        let before = world.members(&chat).await;
        let told = world.ask(asks(&chat, *by, *who)).await;
        assert_eq!(told.code(), *refused, "{what}: {told:?}");
        assert_eq!(world.members(&chat).await == before, refused.is_some(), "{what}");
        world.assert_counted(&chat).await;
    }
}

#[tokio::test]
async fn the_last_owner_hands_over_first() {
    let world = World::of(2).await;
    let chat = world.group(&[OWNER, MEMBER]).await;
    let leave = || remove(&chat, 0, 0);
    assert_eq!(world.ask(leave()).await.code(), Some(Code::Conflict));
    assert_eq!(world.ask(set_role(&chat, 0, 0, MEMBER)).await.code(), Some(Code::Conflict));
    assert!(matches!(world.ask(set_role(&chat, 0, 1, OWNER)).await, Told::Happened(..)));
    assert!(matches!(world.ask(leave()).await, Told::Happened(..)));
    assert_eq!(world.members(&chat).await, [("user_1".to_owned(), OWNER)]);
}

/// Two commands in two processes, of which the second looks before the first has written and writes after it, at a later
/// moment: what each decides on is right, and together they would be wrong.
async fn overtaken(world: &World, chat: &ChatId, first: Record, second: Record) -> (Told, Told) {
    let [before_first, before_second] = [0, 1].map(|_| Arc::new(Barrier::new(2)));
    let other_process = world.embedded.stage(&SPEC);
    let begun = world.embedded.faulty.writes();
    world.embedded.faulty.nth(1, Fault::Meets(Arc::clone(&before_first)));
    world.embedded.faulty.nth(2, Fault::Meets(Arc::clone(&before_second)));
    let comes_to_write = async |nth: u32| {
        while world.embedded.faulty.writes() < begun + nth {
            tokio::task::yield_now().await;
        }
    };
    let last = async || world.state(chat).await.unwrap().last_change;
    let let_go_on = async {
        comes_to_write(2).await;
        let unchanged = last().await;
        before_first.wait().await;
        while last().await == unchanged {
            tokio::task::yield_now().await;
        }
        before_second.wait().await;
    };
    let second = async {
        comes_to_write(1).await;
        let looked = now();
        while now() == looked {
            tokio::task::yield_now().await;
        }
        carry(&*other_process, second).await
    };
    let (first, second, ()) = tokio::join!(world.ask(first), second, let_go_on);
    (first, second)
}

#[tokio::test]
async fn of_two_owners_who_leave_at_once_one_stays() {
    let world = World::of(2).await;
    let steps_down: fn(&ChatId) -> Record = |chat| set_role(chat, 1, 1, MEMBER);
    let leaves: fn(&ChatId) -> Record = |chat| remove(chat, 1, 1);
    for second in [leaves, steps_down] {
        let chat = world.group(&[OWNER, OWNER]).await;
        let (first, second) = overtaken(&world, &chat, remove(&chat, 0, 0), second(&chat)).await;
        assert!(matches!(first, Told::Happened(..)), "{first:?}");
        assert_eq!(second.code(), Some(Code::Conflict), "{second:?}");
        assert_eq!(world.members(&chat).await, [("user_1".to_owned(), OWNER)]);
        world.assert_counted(&chat).await;
    }
}

#[tokio::test]
async fn the_last_place_is_taken_once() {
    let world = World::of(1002).await;
    let chat = ChatId::generate();
    assert!(matches!(world.ask(group(&chat, (1..999).map(user).collect())).await, Told::Happened(..)));
    let adds = |who| add(&chat, 0, who, MEMBER);
    let (first, second) = overtaken(&world, &chat, adds(999), adds(1000)).await;
    assert!(matches!(first, Told::Happened(..)), "{first:?}");
    assert_eq!(second.code(), Some(Code::Conflict), "{second:?}");
    assert_eq!(world.members(&chat).await.len(), 1000);
    assert_eq!(world.ask(adds(1001)).await.code(), Some(Code::Conflict));
    assert!(matches!(world.ask(remove(&chat, 5, 5)).await, Told::Happened(..)));
    assert!(matches!(world.ask(adds(1001)).await, Told::Happened(..)));
    world.assert_counted(&chat).await;
}

#[tokio::test]
async fn a_direct_chat_stays_as_it_is() {
    let world = World::of(3).await;
    let chat = ChatId::generate();
    let direct = create(&chat, ChatType::Direct, None, vec![user(1)]);
    assert!(matches!(world.ask(record(Command::CreateChat(direct))).await, Told::Happened(..)));
    for asked in
        [add(&chat, 0, 2, MEMBER), remove(&chat, 0, 1), remove(&chat, 1, 1), set_role(&chat, 0, 1, OWNER)]
    {
        assert_eq!(world.ask(asked).await.code(), Some(Code::Forbidden));
    }
    assert_eq!(world.members(&chat).await.len(), 2);
}

/// An admin who is being removed adds somebody meanwhile: they had looked before, and write after.
#[tokio::test]
async fn who_is_no_admin_any_more_changes_nothing() {
    let world = World::of(3).await;
    let chat = world.group(&[OWNER, ADMIN]).await;
    let meeting = Arc::new(Barrier::new(2));
    world.embedded.faulty.nth(1, Fault::Meets(Arc::clone(&meeting)));
    let removed = async {
        let write = chat_memberships::remove_write(&chat, &user(1));
        world.embedded.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
        meeting.wait().await;
    };
    let (told, ()) = tokio::join!(world.ask(add(&chat, 1, 2, MEMBER)), removed);
    assert_eq!(told.code(), Some(Code::NotAMember));
    assert_eq!(world.members(&chat).await, [("user_0".to_owned(), OWNER)]);
}

/// The process dies between the write and its event; the same command is carried out again, as often as you like.
#[tokio::test]
async fn a_command_that_took_effect_tells_of_it_again() {
    let world = World::of(4).await;
    let chat = world.group(&[OWNER, MEMBER, MEMBER]).await;
    let commands: [fn(&ChatId) -> Record; 4] = [
        |chat| add(chat, 0, 3, ADMIN),
        |chat| set_role(chat, 0, 1, ADMIN),
        |chat| remove(chat, 0, 1),
        |chat| remove(chat, 2, 2),
    ];
    let mut ids = BTreeSet::new();
    for command in commands {
        world.embedded.faulty.nth(1, Fault::Unheard);
        assert!(world.ask(command(&chat)).await.has_to_wait());
        let members = world.members(&chat).await;
        let change = world.state(&chat).await.unwrap().last_change.unwrap();
        let told = world.ask(command(&chat)).await;
        assert_eq!(told.event()["event_time"], change.at.to_string());
        assert_eq!(told.event()["payload"]["changed_by"], change.by.as_str());
        assert_eq!(world.ask(command(&chat)).await, told, "the same each time");
        assert_eq!(world.members(&chat).await, members, "nothing was done twice");
        ids.insert(told.event()["event_id"].to_string());
    }
    assert_eq!(ids.len(), 4);
    world.assert_counted(&chat).await;
}

#[tokio::test]
async fn what_is_so_already_is_no_event() {
    let world = World::of(3).await;
    let chat = world.group(&[OWNER, MEMBER, ADMIN]).await;
    for asked in [add(&chat, 0, 1, MEMBER), set_role(&chat, 2, 1, MEMBER)] {
        let told = world.ask(asked).await;
        assert!(matches!(&told, Told::Done(Answer::Member(member)) if member.user_id == user(1)), "{told:?}");
    }
    assert!(matches!(world.ask(remove(&chat, 0, 1)).await, Told::Happened(..)));
    let by_another = world.ask(remove(&chat, 2, 1)).await;
    assert_eq!(by_another.code(), Some(Code::NotFound));
}

/// Another process has a clock that is an hour ahead. Events are told apart by their moment, which goes on from there.
#[tokio::test]
async fn a_clock_that_is_behind_holds_nobody_up() {
    let world = World::of(2).await;
    let chat = world.group(&[OWNER, MEMBER]).await;
    let ahead = now().plus(Duration::from_secs(3600));
    let change = Change {
        user_id: user(1),
        change_type: ChangeType::RoleChanged,
        role: MEMBER,
        by: user(0),
        at: ahead,
    };
    let writes = vec![chats::change_write(&chat, &change, Some(MEMBER))];
    world.embedded.store.transact(Transaction { writes, token: None }).await.unwrap();
    let commands = (0..6).map(|n| set_role(&chat, 0, 1, if n % 2 == 0 { ADMIN } else { MEMBER }));
    let told = carry_all(&*world.stage, commands.collect()).await;
    let times: Vec<_> = told.iter().map(|told| told.event()["event_time"].clone()).collect();
    let expected = (1..=6).map(|millis| ahead.plus(Duration::from_millis(millis)).to_string());
    assert_eq!(times, expected.collect::<Vec<_>>(), "in the order they came");
}

#[tokio::test]
async fn members_that_nobody_counted_are_counted_first() {
    let world = World::of(4).await;
    let chat = chats::Chat {
        chat_id: ChatId::generate(),
        chat_type: ChatType::Group,
        name: None,
        created_by: user(0),
        created_at: THEN,
        updated_at: THEN,
    };
    let member = |n, role| Membership {
        chat_id: chat.chat_id.clone(),
        user_id: user(n),
        role,
        joined_at: THEN,
        muted_until: None,
    };
    let members = [member(0, OWNER), member(1, MEMBER), member(2, MEMBER)];
    let mut writes = vec![chats::create_write(&chat)];
    writes.extend(members.iter().map(chat_memberships::add_write));
    world.embedded.store.transact(Transaction { writes, token: None }).await.unwrap();
    assert_eq!(world.ask(remove(&chat.chat_id, 0, 0)).await.code(), Some(Code::Conflict));
    assert!(matches!(world.ask(add(&chat.chat_id, 0, 3, MEMBER)).await, Told::Happened(..)));
    world.assert_counted(&chat.chat_id).await;
}

#[tokio::test]
async fn a_store_that_is_down_makes_commands_wait_in_order() {
    let world = World::of(3).await;
    let (one, two) = (world.group(&[OWNER, MEMBER]).await, world.group(&[OWNER, MEMBER]).await);
    let down = StoreError::Unavailable("connection refused".to_owned());
    world.embedded.faulty.nth(1, Fault::Refused(down));
    let asked = vec![remove(&one, 0, 1), add(&one, 0, 2, MEMBER), remove(&two, 0, 1)];
    let told = carry_all(&*world.stage, asked).await;
    let waiting = told.iter().filter(|told| told.has_to_wait()).count();
    assert_eq!(waiting, 1, "{told:?}");
    assert_eq!(told[1] == Told::Held, told[0].has_to_wait(), "{told:?}");
}
