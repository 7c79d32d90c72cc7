//! Chats: made whole with their counter and members, or not at all.

use std::sync::Arc;

use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Change, ChangeType, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatState, ChatType, Roster};
use courant_connectors::model::{ChatId, Timestamp, UserId};
use courant_connectors::store::{
    Consistency, Durability, Result, Returning, Store, StoreError, Transaction, Write,
};

use super::records::{MINUTE, ago, all_at_once, count, new_membership, now};

fn new_group() -> Chat {
    Chat {
        chat_id: ChatId::generate(),
        chat_type: ChatType::Group,
        name: Some("Team".to_owned()),
        created_by: UserId::generate(),
        created_at: ago(MINUTE),
        updated_at: ago(MINUTE),
    }
}

/// The chat, its counter and its members in one transaction, by the creator as owner.
async fn make(store: &dyn Store, chat: &Chat, others: &[UserId]) -> Result<()> {
    let owner = Membership { role: Role::Owner, ..new_membership(&chat.chat_id, &chat.created_by) };
    let others = others.iter().map(|user| new_membership(&chat.chat_id, user));
    let counter = ChatCounter::new(chat.chat_id.clone(), chat.created_at);
    let mut writes = vec![chats::create_write(chat), chat_counters::create_write(&counter)];
    writes.extend(std::iter::once(owner).chain(others).map(|member| chat_memberships::add_write(&member)));
    store.transact(Transaction { writes, token: None }).await
}

/// Reads of chats are eventual, so what they find is waited for.
async fn comes_to_be(store: &dyn Store, expected: &Chat) {
    crate::eventually("the chat as it is", || async {
        let found = chats::get(store, &expected.chat_id).await.unwrap();
        (found.as_ref() == Some(expected)).then_some(())
    })
    .await;
}

pub async fn a_chat_is_made_with_counter_and_members(store: Arc<dyn Store>) {
    let (chat, others) = (new_group(), [UserId::generate(), UserId::generate()]);
    make(&*store, &chat, &others).await.unwrap();
    comes_to_be(&*store, &chat).await;
    let range = chat_counters::allocate(&*store, &chat.chat_id, count(1), now()).await.unwrap();
    assert_eq!(range, 1..=1, "it can be written to");
    let members = chat_memberships::list(&*store, &chat.chat_id, None, None).await.unwrap().items;
    assert_eq!(members.len(), 3);
    for member in members {
        let expected = if member.user_id == chat.created_by { Role::Owner } else { Role::Member };
        assert_eq!(member.role, expected);
    }
}

pub async fn a_chat_that_exists_is_not_made_again(store: Arc<dyn Store>) {
    let chat = new_group();
    make(&*store, &chat, &[]).await.unwrap();
    chat_counters::allocate(&*store, &chat.chat_id, count(9), now()).await.unwrap();
    let stranger = UserId::generate();
    let again = Chat { name: Some("Other".to_owned()), ..chat.clone() };
    match make(&*store, &again, std::slice::from_ref(&stranger)).await {
        Err(StoreError::TransactionCanceled { reasons }) => {
            let refused: Vec<_> = reasons.iter().map(Option::is_some).collect();
            assert_eq!(refused, [true, true, true, false], "all but the new member");
        }
        other => panic!("{other:?}"),
    }
    let joined = chat_memberships::check(&*store, &chat.chat_id, &stranger).await.unwrap();
    assert_eq!(joined, None, "nothing of it was done");
    let counter = chat_counters::get(&*store, &chat.chat_id, Consistency::Strong).await.unwrap();
    assert_eq!(counter.unwrap().sequence_counter, 9, "and nothing was set back");
    comes_to_be(&*store, &chat).await;
}

pub async fn a_direct_chat_has_no_name(store: Arc<dyn Store>) {
    let chat = Chat { chat_type: ChatType::Direct, name: None, ..new_group() };
    make(&*store, &chat, &[UserId::generate()]).await.unwrap();
    comes_to_be(&*store, &chat).await;
}

pub async fn a_new_name_changes_nothing_else(store: Arc<dyn Store>) {
    let chat = new_group();
    let missing = chats::rename(&*store, &chat.chat_id, "Crew", now()).await.unwrap();
    assert_eq!(missing, None);
    assert_eq!(chats::get(&*store, &chat.chat_id).await.unwrap(), None, "no chat is made by naming it");
    make(&*store, &chat, &[]).await.unwrap();
    let later = now();
    let renamed = Chat { name: Some("Crew".to_owned()), updated_at: later, ..chat.clone() };
    let answer = chats::rename(&*store, &chat.chat_id, "Crew", later).await.unwrap();
    assert_eq!(answer.as_ref(), Some(&renamed));
    comes_to_be(&*store, &renamed).await;
}

pub async fn chats_come_in_the_order_asked(store: Arc<dyn Store>) {
    let (one, two) = (new_group(), new_group());
    for chat in [&one, &two] {
        make(&*store, chat, &[]).await.unwrap();
    }
    let asked = [two.chat_id.clone(), ChatId::generate(), one.chat_id.clone()];
    let expected = [Some(two), None, Some(one)];
    crate::eventually("the chats in the order asked", || async {
        (chats::get_many(&*store, &asked).await.unwrap() == expected).then_some(())
    })
    .await;
}

/// What is stored at this moment.
async fn state(store: &dyn Store, chat: &ChatId) -> Option<ChatState> {
    let found = store.get(chats::state_lookup(chat)).await.unwrap();
    found.as_ref().map(ChatState::from_item).transpose().unwrap()
}

/// Whether all of it was done.
async fn done(store: &dyn Store, writes: Vec<Write>) -> bool {
    // Others change the same chat: what was turned away for that alone is tried again.
    loop {
        match store.transact(Transaction { writes: writes.clone(), token: None }).await {
            Ok(()) => return true,
            Err(error) if error.remedy() == courant_connectors::store::Remedy::Retry => {}
            Err(StoreError::TransactionCanceled { .. }) => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The change and the membership it is about.
fn leave(chat: &ChatId, user: &UserId, role: Role, at: Timestamp) -> Vec<Write> {
    let change =
        Change { user_id: user.clone(), change_type: ChangeType::Removed, role, by: user.clone(), at };
    vec![
        chats::change_write(chat, &change, Some(role)),
        chat_memberships::remove_from_role_write(chat, user, role),
    ]
}

/// Two owners who leave at the same moment: one of them stays.
pub async fn of_all_owners_one_stays(store: Arc<dyn Store>) {
    let chat = Chat { created_at: now(), ..new_group() };
    let owners: Vec<_> = (0..5).map(|_| UserId::generate()).collect();
    let mut writes = vec![chats::create_counted_write(&chat, Roster { members: 5, owners: 5 })];
    writes.extend(owners.iter().map(|user| {
        chat_memberships::add_write(&Membership { role: Role::Owner, ..new_membership(&chat.chat_id, user) })
    }));
    assert!(done(&*store, writes).await);
    let left = all_at_once(owners.iter().cloned().map(|owner| {
        let (store, chat) = (Arc::clone(&store), chat.chat_id.clone());
        async move {
            // The moments of changes are all different, so whoever meets another tries a later one.
            loop {
                if done(&*store, leave(&chat, &owner, Role::Owner, now())).await {
                    return true;
                }
                if state(&*store, &chat).await.unwrap().roster.unwrap().owners == 1 {
                    return false;
                }
            }
        }
    }))
    .await;
    assert_eq!(left.iter().filter(|left| **left).count(), 4, "{left:?}");
    let after = state(&*store, &chat.chat_id).await.unwrap();
    assert_eq!(after.roster, Some(Roster { members: 1, owners: 1 }));
    let members = chat_memberships::list(&*store, &chat.chat_id, None, None).await.unwrap().items;
    assert_eq!(members.len(), 1);
    let last = after.last_change.unwrap();
    assert!(owners.contains(&last.user_id) && last.user_id != members[0].user_id, "{last:?}");
}

/// While it forms it is hidden and its members can be written; afterwards what comes late changes nothing.
pub async fn a_group_forms_before_it_is_there(store: Arc<dyn Store>) {
    let chat = new_group();
    let id = &chat.chat_id;
    let begin = || store.write(chats::begin_write(&chat), Returning::Nothing, Durability::Synced);
    begin().await.unwrap();
    assert!(matches!(begin().await, Err(StoreError::ConditionFailed { .. })), "begun once");
    assert_eq!(chats::get(&*store, id).await.unwrap(), None);
    assert_eq!(chats::get_many(&*store, std::slice::from_ref(id)).await.unwrap(), [None]);
    assert_eq!(chats::rename(&*store, id, "Crew", now()).await.unwrap(), None);
    let member = new_membership(id, &UserId::generate());
    let stage = || vec![chats::still_forming(id), chat_memberships::stage_write(&member)];
    assert!(done(&*store, stage()).await);
    assert!(done(&*store, stage()).await, "the same again changes nothing");
    let roster = Roster { members: 1, owners: 0 };
    assert!(done(&*store, vec![chats::form_write(id, roster)]).await);
    comes_to_be(&*store, &chat).await;
    assert_eq!(state(&*store, id).await.unwrap().roster, Some(roster));
    assert!(!done(&*store, stage()).await, "too late");
    assert!(!done(&*store, vec![chats::abandon_write(id)]).await, "what is there is not given up");
    assert!(
        !done(&*store, vec![chats::still_absent(id), chat_memberships::remove_write(id, &member.user_id)])
            .await
    );
    assert!(chat_memberships::check(&*store, id, &member.user_id).await.unwrap().is_some());
}

pub async fn members_are_counted_once(store: Arc<dyn Store>) {
    let (chat, others) = (new_group(), [UserId::generate(), UserId::generate()]);
    make(&*store, &chat, &others).await.unwrap();
    let id = &chat.chat_id;
    let leaves = |at| leave(id, &others[0], Role::Member, at);
    assert!(!done(&*store, leaves(now())).await, "nobody changes what is not counted");
    let count = || vec![chats::count_write(id, Roster { members: 3, owners: 1 })];
    assert!(done(&*store, count()).await);
    assert!(!done(&*store, count()).await);
    assert!(done(&*store, leaves(now())).await);
    assert_eq!(state(&*store, id).await.unwrap().roster, Some(Roster { members: 2, owners: 1 }));
}
