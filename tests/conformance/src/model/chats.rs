//! Chats: made whole with their counter and members, or not at all.

use std::sync::Arc;

use courant_connectors::model::tables::chat_counters::{self, ChatCounter};
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{Consistency, Result, Store, StoreError, Transaction};

use super::records::{MINUTE, ago, count, new_membership, now};

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
