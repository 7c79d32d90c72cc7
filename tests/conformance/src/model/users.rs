//! Who somebody is, by id and by phone number.

use std::sync::Arc;

use courant_connectors::model::UserId;
use courant_connectors::model::tables::users::{self, Edit, User};
use courant_connectors::store::{Store, StoreError};
use rand::RngExt as _;

use super::records::{MINUTE, ago, now};

fn new_user() -> User {
    let phone = rand::rng().random_range(0..100_000_000_000_u64);
    User {
        user_id: UserId::generate(),
        phone_number: format!("+41{phone:011}"),
        phone_verified: false,
        display_name: "Ada Lovelace 🧮".to_owned(),
        created_at: ago(MINUTE),
        updated_at: ago(MINUTE),
    }
}

async fn created(store: &dyn Store) -> User {
    let user = new_user();
    users::create(store, &user).await.unwrap();
    user
}

/// Reads of users are eventual, so what they find is waited for.
async fn comes_to_be(store: &dyn Store, expected: &User) {
    crate::eventually("the user as they are", || async {
        let found = users::get(store, &expected.user_id).await.unwrap();
        (found.as_ref() == Some(expected)).then_some(())
    })
    .await;
}

pub async fn a_user_is_found_by_phone(store: Arc<dyn Store>) {
    let (one, two) = (created(&*store).await, created(&*store).await);
    for user in [&one, &two] {
        let found = crate::eventually("the user in the index", || async {
            users::by_phone(&*store, &user.phone_number).await.unwrap()
        })
        .await;
        assert_eq!(found, user.user_id);
    }
    assert_eq!(users::by_phone(&*store, &new_user().phone_number).await.unwrap(), None);
}

pub async fn a_user_is_made_once(store: Arc<dyn Store>) {
    let first = created(&*store).await;
    let second = User { user_id: first.user_id.clone(), ..new_user() };
    let taken = users::create(&*store, &second).await;
    assert!(matches!(taken, Err(StoreError::ConditionFailed { .. })), "{taken:?}");
    comes_to_be(&*store, &first).await;
    assert_eq!(users::by_phone(&*store, &second.phone_number).await.unwrap(), None);
}

pub async fn users_come_in_the_order_asked(store: Arc<dyn Store>) {
    let (one, two) = (created(&*store).await, created(&*store).await);
    let asked = [two.user_id.clone(), UserId::generate(), one.user_id.clone()];
    let expected = [Some(two), None, Some(one)];
    crate::eventually("the users in the order asked", || async {
        (users::get_many(&*store, &asked).await.unwrap() == expected).then_some(())
    })
    .await;
}

pub async fn an_edit_changes_what_it_names(store: Arc<dyn Store>) {
    let user = created(&*store).await;
    let edit = async |edit, at| users::edit(&*store, &user.user_id, edit, at).await.unwrap();
    let (first, second) = (ago(MINUTE / 2), now());
    let verified = User { phone_verified: true, updated_at: first, ..user.clone() };
    assert_eq!(edit(Edit::PhoneVerified, first).await.as_ref(), Some(&verified));
    let renamed = User { display_name: "Countess".to_owned(), updated_at: second, ..verified };
    assert_eq!(edit(Edit::DisplayName("Countess".to_owned()), second).await.as_ref(), Some(&renamed));
    comes_to_be(&*store, &renamed).await;
}

pub async fn an_edit_makes_nobody(store: Arc<dyn Store>) {
    let nobody = UserId::generate();
    assert_eq!(users::edit(&*store, &nobody, Edit::PhoneVerified, now()).await.unwrap(), None);
    assert_eq!(users::get(&*store, &nobody).await.unwrap(), None);
}
