//! Who somebody is, by id and by phone number.

use std::sync::Arc;

use courant_connectors::model::UserId;
use courant_connectors::model::tables::users::{
    self, CodeHash, Credentials, Edit, MAX_ATTEMPTS, NewCode, Registered, User,
};
use courant_connectors::store::{Durability, Result, Returning, Store, StoreError, Transaction, Write};
use rand::RngExt as _;

use super::records::{MINUTE, ago, all_at_once, now};

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

fn new_code(user: &User) -> NewCode {
    NewCode { hash: CodeHash::of(&user.user_id, "042137"), expires_at: now().plus(10 * MINUTE) }
}

async fn register(store: &dyn Store, user: &User) -> Result<()> {
    let writes = users::register_writes(user, "$argon2id$1", &new_code(user)).into();
    store.transact(Transaction { writes, token: None }).await
}

/// Whether the write was done.
async fn done(store: &dyn Store, write: Write) -> bool {
    match store.write(write, Returning::Nothing, Durability::Synced).await {
        Ok(_) => true,
        Err(StoreError::ConditionFailed { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// At once, and not when the index has followed.
pub async fn whoever_registers_can_sign_in_at_once(store: Arc<dyn Store>) {
    let user = new_user();
    assert_eq!(users::owner_of_phone(&*store, &user.phone_number).await.unwrap(), None);
    register(&*store, &user).await.unwrap();
    let owner = users::owner_of_phone(&*store, &user.phone_number).await.unwrap();
    assert_eq!(owner.as_ref(), Some(&user.user_id));
    let credentials = users::credentials(&*store, &user.phone_number).await.unwrap();
    let expected = Credentials { user: user.clone(), password_hash: "$argon2id$1".to_owned() };
    assert_eq!(credentials, Some(expected));
    let found = crate::eventually("the user in the index", || async {
        users::by_phone(&*store, &user.phone_number).await.unwrap()
    })
    .await;
    assert_eq!(found, user.user_id, "the index finds the user, and not the number's own item");
    comes_to_be(&*store, &user).await;
}

pub async fn of_many_who_register_a_number_one_gets_it(store: Arc<dyn Store>) {
    let phone_number = new_user().phone_number;
    let people: Vec<_> = (0..10).map(|_| User { phone_number: phone_number.clone(), ..new_user() }).collect();
    let answers = all_at_once(people.iter().cloned().map(|user| {
        let store = Arc::clone(&store);
        async move { register(&*store, &user).await }
    }))
    .await;
    let winners: Vec<_> = people.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    let owner = users::owner_of_phone(&*store, &phone_number).await.unwrap();
    assert_eq!(owner.as_ref(), Some(&winners[0].0.user_id));
    for (loser, _) in people.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
        assert_eq!(users::get(&*store, &loser.user_id).await.unwrap(), None, "nothing of it was done");
    }
}

pub async fn a_code_stands_a_few_attempts_in_all(store: Arc<dyn Store>) {
    let user = new_user();
    register(&*store, &user).await.unwrap();
    let hash = new_code(&user).hash;
    let counted = all_at_once((0..20).map(|_| {
        let (store, write) = (Arc::clone(&store), users::count_attempt_write(&user.user_id, &hash));
        async move { done(&*store, write).await }
    }))
    .await;
    assert_eq!(counted.iter().filter(|counted| **counted).count(), MAX_ATTEMPTS as usize);
    assert!(!done(&*store, users::verify_write(&user.user_id, &hash, now())).await, "the code is void");
    let code = NewCode { hash: CodeHash::of(&user.user_id, "7"), ..new_code(&user) };
    let renewed = now();
    let renew = |last, name, at| users::renew_write(&user.user_id, name, "$argon2id$2", (last, &code), at);
    assert!(!done(&*store, renew(None, "Mallory", renewed)).await, "a code was sent");
    assert!(!done(&*store, renew(Some(&code.hash), "Mallory", renewed)).await, "another one");
    assert!(done(&*store, renew(Some(&hash), "Eve", renewed)).await);
    let Registered { user: found, verification } =
        users::registered(&*store, &user.phone_number).await.unwrap().unwrap();
    assert_eq!(found, User { display_name: "Eve".to_owned(), updated_at: renewed, ..user.clone() });
    assert_eq!(
        verification.map(|verification| (verification.attempts, verification.code)),
        Some((0, code.clone()))
    );
    assert!(done(&*store, users::verify_write(&user.user_id, &code.hash, now())).await);
    let credentials = users::credentials(&*store, &user.phone_number).await.unwrap().unwrap();
    assert!(credentials.user.phone_verified);
    let again = renew(Some(&code.hash), "Mallory", now());
    assert!(!done(&*store, again).await, "what is verified is theirs");
}

pub async fn a_phone_number_is_no_user(store: Arc<dyn Store>) {
    let user = new_user();
    register(&*store, &user).await.unwrap();
    let number = UserId::from(format!("phone#{}", user.phone_number));
    assert_eq!(users::get(&*store, &number).await.unwrap(), None);
    assert_eq!(users::edit(&*store, &number, Edit::PhoneVerified, now()).await.unwrap(), None);
}
