//! How often somebody may do something, with the limits that are shipped.

use courant_client::Client;
use courant_tests::chat::{connect, group, next_of};
use courant_tests::raw::{RawAnswer, ask, connect_from, request};
use courant_tests::{Courant, home};
use hyper::Method;
use serde_json::{Value, json};

use super::{address, start};

const LIMITED: (&str, &str) = ("COURANT_EDGE__LIMITS__ENABLED", "true");

/// Of the shipped limits.
const MESSAGES: usize = 60;
const LOGINS: usize = 5;
/// Refusals that a socket gets; the last comes before its close.
const EXCESS: usize = 17;

/// Nobody's phone numbers.
const GUESSED: &str = "+41790000001";
const NEVER_TRIED: [&str; 3] = ["+41790000002", "+41790000003", "+41790000004"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_messages_a_minute_whichever_way_they_come() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[LIMITED]);
    let (ann, bob) = (courant.person("Ann").await, courant.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    let path = format!("/api/v1/chats/{chat}/messages");
    for n in 0..MESSAGES / 2 {
        let message = json!({"client_message_id": format!("r-{n}"), "content": "x"});
        ann.client.post(&path, &message).await.unwrap();
        anns.send_message(&chat, &format!("w-{n}"), "x").await.unwrap();
    }
    for _ in 0..MESSAGES / 2 {
        next_of(&mut anns, "ack").await;
    }
    let message = json!({"client_message_id": "r-too-many", "content": "x"});
    let answer = ann.client.call(Method::POST, &path, Some(&message)).await.unwrap();
    let error = &answer.body["error"];
    assert_eq!((answer.status.as_u16(), &error["code"]), (429, &json!("RATE_LIMITED")));
    let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait) && error["retryable"] == true, "{answer:?}");

    // Whoever is told to slow down and does not is shown out.
    let mut refusals = 0;
    let code = loop {
        anns.send_message(&chat, &format!("x-{refusals}"), "x").await.unwrap();
        let heard = loop {
            match anns.next().await {
                courant_client::Heard::Frame(text) => {
                    let frame: Value = serde_json::from_slice(&text).unwrap();
                    if frame["type"] == "error" {
                        break Ok(frame);
                    }
                }
                courant_client::Heard::Closed(code) => break Err(code),
            }
        };
        match heard {
            Ok(frame) => assert_eq!(frame["code"], "RATE_LIMITED"),
            Err(code) => break code,
        }
        refusals += 1;
        assert!(refusals <= EXCESS, "whoever goes on may");
    };
    assert_eq!((code, refusals), (Some(4429), EXCESS));
    bobs.send_message(&chat, "b-1", "I may").await.unwrap();
    next_of(&mut bobs, "ack").await;
}

async fn log_in(courant: &mut Courant, number: &str, host: u8, headers: &[(&str, &str)]) -> RawAnswer {
    let to = address(courant);
    let body = json!({"phone_number": number, "password": "is it this one?"}).to_string();
    let mut stream = connect_from(host, to).await.unwrap();
    ask(&mut stream, &request("POST", "/api/v1/auth/login", headers, &body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_logins_from_an_address_and_for_a_number() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[LIMITED]);
    for _ in 0..LOGINS {
        assert_eq!(log_in(&mut courant, GUESSED, 2, &[]).await.status, 401);
    }
    // Other numbers from the same address, the same number from another address, and neither.
    let forged = [("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.1")];
    for (number, headers) in NEVER_TRIED.into_iter().zip([&[][..], &forged]) {
        let refused = log_in(&mut courant, number, 2, headers).await;
        assert_eq!((refused.status, &refused.body["error"]["code"]), (429, &json!("RATE_LIMITED")));
        let (_, after) = refused.head.split_once("retry-after: ").expect("it says when to come back");
        let wait: u64 = after.lines().next().unwrap().parse().unwrap();
        assert!((1..=15 * 60).contains(&wait), "{wait}");
    }
    assert_eq!(log_in(&mut courant, GUESSED, 3, &[]).await.status, 429, "it has been tried often enough");
    assert_eq!(log_in(&mut courant, NEVER_TRIED[2], 3, &[]).await.status, 401, "nobody else is concerned");
    let ann = courant.person("Ann").await;
    ann.client.get("/api/v1/users/me").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switched_off_nothing_is_limited() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[("COURANT_EDGE__LIMITS__ENABLED", "false")]);
    let ann = courant.person("Ann").await;
    let chat = group(&[&ann]).await;
    let mut socket = connect(&ann).await;
    for n in 0..2 * MESSAGES {
        socket.send_message(&chat, &format!("m-{n}"), "x").await.unwrap();
    }
    for _ in 0..2 * MESSAGES {
        next_of(&mut socket, "ack").await;
    }
    for _ in 0..2 * LOGINS {
        assert_eq!(log_in(&mut courant, GUESSED, 2, &[]).await.status, 401);
    }
    let client: Client = courant.client();
    let refused = client.get("/api/v1/users/me").await.unwrap_err();
    assert_eq!(refused.code(), Some("UNAUTHENTICATED"), "who is nobody is nobody all the same");
}
