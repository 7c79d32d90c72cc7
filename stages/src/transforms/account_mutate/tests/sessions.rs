//! Sessions that begin, go on and end; and what the gateways learn of it.

use courant_connectors::model::commands::SessionAnswer;

use super::*;
use crate::testing::down::DownLive;

fn session(told: &Told) -> &SessionAnswer {
    match told.answer() {
        Answer::Session(session) => session,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_device_has_one_session() {
    let world = World::new().await;
    let told = world.ask(open("sess_1", "user_1", "dev_1")).await;
    assert_eq!(session(&told).device_id, DeviceId::from("dev_1"));
    let stored = session_table::current(&*world.embedded.store, &"sess_1".into(), now()).await.unwrap();
    assert_eq!(stored.unwrap().device_name.as_deref(), Some("phone"));
    world.ask(open("sess_2", "user_1", "dev_2")).await;
    world.ask(open("sess_3", "user_2", "dev_1")).await;
    for (user, device) in [("user_1", "dev_1"), ("user_1", "dev_2"), ("user_2", "dev_1")] {
        world.connect(user, device).await;
    }
    let mut gateway = world.listen().await;
    world.ask(open("sess_4", "user_1", "dev_1")).await;
    assert_eq!(heard(&mut *gateway).await, ("user_1".to_owned(), vec!["sess_1".to_owned()]));
    assert!(!world.is_signed_in("sess_1").await, "the same device of the same user");
    for session in ["sess_2", "sess_3", "sess_4"] {
        assert!(world.is_signed_in(session).await, "{session}");
    }
    assert_eq!(world.connected("user_1").await, ["dev_2"]);
    assert_eq!(world.connected("user_2").await, ["dev_1"]);
}

#[tokio::test]
async fn opening_is_done_once_however_often_it_is_tried() {
    let world = World::new().await;
    world.embedded.faulty.nth(1, Fault::Unheard);
    assert!(world.ask(open("sess_1", "user_1", "dev_1")).await.has_to_wait());
    let told = world.ask(open("sess_1", "user_1", "dev_1")).await;
    assert_eq!(session(&told).session_id, SessionId::from("sess_1"));
    assert!(world.is_signed_in("sess_1").await);
    let stolen = world.ask(open("sess_1", "user_2", "dev_1")).await;
    assert_eq!(stolen.code(), Some(Code::Conflict), "another's id");
}

#[tokio::test]
async fn a_token_is_spent_for_the_next() {
    let world = World::new().await;
    world.ask(open("sess_1", "user_1", "dev_1")).await;
    let told = world.ask(rotate("sess_1", 0, 1)).await;
    assert_eq!(session(&told).user_id, UserId::from("user_1"));
    world.embedded.faulty.nth(1, Fault::Unheard);
    assert!(world.ask(rotate("sess_1", 1, 2)).await.has_to_wait());
    let again = world.ask(rotate("sess_1", 1, 2)).await;
    assert!(matches!(again, Told::Done(Answer::Session(_))), "the same command again: {again:?}");
    assert!(matches!(world.ask(rotate("sess_1", 2, 3)).await, Told::Done(_)));
}

#[tokio::test]
async fn a_token_that_comes_again_ends_the_session() {
    let world = World::new().await;
    world.ask(open("sess_1", "user_1", "dev_1")).await;
    world.ask(open("sess_2", "user_1", "dev_2")).await;
    world.ask(rotate("sess_1", 0, 1)).await;
    world.ask(rotate("sess_1", 1, 2)).await;
    world.connect("user_1", "dev_1").await;
    world.connect("user_1", "dev_2").await;
    let mut gateway = world.listen().await;
    let stolen = world.ask(rotate("sess_1", 0, 9)).await;
    assert_eq!(stolen.code(), Some(Code::Unauthenticated));
    assert_eq!(heard(&mut *gateway).await, ("user_1".to_owned(), vec!["sess_1".to_owned()]));
    assert!(!world.is_signed_in("sess_1").await);
    assert_eq!(world.connected("user_1").await, ["dev_2"]);
    let current = world.ask(rotate("sess_1", 2, 3)).await;
    assert_eq!(current.code(), Some(Code::Unauthenticated), "whoever has it, they are out");
    assert!(world.is_signed_in("sess_2").await, "the other device stays");
}

#[tokio::test]
async fn a_token_that_never_was_ends_nothing() {
    let world = World::new().await;
    world.ask(open("sess_1", "user_1", "dev_1")).await;
    assert_eq!(world.ask(rotate("sess_1", 7, 8)).await.code(), Some(Code::Unauthenticated));
    assert_eq!(world.ask(rotate("sess_9", 0, 1)).await.code(), Some(Code::Unauthenticated));
    assert!(matches!(world.ask(rotate("sess_1", 0, 1)).await, Told::Done(_)));
}

#[tokio::test]
async fn one_session_ends_and_nobody_elses() {
    let world = World::new().await;
    world.ask(open("sess_1", "user_1", "dev_1")).await;
    world.ask(open("sess_2", "user_1", "dev_2")).await;
    world.connect("user_1", "dev_1").await;
    world.connect("user_1", "dev_2").await;
    let mut gateway = world.listen().await;
    let others = world.ask(end("user_2", Some("sess_1"))).await;
    assert_eq!(others.code(), Some(Code::NotFound));
    assert!(world.is_signed_in("sess_1").await);
    assert_eq!(world.ask(end("user_1", Some("sess_1"))).await, Told::Done(Answer::Done));
    let told = heard(&mut *gateway).await;
    assert_eq!(told, ("user_1".to_owned(), vec!["sess_1".to_owned()]), "the first that was told");
    assert!(!world.is_signed_in("sess_1").await && world.is_signed_in("sess_2").await);
    assert_eq!(world.connected("user_1").await, ["dev_2"]);
    assert_eq!(world.ask(rotate("sess_1", 0, 1)).await.code(), Some(Code::Unauthenticated));
}

#[tokio::test]
async fn all_sessions_end() {
    let world = World::new().await;
    for n in 0..30 {
        world.ask(open(&format!("sess_{n}"), "user_1", &format!("dev_{n}"))).await;
    }
    world.ask(open("sess_other", "user_2", "dev_1")).await;
    world.connect("user_1", "dev_1").await;
    world.connect("user_1", "dev_2").await;
    let mut gateway = world.listen().await;
    assert_eq!(world.ask(end("user_1", None)).await, Told::Done(Answer::Done));
    assert_eq!(heard(&mut *gateway).await, ("user_1".to_owned(), Vec::new()), "all of them");
    for n in 0..30 {
        assert!(!world.is_signed_in(&format!("sess_{n}")).await);
    }
    assert!(world.is_signed_in("sess_other").await);
    assert_eq!(world.connected("user_1").await, Vec::<String>::new());
    assert_eq!(world.ask(end("user_1", None)).await, Told::Done(Answer::Done), "it may come twice");
}

/// It is gone from the store and nobody was told: who asks again is told that it is gone, and so is every gateway.
#[tokio::test]
async fn a_sign_out_that_was_cut_off_is_told_by_the_next() {
    let world = World::new().await;
    world.ask(open("sess_1", "user_1", "dev_1")).await;
    world.embedded.faulty.nth(1, Fault::Unheard);
    let mut gateway = world.listen().await;
    assert!(world.ask(end("user_1", Some("sess_1"))).await.has_to_wait());
    assert_eq!(world.ask(end("user_1", Some("sess_1"))).await.code(), Some(Code::NotFound));
    assert_eq!(heard(&mut *gateway).await, ("user_1".to_owned(), vec!["sess_1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn live_state_that_is_down_keeps_nobody_signed_in() {
    let world = World::new().await;
    let stage = world.embedded.stage_with(&SPEC, Arc::new(DownLive));
    for (session, device) in [("sess_1", "dev_1"), ("sess_2", "dev_2"), ("sess_3", "dev_3")] {
        world.ask(open(session, "user_1", device)).await;
    }
    let told = carry(&*stage, end("user_1", Some("sess_1"))).await;
    assert_eq!(told, Told::Done(Answer::Done));
    assert!(!world.is_signed_in("sess_1").await);
    assert!(matches!(carry(&*stage, open("sess_4", "user_1", "dev_2")).await, Told::Done(_)));
    assert!(!world.is_signed_in("sess_2").await && world.is_signed_in("sess_4").await);
    assert_eq!(carry(&*stage, end("user_1", None)).await, Told::Done(Answer::Done));
    assert!(!world.is_signed_in("sess_3").await && !world.is_signed_in("sess_4").await);
}
