//! Signing in and out.

use courant_connectors::model::commands::{Answer as CommandAnswer, Code};
use serde_json::{Value, json};
use warp::http::Method;

use super::world::{PASSWORD, Person, World, phone_number};

fn registration(number: u32) -> Value {
    json!({"phone_number": phone_number(number), "display_name": "Ada", "password": PASSWORD})
}

fn login(number: u32) -> Value {
    json!({"phone_number": phone_number(number), "password": PASSWORD})
}

#[tokio::test]
async fn from_a_phone_number_to_a_session() {
    let world = World::new().await;
    let registered = world.post_as_nobody("/auth/register", registration(1)).await;
    assert_eq!((registered.status, &registered.body["phone_verified"]), (201, &json!(false)));
    let early = world.post_as_nobody("/auth/login", login(1)).await;
    assert_eq!(early.refusal(), (403, "FORBIDDEN"));
    let code = registered.text("code");
    let wrong = if code == "000000" { "000001" } else { "000000" };
    let guess = json!({"phone_number": phone_number(1), "code": wrong});
    assert_eq!(world.post_as_nobody("/auth/verify", guess).await.refusal(), (403, "FORBIDDEN"));
    let proof = json!({"phone_number": phone_number(1), "code": code});
    let verified = world.post_as_nobody("/auth/verify", proof).await;
    assert_eq!(verified.body, json!({"user_id": registered.text("user_id"), "phone_verified": true}));
    let mut full = login(1);
    full["device_id"] = json!("dev_mine");
    full["device_name"] = json!("Ada's phone");
    let signed_in = world.post_as_nobody("/auth/login", full).await;
    assert_eq!((signed_in.status, &signed_in.body["expires_in"]), (200, &json!(900)));
    assert_eq!(signed_in.body["device_id"], "dev_mine");
    assert_eq!(signed_in.body["user_id"], registered.body["user_id"]);
    let sessions = world.get("/sessions", &Person::new(&signed_in)).await;
    assert_eq!(sessions.body["sessions"][0]["device_name"], "Ada's phone");
    assert_eq!(sessions.body["sessions"][0]["current"], true);
    let again = world.post_as_nobody("/auth/register", registration(1)).await;
    assert_eq!(again.refusal(), (409, "CONFLICT"));
}

#[tokio::test]
async fn codes_are_told_in_development_only() {
    let world = World::with(|_, auth| auth.reveal_codes = false).await;
    let registered = world.post_as_nobody("/auth/register", registration(1)).await;
    assert_eq!((registered.status, registered.body.get("code")), (201, None));
    let world = World::with(|_, auth| auth.require_verification = false).await;
    world.post_as_nobody("/auth/register", registration(1)).await;
    let signed_in = world.post_as_nobody("/auth/login", login(1)).await;
    assert!(signed_in.text("device_id").starts_with("dev_"), "made where the client has none");
}

#[tokio::test]
async fn a_number_that_need_not_be_proved_is_registered_once() {
    for (required, again) in [(true, 201), (false, 409)] {
        let world = World::with(|_, auth| auth.require_verification = required).await;
        world.post_as_nobody("/auth/register", registration(1)).await;
        let second = world.post_as_nobody("/auth/register", registration(1)).await;
        assert_eq!(second.status, again, "{second:?}");
    }
}

#[tokio::test]
async fn nobody_learns_who_is_registered() {
    let world = World::new().await;
    world.person(1).await;
    let mut wrong = login(1);
    wrong["password"] = json!("wrong horse");
    let wrong = world.post_as_nobody("/auth/login", wrong).await;
    let unknown = world.post_as_nobody("/auth/login", login(2)).await;
    assert_eq!(wrong.refusal(), (401, "UNAUTHENTICATED"));
    assert_eq!(wrong.body["error"]["message"], unknown.body["error"]["message"]);
    assert_eq!(unknown.refusal(), wrong.refusal());
}

#[tokio::test]
async fn a_refresh_token_is_good_once() {
    let world = World::new().await;
    let person = world.person(1).await;
    let spent = json!({"refresh_token": person.refresh_token});
    let renewed = Person::new(&world.post_as_nobody("/auth/refresh", spent.clone()).await);
    assert_eq!((&renewed.user_id, &renewed.session_id), (&person.user_id, &person.session_id));
    assert_ne!(renewed.refresh_token, person.refresh_token);
    assert_eq!(world.get("/users/me", &renewed).await.status, 200);
    let stolen = world.post_as_nobody("/auth/refresh", spent).await;
    assert_eq!(stolen.refusal(), (401, "UNAUTHENTICATED"));
    assert_eq!(
        world.get("/users/me", &renewed).await.refusal(),
        (401, "UNAUTHENTICATED"),
        "it ends the session"
    );
    for nonsense in ["", "sess_1", "sess_1.short", &format!("sess_1.{}", "é".repeat(43))] {
        let answer = world.post_as_nobody("/auth/refresh", json!({"refresh_token": nonsense})).await;
        assert_eq!(answer.refusal(), (401, "UNAUTHENTICATED"), "{nonsense}");
    }
}

#[tokio::test]
async fn who_has_signed_out_is_out_at_once() {
    let world = World::new().await;
    let person = world.person(1).await;
    let elsewhere = Person::new(&world.post_as_nobody("/auth/login", login(1)).await);
    assert_eq!(world.post("/auth/logout", &person, Value::Null).await.status, 204);
    assert_eq!(world.get("/users/me", &person).await.refusal(), (401, "UNAUTHENTICATED"));
    assert_eq!(world.get("/users/me", &elsewhere).await.status, 200, "only there");
    let third = Person::new(&world.post_as_nobody("/auth/login", login(1)).await);
    assert_eq!(world.post("/auth/logout-all", &third, json!({})).await.status, 204);
    for gone in [elsewhere, third] {
        assert_eq!(world.get("/users/me", &gone).await.refusal(), (401, "UNAUTHENTICATED"));
    }
}

#[tokio::test]
async fn sessions_are_listed_in_pages_and_ended_one_by_one() {
    let world = World::new().await;
    let (person, stranger) = (world.person(1).await, world.person(2).await);
    for _ in 0..4 {
        Person::new(&world.post_as_nobody("/auth/login", login(1)).await);
    }
    let (mut seen, mut path) = (Vec::new(), "/sessions?limit=2".to_owned());
    loop {
        let page = world.get(&path, &person).await;
        let sessions = page.body["sessions"].as_array().unwrap().clone();
        assert!(sessions.len() <= 2);
        seen.extend(sessions.iter().map(|session| session["session_id"].as_str().unwrap().to_owned()));
        match page.body["next"].as_str() {
            Some(next) => path = format!("/sessions?limit=2&cursor={next}"),
            None => break,
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    let other = seen.iter().find(|id| **id != person.session_id.as_str()).unwrap();
    let end = async |who: &Person, id: &str| {
        world.call(Method::DELETE, &format!("/sessions/{id}"), Some(&who.token), Value::Null).await
    };
    assert_eq!(end(&stranger, other).await.refusal(), (404, "NOT_FOUND"), "it is not theirs");
    assert_eq!(end(&person, other).await.status, 204);
    assert_eq!(end(&person, other).await.refusal(), (404, "NOT_FOUND"), "it is gone");
    assert_eq!(end(&person, "nonsense").await.refusal(), (404, "NOT_FOUND"));
}

#[tokio::test]
async fn a_token_is_needed_and_has_to_be_ours() {
    let world = World::new().await;
    let (person, other) = (world.person(1).await, world.person(2).await);
    // signed by us, and the session is somebody else's
    let mixed =
        world.api.tokens.issue(&crate::auth::Caller { user_id: other.user_id.clone(), ..person.caller() });
    let unknown =
        world.api.tokens.issue(&crate::auth::Caller { session_id: "sess_0".into(), ..person.caller() });
    for token in ["", "nonsense", &person.token[1..], &mixed, &unknown, &person.refresh_token] {
        let answer = world.call(Method::GET, "/users/me", Some(token), Value::Null).await;
        assert_eq!(answer.refusal(), (401, "UNAUTHENTICATED"), "{token}");
    }
    let mine = world
        .call(Method::GET, "/users/me", Some(&world.api.tokens.issue(&person.caller())), Value::Null)
        .await;
    assert_eq!(mine.status, 200);
}

#[tokio::test]
async fn what_a_pipeline_refuses_is_told_and_what_it_mixes_up_is_not() {
    let world = World::new().await;
    world.script_refusal(Code::Unavailable);
    let refused = world.post_as_nobody("/auth/register", registration(1)).await;
    assert_eq!(
        (refused.refusal(), &refused.body["error"]["retryable"]),
        ((503, "UNAVAILABLE"), &json!(true))
    );
    world.script(CommandAnswer::Done);
    let mixed_up = world.post_as_nobody("/auth/register", registration(1)).await;
    assert_eq!(mixed_up.refusal(), (503, "UNAVAILABLE"));
    let malformed = [
        json!({"phone_number": "079 123", "display_name": "Ada", "password": PASSWORD}),
        json!({"phone_number": phone_number(1), "display_name": " ", "password": PASSWORD}),
        json!({"phone_number": phone_number(1), "display_name": "Ada", "password": "short"}),
        json!({"phone_number": phone_number(1), "display_name": "Ada"}),
        json!({"phone_number": phone_number(1), "display_name": "Ada", "password": PASSWORD, "pasword": "x"}),
    ];
    for body in malformed {
        let answer = world.post_as_nobody("/auth/register", body.clone()).await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{body}");
        assert!(!answer.body.to_string().contains("short\""), "{answer:?}");
    }
}
