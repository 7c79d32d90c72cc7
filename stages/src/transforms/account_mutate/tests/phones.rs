//! Numbers that are registered, proved, and guessed at.

use courant_connectors::model::tables::users::{MAX_ATTEMPTS, Registered};
use serde_json::json;
use tokio::sync::Barrier;

use super::*;

fn profile(told: &Told) -> (&str, bool) {
    match told.answer() {
        Answer::User(profile) => (profile.user_id.as_str(), profile.phone_verified),
        other => panic!("{other:?}"),
    }
}

async fn attempts(world: &World) -> u64 {
    let found = users::registered(&*world.embedded.store, PHONE).await.unwrap();
    let Some(Registered { verification: Some(verification), .. }) = found else { panic!("{found:?}") };
    verification.attempts
}

#[tokio::test]
async fn a_code_goes_out_and_proves_the_number() {
    let world = World::new().await;
    let command = registration("user_1", PHONE, "042137");
    let expires_at = command.code_expires_at;
    let told = world.ask(record(Command::Register(command))).await;
    let Told::Happened(_, event, key, output) = &told else { panic!("{told:?}") };
    assert_eq!((profile(&told), key.as_str(), *output), (("user_1", false), "user_1", VERIFICATION));
    assert_eq!(event["event_type"], "VerificationRequested");
    let payload = json!({
        "user_id": "user_1", "phone_number": PHONE, "code": "042137", "expires_at": expires_at,
    });
    assert_eq!(event["payload"], payload);
    let Credentials { user, password_hash } = world.credentials(PHONE).await.unwrap();
    assert_eq!((user.phone_verified, password_hash.as_str()), (false, "$argon2id$user_1"));

    let told = world.ask(verify(PHONE, "042137")).await;
    assert!(matches!(told, Told::Done(_)), "{told:?}");
    assert_eq!(profile(&told), ("user_1", true));
    assert!(world.credentials(PHONE).await.unwrap().user.phone_verified);
    assert_eq!(world.ask(verify(PHONE, "042137")).await, told, "it may come twice");
    assert_eq!(world.ask(verify(PHONE, "042138")).await.code(), Some(Code::Forbidden));
    assert_eq!(world.ask(register("user_2", PHONE, "1")).await.code(), Some(Code::Conflict));
}

#[tokio::test]
async fn a_number_that_nobody_proved_is_registered_anew() {
    let world = World::new().await;
    world.ask(registered_before("user_1", PHONE, "111111")).await;
    let told = world.ask(register("user_2", PHONE, "222222")).await;
    assert_eq!(profile(&told), ("user_1", false), "the same user");
    assert_eq!(told.event()["payload"]["code"], "222222");
    let Credentials { user, password_hash } = world.credentials(PHONE).await.unwrap();
    assert_eq!(
        (user.display_name.as_str(), password_hash.as_str()),
        ("the one of user_2", "$argon2id$user_2")
    );
    assert_eq!(users::get(&*world.embedded.store, &"user_2".into()).await.unwrap(), None);
    assert_eq!(world.ask(verify(PHONE, "111111")).await.code(), Some(Code::Forbidden), "the former code");
    assert_eq!(profile(&world.ask(verify(PHONE, "222222")).await), ("user_1", true));
}

/// Who enters the code that came last would prove the number for the password of whoever registered last.
#[tokio::test]
async fn a_code_on_its_way_is_for_whom_it_was_sent() {
    let world = World::new().await;
    let first = || register("user_1", PHONE, "111111");
    world.ask(first()).await;
    let Told::Refused(Code::Conflict, why) = world.ask(register("user_2", PHONE, "222222")).await else {
        panic!("it was registered anew")
    };
    assert!(why.contains("a code was sent") && why.contains("register again after 20"), "{why}");
    assert_eq!(profile(&world.ask(first()).await), ("user_1", false), "the same command may come twice");
    for _ in 0..MAX_ATTEMPTS {
        world.ask(verify(PHONE, "000000")).await;
    }
    let again = world.ask(register("user_2", PHONE, "222222")).await;
    assert_eq!(again.code(), Some(Code::Conflict), "guessing does not make room for another");
    assert_eq!(world.credentials(PHONE).await.unwrap().password_hash, "$argon2id$user_1");
}

fn register_in_use(user: &str) -> Record {
    let in_use_from = InUseFrom::Registration;
    record(Command::Register(Register { in_use_from, ..registration(user, PHONE, "111111") }))
}

#[tokio::test]
async fn where_numbers_are_not_proved_an_account_is_in_use_from_the_first_moment() {
    let world = World::new().await;
    world.ask(register_in_use("user_1")).await;
    let taken = world.ask(register_in_use("user_2")).await;
    assert_eq!(taken.code(), Some(Code::Conflict));
    let Credentials { user, password_hash } = world.credentials(PHONE).await.unwrap();
    assert_eq!(
        (user.display_name.as_str(), password_hash.as_str()),
        ("the one of user_1", "$argon2id$user_1")
    );
    let twice = world.ask(register_in_use("user_1")).await;
    assert_eq!(profile(&twice), ("user_1", false), "the same command may come twice");
}

/// Both have seen that nobody has the number before either writes: who comes second takes nothing.
#[tokio::test]
async fn of_two_who_need_not_prove_a_number_one_is_told_that_it_is_taken() {
    let world = World::new().await;
    let other_process = world.embedded.stage(&SPEC);
    let meeting = Arc::new(Barrier::new(2));
    world.embedded.faulty.nth(1, Fault::Meets(Arc::clone(&meeting)));
    world.embedded.faulty.nth(2, Fault::Meets(meeting));
    let (one, two) = tokio::join!(
        world.ask(register_in_use("user_1")),
        carry(&*other_process, register_in_use("user_2")),
    );
    let refused = [&one, &two].map(|told| told.code() == Some(Code::Conflict));
    assert!(refused[0] != refused[1], "{one:?} {two:?}");
    let winner = if refused[0] { "user_2" } else { "user_1" };
    let Credentials { user, password_hash } = world.credentials(PHONE).await.unwrap();
    assert_eq!((user.user_id.as_str(), password_hash), (winner, format!("$argon2id${winner}")));
}

/// Both have seen that nobody has the number before either writes.
#[tokio::test]
async fn of_two_who_register_a_number_at_once_there_is_one_user() {
    let world = World::new().await;
    let other_process = world.embedded.stage(&SPEC);
    let meeting = Arc::new(Barrier::new(2));
    world.embedded.faulty.nth(1, Fault::Meets(Arc::clone(&meeting)));
    world.embedded.faulty.nth(2, Fault::Meets(meeting));
    let (one, two) = tokio::join!(
        world.ask(register("user_1", PHONE, "111111")),
        carry(&*other_process, register("user_2", PHONE, "222222")),
    );
    let refused = [&one, &two].map(|told| told.code() == Some(Code::Conflict));
    assert!(refused[0] != refused[1], "a code is on its way to the other: {one:?} {two:?}");
    let mut made = 0;
    for user in ["user_1", "user_2"] {
        made += usize::from(users::get(&*world.embedded.store, &user.into()).await.unwrap().is_some());
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn a_registration_that_took_effect_tells_of_it_again() {
    let world = World::new().await;
    let command = record(Command::Register(registration("user_1", PHONE, "042137")));
    world.embedded.faulty.nth(1, Fault::unheard());
    assert!(world.ask(command.clone()).await.has_to_wait());
    let first = world.ask(command.clone()).await;
    let second = world.ask(command).await;
    assert_eq!(first.event()["event_id"], second.event()["event_id"]);
    assert_eq!(first.event()["payload"], second.event()["payload"]);
    assert_eq!(profile(&second), ("user_1", false));
}

#[tokio::test]
async fn what_is_no_number_is_refused() {
    let world = World::new().await;
    for number in ["", "0791234567", "+41 79 123 45 67", "phone#+41791234567"] {
        assert_eq!(world.ask(register("user_1", number, "1")).await.code(), Some(Code::BadRequest));
        assert_eq!(world.ask(verify(number, "1")).await.code(), Some(Code::BadRequest));
    }
    assert_eq!(world.ask(verify(PHONE, "1")).await.code(), Some(Code::NotFound), "nobody registered it");
    assert_eq!(world.embedded.faulty.writes(), 0);
}

#[tokio::test]
async fn guessing_ends_a_code() {
    let world = World::new().await;
    world.ask(register("user_1", PHONE, "042137")).await;
    let mut said = Vec::new();
    for guess in 0..MAX_ATTEMPTS {
        let told = world.ask(verify(PHONE, &format!("{guess:06}"))).await;
        let Told::Refused(Code::Forbidden, why) = told else { panic!("{told:?}") };
        said.push(why);
    }
    assert!(said[0].contains("4 attempts are left") && said[3].contains("one attempt is left"), "{said:?}");
    assert!(said[4].contains("register again"), "{said:?}");
    let told = world.ask(verify(PHONE, "042137")).await;
    assert!(matches!(&told, Told::Refused(Code::Forbidden, why) if why.contains("too many")), "{told:?}");
    assert!(!world.credentials(PHONE).await.unwrap().user.phone_verified);
}

#[tokio::test]
async fn another_code_is_another_try() {
    let world = World::new().await;
    world.ask(registered_before("user_1", PHONE, "042137")).await;
    let told = world.ask(verify(PHONE, "042137")).await;
    assert!(matches!(&told, Told::Refused(Code::Forbidden, why) if why.contains("has expired")), "{told:?}");
    world.ask(register("user_1", PHONE, "777777")).await;
    assert_eq!(profile(&world.ask(verify(PHONE, "777777")).await), ("user_1", true));
}

/// A hundred at once, from as many processes: all of them have looked before any is counted.
#[tokio::test]
async fn guessing_at_once_is_no_way_around() {
    let world = World::new().await;
    world.ask(register("user_1", PHONE, "042137")).await;
    let meeting = Arc::new(Barrier::new(100));
    for nth in 1..=100 {
        world.embedded.faulty.nth(nth, Fault::Meets(Arc::clone(&meeting)));
    }
    let guesses = (0..100).map(|guess| world.ask(verify(PHONE, &format!("{guess:06}"))));
    let told = futures::future::join_all(guesses).await;
    assert!(told.iter().all(|told| told.code() == Some(Code::Forbidden)));
    let counted = |told: &&Told| matches!(told, Told::Refused(_, why) if why.contains("the code is wrong"));
    assert_eq!(told.iter().filter(counted).count(), MAX_ATTEMPTS as usize, "the others were not looked at");
    assert_eq!(attempts(&world).await, u64::from(MAX_ATTEMPTS));
    assert_eq!(world.ask(verify(PHONE, "042137")).await.code(), Some(Code::Forbidden));
}

#[tokio::test]
async fn a_code_that_ended_proves_nothing() {
    let world = World::new().await;
    let ended = Register { code_expires_at: now(), ..registration("user_1", PHONE, "042137") };
    world.ask(record(Command::Register(ended))).await;
    let told = world.ask(verify(PHONE, "042137")).await;
    assert!(matches!(&told, Told::Refused(Code::Forbidden, why) if why.contains("expired")), "{told:?}");
    assert_eq!(attempts(&world).await, 0, "and nobody had to count");
}
