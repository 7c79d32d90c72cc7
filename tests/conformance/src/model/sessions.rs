//! Who is signed in where, and until when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::tables::sessions::{self, Rotation, Session, Token};
use courant_connectors::model::{SessionId, Timestamp, UserId};
use courant_connectors::store::{Store, StoreError};

use super::records::{MINUTE, ago, all_at_once, every_part, now};

/// For an hour from now.
fn new_session(user: &UserId) -> Session {
    let created_at = now();
    Session {
        session_id: SessionId::generate(),
        user_id: user.clone(),
        device_id: "dev_1".into(),
        device_name: Some("Ada's phone".to_owned()),
        refresh_token_hash: format!("{:032x}", rand::random::<u128>()),
        spent: Vec::new(),
        created_at,
        last_used_at: created_at,
        expires_at: created_at.plus(60 * MINUTE),
    }
}

async fn created(store: &dyn Store, session: Session) -> Session {
    sessions::create(store, &session).await.unwrap();
    session
}

async fn of_user(store: &dyn Store, user: &UserId, limit: Option<u32>) -> Vec<Session> {
    let parts =
        async |after: Option<SessionId>, limit| sessions::of_user(store, user, after.as_ref(), limit).await;
    every_part(limit, parts).await
}

fn ids<'a>(sessions: impl IntoIterator<Item = &'a Session>) -> BTreeSet<SessionId> {
    sessions.into_iter().map(|session| session.session_id.clone()).collect()
}

/// Waits until the index holds exactly these of a user.
async fn index_comes_to_hold(store: &dyn Store, user: &UserId, expected: &[&Session]) {
    crate::eventually("the user's sessions in the index", || async {
        let found = of_user(store, user, None).await;
        (found.len() == expected.len() && ids(&found) == ids(expected.iter().copied())).then_some(())
    })
    .await;
}

/// Validation reads eventually, so its answer is waited for.
async fn comes_to_validate(store: &dyn Store, session: &Session, at: Timestamp, expected: Option<&Session>) {
    crate::eventually("the session as it is", || async {
        let found = sessions::validate(store, &session.session_id, at).await.unwrap();
        (found.as_ref() == expected).then_some(())
    })
    .await;
}

pub async fn a_session_is_valid_until_its_end(store: Arc<dyn Store>) {
    let session = created(&*store, new_session(&UserId::generate())).await;
    comes_to_validate(&*store, &session, now(), Some(&session)).await;
    let just_before = Timestamp::from_unix_millis(session.expires_at.unix_millis() - 1);
    comes_to_validate(&*store, &session, just_before, Some(&session)).await;
    comes_to_validate(&*store, &session, session.expires_at, None).await;
    let unknown = sessions::validate(&*store, &SessionId::generate(), now()).await.unwrap();
    assert_eq!(unknown, None);
}

pub async fn a_session_id_is_given_once(store: Arc<dyn Store>) {
    let first = created(&*store, new_session(&UserId::generate())).await;
    let second = Session { session_id: first.session_id.clone(), ..new_session(&UserId::generate()) };
    let taken = sessions::create(&*store, &second).await;
    assert!(matches!(taken, Err(StoreError::ConditionFailed { .. })), "{taken:?}");
    comes_to_validate(&*store, &first, now(), Some(&first)).await;
}

/// Whatever moment is asked for: it is not there any more.
pub async fn an_ended_session_is_hidden(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let (began, ended) = (ago(2 * MINUTE), ago(Duration::from_secs(2)));
    let over = created(&*store, Session { created_at: began, expires_at: ended, ..new_session(&user) }).await;
    let valid = sessions::validate(&*store, &over.session_id, began).await.unwrap();
    assert_eq!(valid, None);
    let lasting = created(&*store, new_session(&user)).await;
    index_comes_to_hold(&*store, &user, &[&lasting]).await;
}

pub async fn a_users_sessions_are_found_by_the_index(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let mut mine = Vec::new();
    for _ in 0..7 {
        mine.push(created(&*store, new_session(&user)).await);
    }
    created(&*store, new_session(&UserId::generate())).await;
    index_comes_to_hold(&*store, &user, &mine.iter().collect::<Vec<_>>()).await;
    for limit in [None, Some(1), Some(3), Some(7), Some(50)] {
        let mut found = of_user(&*store, &user, limit).await;
        found.sort_by(|one, other| one.session_id.cmp(&other.session_id));
        mine.sort_by(|one, other| one.session_id.cmp(&other.session_id));
        assert_eq!(found, mine, "by {limit:?}, each once and whole");
    }
}

pub async fn a_revoked_session_is_gone(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let (one, two) = (created(&*store, new_session(&user)).await, created(&*store, new_session(&user)).await);
    assert_eq!(sessions::revoke(&*store, &one.session_id).await.unwrap().as_ref(), Some(&one));
    assert_eq!(sessions::revoke(&*store, &one.session_id).await.unwrap(), None);
    comes_to_validate(&*store, &one, now(), None).await;
    comes_to_validate(&*store, &two, now(), Some(&two)).await;
    index_comes_to_hold(&*store, &user, &[&two]).await;
}

/// More than one batch takes.
pub async fn signing_out_everywhere_leaves_the_others(store: Arc<dyn Store>) {
    let (user, other) = (UserId::generate(), UserId::generate());
    let mine: Vec<_> = (0..30).map(|_| new_session(&user)).collect();
    all_at_once(mine.iter().cloned().map(|session| {
        let store = Arc::clone(&store);
        async move { sessions::create(&*store, &session).await.unwrap() }
    }))
    .await;
    let of_other = created(&*store, new_session(&other)).await;
    index_comes_to_hold(&*store, &user, &mine.iter().collect::<Vec<_>>()).await;
    let revoked = sessions::revoke_all(&*store, &user).await.unwrap();
    assert_eq!(revoked.len(), mine.len());
    assert_eq!(BTreeSet::from_iter(revoked), ids(&mine));
    for session in &mine {
        comes_to_validate(&*store, session, now(), None).await;
    }
    index_comes_to_hold(&*store, &user, &[]).await;
    comes_to_validate(&*store, &of_other, now(), Some(&of_other)).await;
    crate::eventually("nothing left to revoke", || async {
        sessions::revoke_all(&*store, &user).await.unwrap().is_empty().then_some(())
    })
    .await;
}

/// A refresh token that two present is spent once, and the session goes on for who was first.
pub async fn a_refresh_token_is_spent_once(store: Arc<dyn Store>) {
    let session = created(&*store, new_session(&UserId::generate())).await;
    let rotations: Vec<_> = (0..10)
        .map(|n| Rotation { new_hash: format!("next-{n}"), at: now(), expires_at: now().plus(120 * MINUTE) })
        .collect();
    let answers = all_at_once(rotations.iter().cloned().map(|rotation| {
        let (store, session) = (Arc::clone(&store), session.clone());
        async move { sessions::rotate(&*store, &session, &rotation).await.unwrap() }
    }))
    .await;
    let rotated: Vec<_> =
        rotations.iter().zip(answers).filter_map(|(by, answer)| Some((by, answer?))).collect();
    let [(by, after)] = &rotated[..] else { panic!("{} of them succeeded", rotated.len()) };
    assert_eq!((after.last_used_at, after.expires_at), (by.at, by.expires_at));
    assert_eq!(after.token(&by.new_hash), Token::Current);
    assert_eq!(after.token(&session.refresh_token_hash), Token::Spent);
    comes_to_validate(&*store, &session, session.expires_at, Some(after)).await;
    sessions::revoke(&*store, &session.session_id).await.unwrap();
    let revived = sessions::rotate(&*store, after, by).await.unwrap();
    assert_eq!(revived, None, "a revoked session does not come back");
}

/// What decides is read as it is at that moment.
pub async fn a_session_is_current_at_once(store: Arc<dyn Store>) {
    let session = created(&*store, new_session(&UserId::generate())).await;
    let current = async |at| sessions::current(&*store, &session.session_id, at).await.unwrap();
    assert_eq!(current(now()).await.as_ref(), Some(&session));
    assert_eq!(current(session.expires_at).await, None);
    let rotation = Rotation { new_hash: "next".to_owned(), at: now(), expires_at: session.expires_at };
    let rotated = sessions::rotate(&*store, &session, &rotation).await.unwrap();
    assert_eq!(current(now()).await, rotated);
    sessions::revoke(&*store, &session.session_id).await.unwrap();
    assert_eq!(current(now()).await, None);
}

pub async fn the_sessions_of_a_device_are_apart_from_the_others(store: Arc<dyn Store>) {
    let user = UserId::generate();
    let phone = created(&*store, new_session(&user)).await;
    let laptop = Session { device_id: "dev_2".into(), ..new_session(&user) };
    let laptop = created(&*store, laptop).await;
    created(&*store, new_session(&UserId::generate())).await;
    for session in [phone, laptop] {
        crate::eventually("the session of the device", || async {
            let found = sessions::of_device(&*store, &user, &session.device_id).await.unwrap();
            (found == [session.clone()]).then_some(())
        })
        .await;
    }
}
