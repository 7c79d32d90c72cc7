//! Who is in which chat, from both sides.

use std::sync::Arc;

use courant_connectors::model::tables::chat_memberships::{self, Added, Membership, Role};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{BatchWrite, Store};

use super::records::{MINUTE, all_at_once, every_part, new_membership, now};

async fn added(store: &dyn Store, membership: &Membership) {
    assert_eq!(chat_memberships::add(store, membership).await.unwrap(), Added::Now);
}

async fn members(store: &dyn Store, chat: &ChatId, limit: Option<u32>) -> Vec<Membership> {
    let parts =
        async |after: Option<UserId>, limit| chat_memberships::list(store, chat, after.as_ref(), limit).await;
    every_part(limit, parts).await
}

async fn chats(store: &dyn Store, user: &UserId, limit: Option<u32>) -> Vec<Membership> {
    let parts = async |after: Option<ChatId>, limit| {
        chat_memberships::of_user(store, user, after.as_ref(), limit).await
    };
    every_part(limit, parts).await
}

/// Waits until the index holds exactly these of a user, by chat id.
async fn index_comes_to_hold(store: &dyn Store, user: &UserId, expected: &[Membership]) {
    crate::eventually("the user's chats in the index", || async {
        (chats(store, user, None).await == expected).then_some(())
    })
    .await;
}

pub async fn adding_twice_keeps_the_role(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let owner = Membership { role: Role::Owner, ..new_membership(&chat, &user) };
    added(&*store, &owner).await;
    let again = chat_memberships::add(&*store, &new_membership(&chat, &user)).await.unwrap();
    assert_eq!(again, Added::Before);
    assert_eq!(chat_memberships::check(&*store, &chat, &user).await.unwrap(), Some(owner));
}

pub async fn of_many_who_add_somebody_one_does(store: Arc<dyn Store>) {
    let membership = new_membership(&ChatId::generate(), &UserId::generate());
    let answers = all_at_once((0..10).map(|_| {
        let (store, membership) = (Arc::clone(&store), membership.clone());
        async move { chat_memberships::add(&*store, &membership).await.unwrap() }
    }))
    .await;
    assert_eq!(answers.iter().filter(|added| **added == Added::Now).count(), 1, "{answers:?}");
}

/// Whoever is removed may not send from that moment on.
pub async fn a_removed_member_is_gone_at_once(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let muted = Membership { muted_until: Some(now().plus(MINUTE)), ..new_membership(&chat, &user) };
    added(&*store, &muted).await;
    assert_eq!(chat_memberships::remove(&*store, &chat, &user).await.unwrap(), Some(muted));
    assert_eq!(chat_memberships::check(&*store, &chat, &user).await.unwrap(), None);
    assert_eq!(members(&*store, &chat, None).await, []);
    assert_eq!(chat_memberships::remove(&*store, &chat, &user).await.unwrap(), None);
    added(&*store, &new_membership(&chat, &user)).await;
}

pub async fn a_role_is_given_to_members_only(store: Arc<dyn Store>) {
    let (chat, user) = (ChatId::generate(), UserId::generate());
    let set = chat_memberships::set_role(&*store, &chat, &user, Role::Admin).await.unwrap();
    assert_eq!(set, None);
    assert_eq!(chat_memberships::check(&*store, &chat, &user).await.unwrap(), None, "nobody came in by it");
    let member = Membership { muted_until: Some(now()), ..new_membership(&chat, &user) };
    added(&*store, &member).await;
    let admin = Membership { role: Role::Admin, ..member };
    let set = chat_memberships::set_role(&*store, &chat, &user, Role::Admin).await.unwrap();
    assert_eq!(set.as_ref(), Some(&admin), "the rest is as it was");
    assert_eq!(chat_memberships::check(&*store, &chat, &user).await.unwrap(), Some(admin));
}

pub async fn membership_is_of_one_chat(store: Arc<dyn Store>) {
    let (chat, other, user) = (ChatId::generate(), ChatId::generate(), UserId::generate());
    added(&*store, &new_membership(&chat, &user)).await;
    assert_eq!(chat_memberships::check(&*store, &other, &user).await.unwrap(), None);
    assert_eq!(chat_memberships::check(&*store, &chat, &UserId::generate()).await.unwrap(), None);
    assert_eq!(members(&*store, &other, None).await, []);
}

/// The largest group, in parts of every size.
pub async fn a_thousand_members_are_listed_by_parts(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let mut group: Vec<_> = (0..1000).map(|_| new_membership(&chat, &UserId::generate())).collect();
    let put = |membership: &Membership| BatchWrite::Put {
        table: chat_memberships::SCHEMA.name.clone(),
        item: membership.to_item(),
    };
    store.batch_write(group.iter().map(put).collect()).await.unwrap();
    group.sort_by(|one, other| one.user_id.cmp(&other.user_id));
    for limit in [None, Some(1000), Some(300), Some(100), Some(17)] {
        let listed = members(&*store, &chat, limit).await;
        assert!(listed == group, "{} members by {limit:?}; all of them, each once, by id", listed.len());
    }
}

/// Going on after somebody who left meanwhile skips nobody.
pub async fn a_list_goes_on_after_a_member_who_left(store: Arc<dyn Store>) {
    let chat = ChatId::generate();
    let mut group: Vec<_> = (0..5).map(|_| new_membership(&chat, &UserId::generate())).collect();
    for membership in &group {
        added(&*store, membership).await;
    }
    group.sort_by(|one, other| one.user_id.cmp(&other.user_id));
    let after = &group[1].user_id;
    chat_memberships::remove(&*store, &chat, after).await.unwrap();
    let rest = chat_memberships::list(&*store, &chat, Some(after), None).await.unwrap();
    assert_eq!(rest.items, group[2..]);
}

pub async fn a_users_chats_are_found_by_the_index(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let mut mine: Vec<_> = (0..12).map(|_| new_membership(&ChatId::generate(), &user)).collect();
    for membership in &mine {
        added(&*store, membership).await;
        added(&*store, &new_membership(&membership.chat_id, &UserId::generate())).await;
    }
    mine.sort_by(|one, other| one.chat_id.cmp(&other.chat_id));
    index_comes_to_hold(&*store, &user, &mine).await;
    for limit in [1, 5, 12, 100] {
        assert_eq!(chats(&*store, &user, Some(limit)).await, mine, "by {limit}");
    }
}

pub async fn the_index_follows_roles_and_removals(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let mut mine: Vec<_> = (0..3).map(|_| new_membership(&ChatId::generate(), &user)).collect();
    mine.sort_by(|one, other| one.chat_id.cmp(&other.chat_id));
    for membership in &mine {
        added(&*store, membership).await;
    }
    index_comes_to_hold(&*store, &user, &mine).await;
    mine[0].role = Role::Admin;
    chat_memberships::set_role(&*store, &mine[0].chat_id, &user, Role::Admin).await.unwrap();
    index_comes_to_hold(&*store, &user, &mine).await;
    let left = mine.remove(1);
    chat_memberships::remove(&*store, &left.chat_id, &user).await.unwrap();
    index_comes_to_hold(&*store, &user, &mine).await;
}
