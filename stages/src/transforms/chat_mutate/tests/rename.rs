//! New names.

use courant_connectors::model::commands::{Answer, EditProfile};
use courant_connectors::store::{Durability, Returning};
use tokio::sync::Barrier;

use super::*;
use crate::testing::faulty::Fault;

#[tokio::test]
async fn owners_and_admins_rename_and_nothing_is_told_of_it() {
    let world = World::of(3).await;
    let chat = world.group(&[Role::Owner, Role::Admin, Role::Member]).await;
    for by in [0, 1] {
        let told = world.ask(rename(&chat, by, "Crew")).await;
        let Told::Done(Answer::Chat(answer)) = told else { panic!("{told:?}") };
        assert_eq!((answer.name.as_deref(), answer.members.len()), (Some("Crew"), 0));
        let stored = chats::get(&*world.embedded.store, &chat).await.unwrap().unwrap();
        assert_eq!((stored.name, stored.updated_at), (answer.name, answer.updated_at));
    }
    let member = world.ask(rename(&chat, 2, "Mine")).await;
    assert_eq!(member.code(), Some(Code::Forbidden));
}

#[tokio::test]
async fn strangers_and_strange_names_are_refused() {
    let world = World::of(3).await;
    let chat = world.group(&[Role::Owner, Role::Member]).await;
    assert_eq!(world.ask(rename(&chat, 2, "Crew")).await.code(), Some(Code::NotAMember));
    assert_eq!(world.ask(rename(&"chat_none".into(), 0, "Crew")).await.code(), Some(Code::NotFound));
    for name in ["", "  ", &"x".repeat(257)] {
        assert_eq!(world.ask(rename(&chat, 0, name)).await.code(), Some(Code::BadRequest));
    }
    let direct = ChatId::generate();
    let command = create(&direct, ChatType::Direct, None, vec![user(1)]);
    world.ask(record(Command::CreateChat(command))).await;
    assert_eq!(world.ask(rename(&direct, 0, "Us")).await.code(), Some(Code::Forbidden));
}

#[tokio::test]
async fn who_is_no_admin_any_more_renames_nothing() {
    let world = World::of(2).await;
    let chat = world.group(&[Role::Owner, Role::Admin]).await;
    let meeting = Arc::new(Barrier::new(2));
    world.embedded.faulty.nth(1, Fault::Meets(Arc::clone(&meeting)));
    let demoted = async {
        let write = chat_memberships::set_role_write(&chat, &user(1), Role::Member);
        world.embedded.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
        meeting.wait().await;
    };
    let (told, ()) = tokio::join!(world.ask(rename(&chat, 1, "Crew")), demoted);
    assert_eq!(told.code(), Some(Code::Forbidden));
    let stored = chats::get(&*world.embedded.store, &chat).await.unwrap().unwrap();
    assert_eq!(stored.name.as_deref(), Some("Team"));
}

#[tokio::test]
async fn what_belongs_elsewhere_is_rejected_by_name() {
    let world = World::of(1).await;
    let edit = EditProfile { user_id: user(0), display_name: "Ada".to_owned() };
    let told = world.ask(record(Command::EditProfile(edit))).await;
    let Told::Failed("reject", why) = told else { panic!("{told:?}") };
    assert!(why.contains("edit_profile"), "{why}");
}
