//! Whatever is sent: bounded, answered, and never an error of ours.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use warp::http::{Method, Request, header};

use super::world::{Answer, PASSWORD, World, phone_number};
use crate::rest::PREFIX;
use crate::rest::input::{BODY_TIMEOUT, LONGEST_BODY};

fn login(body: impl Into<Bytes>, content_type: &str) -> Request<Full<Bytes>> {
    Request::post(format!("{PREFIX}/auth/login"))
        .header(header::CONTENT_TYPE, content_type)
        .body(Full::new(body.into()))
        .unwrap()
}

async fn send(world: &World, body: impl Into<Bytes>, content_type: &str) -> Answer {
    world.send(login(body, content_type)).await
}

fn nobody() -> String {
    json!({"phone_number": phone_number(0), "password": PASSWORD}).to_string()
}

#[tokio::test]
async fn bodies_are_json_objects_of_known_fields() {
    let world = World::new().await;
    for good in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(send(&world, nobody(), good).await.status, 401, "{good}: understood");
    }
    for strange in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", "json"] {
        assert_eq!(send(&world, nobody(), strange).await.refusal(), (400, "BAD_REQUEST"), "{strange}");
    }
    let unknown = nobody().replace('{', r#"{"admin":true,"#);
    let twice = nobody().replace('{', r#"{"password":"correct horse","#);
    let positional = json!([phone_number(0), PASSWORD, null, null]).to_string();
    let trailing = format!("{} {{}}", nobody());
    for bad in
        [unknown, twice, positional, trailing, "null".into(), "{".into(), String::new(), "\u{feff}{}".into()]
    {
        let answer = send(&world, bad.clone(), "application/json").await;
        assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{bad}");
    }
    let invalid = Bytes::from_static(b"{\"phone_number\":\"\xff\",\"password\":\"\\ud800\"}");
    assert_eq!(send(&world, invalid, "application/json").await.refusal(), (400, "BAD_REQUEST"));
}

#[tokio::test]
async fn sizes_are_bounded() {
    let world = World::new().await;
    let padded = |length: usize| nobody() + &" ".repeat(length - nobody().len());
    assert_eq!(send(&world, padded(LONGEST_BODY), "application/json").await.status, 401);
    let large = send(&world, padded(LONGEST_BODY + 1), "application/json").await;
    assert_eq!(large.refusal(), (413, "TOO_LARGE"));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let bomb = format!("{{\"phone_number\":{}1{}}}", open.repeat(10_000), close.repeat(10_000));
        let deep = send(&world, bomb, "application/json").await;
        assert_eq!(deep.refusal(), (400, "BAD_REQUEST"));
        assert!(deep.body["error"]["message"].as_str().unwrap().contains("nested"), "{deep:?}");
    }
    let person = world.person(1).await;
    let long = world.get(&format!("/users?phone_number={}", "1".repeat(3000)), &person).await;
    assert_eq!(long.refusal(), (400, "BAD_REQUEST"));
    let quoting =
        json!({"phone_number": phone_number(0), "password": PASSWORD, "device_name": {"x".repeat(9000): 1}});
    let quoted = send(&world, quoting.to_string(), "application/json").await;
    assert!(quoted.body.to_string().len() < 1000, "what is refused is not sent back whole");
}

#[tokio::test]
async fn a_body_that_never_ends_is_cut_off() {
    let world = World::new().await;
    let chunked = |parts: usize| {
        let part = Frame::data(Bytes::from(vec![b' '; 1024]));
        let body = futures::stream::iter((0..parts).map(move |_| Ok::<_, Infallible>(part_of(&part))));
        Request::post(format!("{PREFIX}/auth/login"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(StreamBody::new(body))
            .unwrap()
    };
    assert_eq!(world.send(chunked(64)).await.refusal(), (400, "BAD_REQUEST"), "only spaces");
    assert_eq!(
        world.send(chunked(1_000_000)).await.refusal(),
        (413, "TOO_LARGE"),
        "without a length in its head"
    );
    tokio::time::pause();
    let begun = Instant::now();
    let trickle = Box::pin(futures::stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b" ")))
    }));
    let request = Request::post(format!("{PREFIX}/auth/login")).body(StreamBody::new(trickle)).unwrap();
    let slow = world.send(request).await;
    assert_eq!(slow.refusal(), (400, "BAD_REQUEST"));
    assert!(begun.elapsed() < BODY_TIMEOUT + Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// What a client hears over a real connection that writes its request before it reads.
async fn told_after(address: SocketAddr, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {PREFIX}/auth/login HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in body.chunks(0x4000) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    told
}

#[tokio::test]
async fn who_sends_too_much_hears_it_after_the_last_byte() {
    let world = World::new().await;
    let address = world.serve().await;
    let body = " ".repeat(1 << 20);
    let chunks: String = (0..64).map(|_| format!("4000\r\n{}\r\n", &body[..0x4000])).collect();
    for (head, body) in [
        (format!("content-length: {}", body.len()), body),
        ("transfer-encoding: chunked".to_owned(), format!("{chunks}0\r\n\r\n")),
    ] {
        let told = told_after(address, &head, body.as_bytes()).await;
        assert!(told.starts_with("HTTP/1.1 413") && told.contains("TOO_LARGE"), "{head}: {told}");
    }
    let asking = format!("content-length: {}\r\nexpect: 100-continue", 1 << 20);
    let told = told_after(address, &asking, b"").await;
    assert!(told.starts_with("HTTP/1.1 413"), "and who asks first need not send: {told}");
}

/// Only so much is read on, and only for so long.
#[tokio::test]
async fn a_body_that_is_thrown_away_is_bounded() {
    let world = World::new().await;
    tokio::time::pause();
    let begun = Instant::now();
    let stuck = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let request = Request::post(format!("{PREFIX}/auth/login"))
        .header(header::CONTENT_LENGTH, 1 << 20)
        .body(StreamBody::new(stuck))
        .unwrap();
    assert_eq!(world.send(request).await.refusal(), (413, "TOO_LARGE"));
    assert!(begun.elapsed() < BODY_TIMEOUT / 2, "{:?}", begun.elapsed());
}

fn part_of(frame: &Frame<Bytes>) -> Frame<Bytes> {
    Frame::data(frame.data_ref().unwrap().clone())
}

#[tokio::test]
async fn limits_hold_and_say_when_to_come_back() {
    let world = World::with(|edge, _| {
        edge.limits.enabled = true;
        edge.limits.logins = "2/15min".parse().unwrap();
        edge.limits.anonymous = "5/min".parse().unwrap();
        edge.limits.messages = "1/min".parse().unwrap();
        edge.limits.requests = "3/min".parse().unwrap();
    })
    .await;
    let ada = world.person(1).await; // registers and verifies: two of five; signs in: one of two
    let path = format!("/chats/{}/messages", world.group(&ada, &[]).await);
    let message = |id: &str| json!({"client_message_id": id, "content": "x"});
    assert_eq!(world.post(&path, &ada, message("1")).await.status, 201);
    let refused = world.post(&path, &ada, message("2")).await;
    assert_eq!(refused.refusal(), (429, "RATE_LIMITED"));
    let wait: u64 = refused.header(header::RETRY_AFTER).parse().unwrap();
    assert!((1..=60).contains(&wait));
    let millis = refused.body["error"]["retry_after_ms"].as_u64().unwrap();
    assert_eq!((millis.div_ceil(1000), &refused.body["error"]["retryable"]), (wait, &json!(true)));
    assert_eq!(world.get("/users/me", &ada).await.status, 200);
    assert_eq!(world.get("/users/me", &ada).await.status, 200);
    assert_eq!(
        world.get("/users/me", &ada).await.refusal(),
        (429, "RATE_LIMITED"),
        "the group was one of three"
    );

    let login = |number| json!({"phone_number": phone_number(number), "password": PASSWORD});
    assert_eq!(world.post_as_nobody("/auth/login", login(7)).await.status, 401);
    let third = world.post_as_nobody("/auth/login", login(8)).await;
    assert_eq!(third.refusal(), (429, "RATE_LIMITED"), "whichever number is tried");
    let refresh = json!({"refresh_token": "x"});
    for _ in 0..3 {
        assert_eq!(world.post_as_nobody("/auth/refresh", refresh.clone()).await.status, 401);
    }
    assert_eq!(world.post_as_nobody("/auth/refresh", refresh).await.refusal(), (429, "RATE_LIMITED"));
}

#[tokio::test]
async fn a_number_is_not_tried_from_many_addresses() {
    let world = World::with(|edge, _| {
        edge.limits.enabled = true;
        edge.limits.logins = "2/15min".parse().unwrap();
    })
    .await;
    let proof = json!({"phone_number": phone_number(1), "code": "000000"});
    for _ in 0..2 {
        assert_eq!(world.post_as_nobody("/auth/verify", proof.clone()).await.refusal(), (403, "FORBIDDEN"));
    }
    assert_eq!(world.post_as_nobody("/auth/verify", proof).await.refusal(), (429, "RATE_LIMITED"));
}

#[tokio::test]
async fn there_is_room_for_so_many_requests() {
    let world = World::with(|edge, _| edge.max_requests = NonZeroU32::MIN).await;
    let stuck = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let waiting = Request::post(format!("{PREFIX}/auth/login")).body(StreamBody::new(stuck)).unwrap();
    let mut waiting = Box::pin(world.send(waiting));
    assert!(futures::poll!(&mut waiting).is_pending());
    let refused = send(&world, nobody(), "application/json").await;
    assert_eq!((refused.refusal(), refused.header(header::RETRY_AFTER)), ((503, "UNAVAILABLE"), "1"));
    drop(waiting);
    assert_eq!(send(&world, nobody(), "application/json").await.status, 401);
}

/// JSON of any shape, with the names of real fields now and then.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(json!("user_1")),
        Just(json!("+41790000001")),
        Just(json!("group")),
    ];
    let field = prop_oneof![
        "[a-z_]{1,9}",
        proptest::sample::select(vec![
            "phone_number",
            "display_name",
            "password",
            "code",
            "device_id",
            "refresh_token",
            "chat_type",
            "name",
            "members",
            "user_id",
            "action",
            "role",
            "client_message_id",
            "content",
            "content_type",
            "sequence",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(field.clone(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Whatever a body holds, it is refused or understood, and what it is answered is in the description.
#[test]
fn garbage_is_the_clients_fault() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, person) = runtime.block_on(async {
        let world = World::new().await;
        let person = world.person(1).await;
        (world, person)
    });
    let chat = runtime.block_on(world.group(&person, &[]));
    let calls: Vec<(Method, String)> = vec![
        (Method::POST, "/auth/register".into()),
        (Method::POST, "/auth/verify".into()),
        (Method::POST, "/auth/login".into()),
        (Method::POST, "/auth/refresh".into()),
        (Method::PATCH, "/users/me".into()),
        (Method::POST, "/chats".into()),
        (Method::PATCH, format!("/chats/{chat}")),
        (Method::POST, format!("/chats/{chat}/members")),
        (Method::POST, format!("/chats/{chat}/messages")),
        (Method::POST, format!("/chats/{chat}/ack")),
    ];
    let body = prop_oneof![
        any_json().prop_map(|json| json.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..200),
        any_json().prop_flat_map(|json| {
            let text = json.to_string().into_bytes();
            (0..=text.len()).prop_map(move |end| text[..end].to_vec())
        }),
    ];
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(body in body, at in 0..calls.len())| {
        let (method, path) = &calls[at];
        let request = Request::builder()
            .method(method)
            .uri(format!("{PREFIX}{path}"))
            .header(header::AUTHORIZATION, format!("Bearer {}", person.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let answer = runtime.block_on(world.send(request));
        prop_assert!(answer.status < 500, "{method} {path}: {answer:?}");
    });
}

/// The same of queries and paths.
#[test]
fn strange_addresses_are_the_clients_fault() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (world, person) = runtime.block_on(async {
        let world = World::new().await;
        let person = world.person(1).await;
        (world, person)
    });
    let name =
        proptest::sample::select(vec!["limit", "cursor", "after", "before", "latest", "phone_number", "x"]);
    let value = "[-0-9a-zA-Z_%+.~]{0,30}";
    let query = proptest::collection::vec((name, value), 0..4);
    let path = proptest::sample::select(vec![
        "/chats",
        "/sessions",
        "/users",
        "/chats/{}",
        "/chats/{}/messages",
        "/chats/{}/members",
        "/users/{}",
    ]);
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(path in path, id in value, query in query)| {
        let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = format!("{}?{}", path.replace("{}", &id), query.join("&"));
        let answer = runtime.block_on(world.get(&path, &person));
        prop_assert!(answer.status < 500, "{path}: {answer:?}");
    });
}
