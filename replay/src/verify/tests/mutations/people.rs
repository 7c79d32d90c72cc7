//! Damage to chats, members, watermarks, users and sessions.

use courant_connectors::model::tables::chat_memberships::{self, Role};
use courant_connectors::model::tables::chats::{ChatType, Roster};
use courant_connectors::model::tables::{delivery_state, sessions, users};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Item, Key, ReadStore as _, Update, Write};

use super::Expected;
use crate::verify::context::{before, now};
use crate::verify::tests::world::{HOUR, World, membership, number_kept_for};

pub(super) async fn unreadable_watermark(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    let item = Item::new()
        .with("user_id", &user)
        .with("chat_id", &chat)
        .with("last_acked_sequence", "five")
        .with("updated_at", now());
    world.put("delivery_state", item).await;
    Expected::of("readable", &chat).with(&user).saying("'last_acked_sequence' is text")
}

pub(super) async fn huge_chat(world: &World) -> Expected {
    let (chat, _) = world.own_chat().await;
    let update = Update::new().set("name", "x".repeat(250_000));
    world.store(Write::update("chats", Key::new("chat_id", &chat), update)).await;
    Expected::of("item-size", &chat).saying("of 409600 bytes")
}

pub(super) async fn endless_session(world: &World) -> Expected {
    let user = world.user().await;
    let session = world.session(&user).await;
    let mut item = sessions::validate(&*world.engine, &session, now()).await.unwrap().unwrap().to_item();
    item.remove("ttl");
    world.put("sessions", item).await;
    Expected::in_general("ends").with(&user).saying(session.as_str())
}

pub(super) async fn membership_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    chat_memberships::add(&*world.engine, &membership(&chat, &user)).await.unwrap();
    Expected::of("membership-chat", &chat).with(&user)
}

pub(super) async fn chat_that_never_formed(world: &World) -> Expected {
    let then = before(now(), HOUR);
    let chat_id = world.begin_group(then, 1).await.chat_id;
    Expected::of("chat-formed", &chat_id).saying(format!("since {then}"))
}

pub(super) async fn chat_that_counts_wrong(world: &World) -> Expected {
    let (chat, _) = world.own_chat().await;
    world.count_members(&chat, Roster { members: 2, owners: 1 }).await;
    Expected::of("chat-counts", &chat).saying("2 members and 1 owners, and has 1 and 1")
}

pub(super) async fn chat_without_owner(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    chat_memberships::set_role(&*world.engine, &chat, &user, Role::Admin).await.unwrap();
    Expected::of("chat-owner", &chat).saying("none of 1 members")
}

pub(super) async fn direct_chat_of_three(world: &World) -> Expected {
    let (ann, ben, cem) = (world.user().await, world.user().await, world.user().await);
    let chat = world.chat(ChatType::Direct, &[&ann, &ben]).await;
    chat_memberships::add(&*world.engine, &membership(&chat, &cem)).await.unwrap();
    Expected::of("direct-pair", &chat).saying("3 members")
}

pub(super) async fn direct_chat_of_one(world: &World) -> Expected {
    let ann = world.user().await;
    let chat = world.chat(ChatType::Direct, &[&ann]).await;
    Expected::of("direct-pair", &chat).saying("1 members")
}

pub(super) async fn row_missing_in_index(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.lies.hidden.lock().unwrap().insert((chat.to_string(), user.to_string()));
    Expected::of("index-agrees", &chat).with(&user).saying("the index does not")
}

pub(super) async fn row_left_in_index(world: &World) -> Expected {
    let (chat, user) = (world.own_chat().await.0, world.user().await);
    world.lies.ghosts.lock().unwrap().push(membership(&chat, &user).to_item());
    Expected::of("index-agrees", &chat).with(&user).saying("the table does not")
}

pub(super) async fn membership_without_user(world: &World) -> Expected {
    let (chat, stranger) = (world.own_chat().await.0, UserId::generate());
    chat_memberships::add(&*world.engine, &membership(&chat, &stranger)).await.unwrap();
    Expected::of("membership-user", &chat).with(&stranger)
}

pub(super) async fn watermark_beyond_counter(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    ack(world, &user, &chat, 2).await;
    Expected::of("watermark-bound", &chat).with(&user).at(2).saying("the counter is at 1")
}

pub(super) async fn watermark_without_chat(world: &World) -> Expected {
    let (chat, user) = (ChatId::generate(), world.user().await);
    ack(world, &user, &chat, 1).await;
    Expected::of("watermark-chat", &chat).with(&user).at(1)
}

async fn ack(world: &World, user: &UserId, chat: &ChatId, sequence: u64) {
    delivery_state::advance(&*world.engine, user, chat, sequence, now()).await.unwrap();
}

pub(super) async fn watermark_goes_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    ack(world, &user, &chat, 1).await;
    world.lies.set_back.lock().unwrap().insert(("delivery_state", chat.to_string()));
    Expected::of("watermark-forward", &chat).with(&user).saying("was at 1 and is at 0")
}

pub(super) async fn counter_goes_back(world: &World) -> Expected {
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    world.lies.set_back.lock().unwrap().insert(("chat_counters", chat.to_string()));
    Expected::of("counter-forward", &chat).saying("was at 1 and is at 0")
}

pub(super) async fn session_without_user(world: &World) -> Expected {
    let stranger = UserId::generate();
    let session = world.session(&stranger).await;
    Expected::in_general("session-user").with(&stranger).saying(session.as_str())
}

async fn phone_of(world: &World, user: &UserId) -> String {
    let item = world.engine.get(users::lookup(user)).await.unwrap().unwrap();
    item.text("phone_number").unwrap().to_owned()
}

pub(super) async fn number_of_nobody(world: &World) -> Expected {
    let stranger = UserId::generate();
    let number = format!("+4178{:07}", world.number());
    world.put("users", number_kept_for(&number, &stranger)).await;
    Expected::in_general("phone-user").with(&stranger).saying("is not there")
}

pub(super) async fn number_of_somebody_with_another(world: &World) -> Expected {
    let user = world.user().await;
    let number = format!("+4178{:07}", world.number());
    world.put("users", number_kept_for(&number, &user)).await;
    Expected::in_general("phone-user")
        .with(&user)
        .saying(format!("{number} is kept for a user who has another"))
}

pub(super) async fn user_without_number(world: &World) -> Expected {
    let user = world.user().await;
    let number = phone_of(world, &user).await;
    let key = Key::new("user_id", format!("phone#{number}"));
    world.store(Write::delete("users", key)).await;
    Expected::in_general("phone-user").with(&user).saying(format!("{number} is kept for nobody"))
}

pub(super) async fn two_users_with_a_number(world: &World) -> Expected {
    let (first, second) = (world.user().await, world.user().await);
    let (number, own) = (phone_of(world, &first).await, phone_of(world, &second).await);
    let taken = world.engine.get(users::lookup(&second)).await.unwrap().unwrap();
    world.put("users", taken.with("phone_number", number)).await;
    world.store(Write::delete("users", Key::new("user_id", format!("phone#{own}")))).await;
    Expected::in_general("phone-user").with(&second).saying(format!("is kept for user {first}"))
}
