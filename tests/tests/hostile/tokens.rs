//! Tokens that open nothing.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use courant_client::{Client, SignedIn};
use courant_tests::chat::connect;
use courant_tests::raw::{ask, connect_from, request, upgrade_request};
use courant_tests::{Home, home};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::time::timeout;

use super::{address, refused, refused_socket, start};

/// Sockets are told when their session ends. Whoever was not told looks sessions up every five seconds.
const AT_ONCE: Duration = Duration::from_secs(3);

fn part(token: &str, at: usize) -> Value {
    serde_json::from_slice(&BASE64.decode(token.split('.').nth(at).unwrap()).unwrap()).unwrap()
}

fn sign(header: &Value, claims: &Value, key: &[u8]) -> String {
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(signed.as_bytes());
    format!("{signed}.{}", BASE64.encode(mac.finalize().into_bytes()))
}

/// What an access token can be made into by somebody who has one, or the key.
fn forged(home: &Home, token: &str) -> Vec<(&'static str, String)> {
    let (header, claims) = (part(token, 0), part(token, 1));
    let key = home.read("data/signing-key");
    let key = key.trim_end().as_bytes();
    assert_eq!(sign(&header, &claims, key), token, "this is how tokens are signed");
    let with = |base: &Value, field: &str, value: Value| {
        let mut changed = base.clone();
        changed[field] = value;
        changed
    };
    let now = claims["iat"].as_u64().unwrap();
    let unsigned = |header: &Value| {
        format!("{}.{}.", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()))
    };
    let somebody = with(&claims, "sub", json!("user_00000000000000000000000000"));
    vec![
        ("expired", sign(&header, &with(&claims, "exp", json!(now - 1)), key)),
        ("for others", sign(&header, &with(&claims, "aud", json!("others")), key)),
        ("of another key", sign(&header, &claims, b"another key that is long enough for anybody")),
        ("of a key nobody has", sign(&with(&header, "kid", json!("k9")), &claims, key)),
        ("alg none", unsigned(&with(&header, "alg", json!("none")))),
        ("alg None", unsigned(&with(&header, "alg", json!("None")))),
        ("another algorithm", sign(&with(&header, "alg", json!("HS512")), &claims, key)),
        ("without its signature", unsigned(&header)),
        ("of another's session", sign(&header, &somebody, key)),
        ("longer than any", format!("{token}{}", "A".repeat(8000))),
        ("nothing", String::new()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_and_stale_tokens_open_nothing() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let ann = courant.person("Ann").await;
    let unauthenticated = (401, "UNAUTHENTICATED".to_owned());
    let as_access = ("a refresh token", ann.refresh_token.clone());
    for (what, token) in forged(&home, ann.client.token().unwrap()).into_iter().chain([as_access]) {
        let client: Client = courant.client().with_token(&token);
        let somebody = SignedIn { client, ..ann.clone() };
        let over_rest = refused(&somebody, Method::GET, "/api/v1/users/me", None).await;
        assert_eq!(over_rest, unauthenticated, "{what}");
        assert_eq!(refused_socket(somebody.client.connect().await.err()), unauthenticated, "{what}");
    }
    ann.client.get("/api/v1/users/me").await.unwrap();
    connect(&ann).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_ended_is_out_everywhere() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let (ann, bob) = (courant.person("Ann").await, courant.person("Bob").await);
    let mut anns = super::raw_socket(&mut courant, &ann).await;
    let mut bobs = super::raw_socket(&mut courant, &bob).await;
    ann.client.call(Method::POST, "/api/v1/auth/logout-all", None).await.unwrap();
    assert_eq!(timeout(AT_ONCE, anns.closed()).await.expect("it is closed at once"), Some(4401));
    let unauthenticated = (401, "UNAUTHENTICATED".to_owned());
    for path in ["/api/v1/users/me", "/api/v1/chats", "/api/v1/sessions"] {
        assert_eq!(refused(&ann, Method::GET, path, None).await, unauthenticated, "{path}");
    }
    assert_eq!(refused_socket(ann.client.connect().await.err()), unauthenticated);
    let refresh = json!({"refresh_token": ann.refresh_token});
    let again = refused(&ann, Method::POST, "/api/v1/auth/refresh", Some(&refresh)).await;
    assert_eq!(again, unauthenticated);
    bobs.send(&courant_tests::raw::frame(0x81, br#"{"type":"heartbeat"}"#)).await;
    assert_eq!(bobs.next_json().await["type"], "heartbeat", "others are not concerned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_in_urls_are_neither_accepted_nor_logged() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[("COURANT_LOGGING__LEVEL", "trace")]);
    let ann = courant.person("Ann").await;
    let (token, to) = (ann.client.token().unwrap().to_owned(), address(&mut courant));
    for name in ["token", "access_token", "bearer", "authorization"] {
        let query = format!("{name}={token}");
        let mut stream = connect_from(1, to).await.unwrap();
        let close = [("connection", "close")];
        let upgrade = ask(&mut stream, &upgrade_request(&format!("/ws?{query}"), &close)).await;
        assert_eq!((upgrade.status, &upgrade.body["error"]["code"]), (401, &json!("UNAUTHENTICATED")));
        let mut stream = connect_from(1, to).await.unwrap();
        let me = ask(&mut stream, &request("GET", &format!("/api/v1/users/me?{query}"), &[], "")).await;
        assert_eq!(me.status, 401);
    }
    connect(&ann).await;
    ann.client.get("/api/v1/users/me").await.unwrap();
    let refresh = json!({"refresh_token": ann.refresh_token});
    ann.client.post("/api/v1/auth/refresh", &refresh).await.unwrap();
    let signature = token.rsplit('.').next().unwrap();
    let log = courant.stderr();
    assert!(log.contains("answered"), "it is told what is asked for");
    let line = log.lines().find(|line| line.contains(signature));
    assert_eq!(line, None, "a token is in the log");
    assert!(!log.contains(&ann.refresh_token), "nor is a refresh token");
    assert!(!log.contains("correct horse battery staple"), "nor a password");
}
