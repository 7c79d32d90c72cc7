//! What the protocol promises of all routes: that they are there, are described, and answer alike.

use std::net::SocketAddr;
use std::sync::Arc;

use courant_connectors::model::commands::Code;
use courant_pipeline::health::PipelineState::{BackingOff, Running};
use http_body_util::{BodyExt as _, Empty};
use serde_json::{Value, json};
use warp::http::{Method, Request, header};

use super::world::{Answer, DESCRIPTION, World, header_of, validator};
use crate::control::{Component, ComponentStatus};
use crate::fake::{FakeControl, pipeline};
use crate::http::answer_here;
use crate::rest::openapi::describe;
use crate::rest::{PREFIX, table};

/// Every call of the protocol.
const PROTOCOL: [(&str, &str); 28] = [
    ("POST", "/auth/register"),
    ("POST", "/auth/verify"),
    ("POST", "/auth/login"),
    ("POST", "/auth/refresh"),
    ("POST", "/auth/logout"),
    ("POST", "/auth/logout-all"),
    ("GET", "/sessions"),
    ("DELETE", "/sessions/{session_id}"),
    ("GET", "/users/me"),
    ("PATCH", "/users/me"),
    ("GET", "/users/{user_id}"),
    ("GET", "/users"),
    ("POST", "/chats"),
    ("GET", "/chats"),
    ("GET", "/chats/{chat_id}"),
    ("PATCH", "/chats/{chat_id}"),
    ("GET", "/chats/{chat_id}/members"),
    ("POST", "/chats/{chat_id}/members"),
    ("POST", "/chats/{chat_id}/messages"),
    ("GET", "/chats/{chat_id}/messages"),
    ("POST", "/chats/{chat_id}/ack"),
    ("POST", "/channels/{channel_id}/events"),
    ("GET", "/channels/{channel_id}/events"),
    ("GET", "/search"),
    ("GET", "/openapi.json"),
    ("GET", "/asyncapi.json"),
    ("HEAD", "/users/me"),
    ("OPTIONS", "/users/me"),
];

/// What is there for operators.
const OPERATIONS: [&str; 4] = ["/health", "/health/live", "/health/ready", "/metrics"];

/// Those that need no token.
fn is_open(path: &str) -> bool {
    let open = ["register", "verify", "login", "refresh"].map(|call| format!("/auth/{call}"));
    open.contains(&path.to_owned()) || path.ends_with("api.json")
}

fn request(
    method: &str,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> Request<Empty<bytes::Bytes>> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        let (name, value) = header_of(name, value);
        request.headers_mut().unwrap().append(name, value);
    }
    request.body(Empty::new()).unwrap()
}

async fn ask(world: &World, method: &str, path: &str, headers: &[(&'static str, &'static str)]) -> Answer {
    world.send(request(method, &format!("{PREFIX}{path}"), headers)).await
}

#[tokio::test]
async fn every_call_is_described_and_answers() {
    let world = World::new().await;
    let described = ask(&world, "GET", "/openapi.json", &[]).await.body;
    assert_eq!(described, describe(&table()), "what is published is what the table says");
    assert_eq!(described["openapi"], "3.1.0");
    for (method, path) in PROTOCOL {
        let operation = &described["paths"][format!("{PREFIX}{path}")][method.to_lowercase()];
        assert!(["HEAD", "OPTIONS"].contains(&method) || operation.is_object(), "{method} {path}");
        let answer = ask(&world, method, &path.replace(['{', '}'], ""), &[]).await;
        match (method, is_open(path)) {
            ("OPTIONS", _) => assert_eq!(answer.status, 204, "{method} {path}"),
            ("GET", true) => assert_eq!(answer.status, 200, "{method} {path}"),
            (_, true) => assert_eq!(answer.refusal(), (400, "BAD_REQUEST"), "{method} {path}"),
            (_, false) => assert_eq!(answer.refusal(), (401, "UNAUTHENTICATED"), "{method} {path}"),
        }
    }
    let count: usize =
        described["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(count, PROTOCOL.len() - 2 + OPERATIONS.len(), "and no others");
}

#[test]
fn the_description_is_whole() {
    let described = describe(&table());
    let components = &described["components"]["schemas"];
    let mut ids = std::collections::HashSet::new();
    for (path, operations) in described["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let name = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].clone()), "{name}: the id is taken");
            let answers = operation["responses"].as_object().unwrap().len();
            if OPERATIONS.contains(&path.as_str()) {
                assert!(answers > 0 && operation["security"] == json!([]), "{name}");
                continue;
            }
            assert!(answers > 4, "{name}");
            let open = operation["security"].as_array().unwrap().is_empty();
            assert_eq!(open, is_open(path.strip_prefix(PREFIX).unwrap()), "{name}");
            let has_body = ["post", "patch"].contains(&method.as_str()) && !path.contains("logout");
            assert_eq!(operation["requestBody"].is_object(), has_body, "{name}");
            let in_path =
                operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "path");
            assert_eq!(in_path.count(), usize::from(path.contains('{')), "{name}");
        }
    }
    assert_references(&described, components);
    let send = &components["Send"];
    assert_eq!(send["additionalProperties"], false, "unknown fields are refused, and it says so");
    assert_eq!(send["required"], json!(["client_message_id", "content"]));
    let messages = &described["paths"]["/api/v1/chats/{chat_id}/messages"]["get"]["parameters"];
    let names: Vec<_> =
        messages.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["chat_id", "after", "before", "latest", "limit"]);
}

/// Whatever is referred to is there.
fn assert_references(value: &Value, components: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                let name = reference.strip_prefix("#/components/schemas/").expect(reference);
                assert!(components[name].is_object(), "{reference}");
            }
            fields.values().for_each(|field| assert_references(field, components));
        }
        Value::Array(values) => values.iter().for_each(|value| assert_references(value, components)),
        _ => {}
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_methods_are_told() {
    let world = World::new().await;
    for path in ["/", "/nothing", "/users/me/", "//users/me", "/chats/chat_1/members/more", "/%75sers/me"] {
        assert_eq!(ask(&world, "GET", path, &[]).await.refusal(), (404, "NOT_FOUND"), "{path}");
    }
    let outside = world.send(request("GET", "/api/v2/users/me", &[])).await;
    assert_eq!(outside.refusal(), (404, "NOT_FOUND"));
    for (path, method, allow) in [
        ("/users/me", "DELETE", "GET, PATCH, HEAD, OPTIONS"),
        ("/users/user_1", "PATCH", "GET, HEAD, OPTIONS"),
        ("/auth/login", "GET", "POST, OPTIONS"),
        ("/sessions/sess_1", "GET", "DELETE, OPTIONS"),
        ("/chats", "BREW", "POST, GET, HEAD, OPTIONS"),
    ] {
        let answer = ask(&world, method, path, &[]).await;
        assert_eq!(answer.refusal(), (405, "METHOD_NOT_ALLOWED"), "{method} {path}");
        assert_eq!(answer.header(header::ALLOW), allow, "{path}");
        let options = ask(&world, "OPTIONS", path, &[]).await;
        assert_eq!((options.status, options.header(header::ALLOW)), (204, allow), "{path}");
    }
}

#[tokio::test]
async fn requests_have_names() {
    let world = World::new().await;
    let named = ask(&world, "GET", "/users/me", &[("x-request-id", "mine-1")]).await;
    assert_eq!(named.body["error"]["request_id"], "mine-1");
    assert_eq!(named.header("x-request-id"), "mine-1");
    let unnamed = ask(&world, "GET", "/nothing", &[("x-request-id", "no such {name}")]).await;
    let ours = unnamed.header("x-request-id");
    assert!(ours.starts_with("req_") && unnamed.body["error"]["request_id"] == ours, "{unnamed:?}");
    let fine = ask(&world, "GET", "/openapi.json", &[]).await;
    assert!(fine.header("x-request-id").starts_with("req_"));
    assert_eq!(
        (fine.header("cache-control"), fine.header("x-content-type-options")),
        ("no-store", "nosniff")
    );
    assert_eq!(named.header("www-authenticate"), "Bearer");
    let error = named.body["error"].as_object().unwrap();
    let fields: Vec<_> = error.keys().collect();
    assert_eq!(fields, ["code", "message", "retryable", "retry_after_ms", "request_id"]);
}

#[tokio::test]
async fn pages_of_allowed_origins_can_read() {
    let page = "https://chat.example";
    let world = World::with(|edge, _| {
        edge.allowed_origins = vec![page.to_owned().try_into().unwrap()];
    })
    .await;
    let preflight = [("origin", page), ("access-control-request-method", "PATCH")];
    let allowed = ask(&world, "OPTIONS", "/users/me", &preflight).await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (204, page));
    assert_eq!(allowed.header("access-control-allow-methods"), "GET, PATCH, HEAD, OPTIONS");
    assert!(allowed.header("access-control-allow-headers").contains("authorization"));
    let refused = ask(&world, "GET", "/users/me", &[("origin", page)]).await;
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (401, page),
        "errors are read too"
    );
    assert_eq!((refused.header("vary"), refused.header("access-control-allow-methods")), ("origin", ""));
    for strange in ["https://evil.example", "null", "https://chat.example.evil.example"] {
        let answer = ask(&world, "GET", "/openapi.json", &[("origin", strange)]).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""), "{strange}");
        assert_eq!(answer.header("vary"), "origin");
    }
    let closed = World::new().await;
    let answer = ask(&closed, "OPTIONS", "/users/me", &preflight).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, ""));
}

#[tokio::test]
async fn a_head_is_a_get_without_its_body() {
    let world = World::new().await;
    let person = world.person(1).await;
    let answer = world.call(Method::HEAD, "/users/me", Some(&person.token), Value::Null).await;
    assert_eq!(answer.status, 200);
}

/// What operators are told is as described.
#[tokio::test]
async fn operations_are_described_and_answer() {
    let pipelines = vec![pipeline("ingest", Running), pipeline("fanout", BackingOff)];
    let down = Component { name: "store".into(), status: ComponentStatus::Down, detail: Some("gone".into()) };
    for control in
        [FakeControl::default(), FakeControl { pipelines, components: vec![down], ..FakeControl::default() }]
    {
        let operations = crate::http::operations(Arc::new(control));
        for path in OPERATIONS {
            let peer = SocketAddr::from(([192, 0, 2, 1], 4711));
            let (head, body) = answer_here(&operations, peer, request("GET", path, &[])).await.into_parts();
            let response = &DESCRIPTION["paths"][path]["get"]["responses"][head.status.as_str()];
            let content = &response["content"][head.headers[header::CONTENT_TYPE].to_str().unwrap()];
            assert!(content["schema"].is_object(), "{path}: {response}");
            let body = body.collect().await.unwrap().to_bytes();
            let body =
                serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body)));
            let validator = validator(&content["schema"]);
            let errors: Vec<_> = validator.iter_errors(&body).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{path}: {errors:?} in {body}");
        }
    }
}

#[tokio::test]
async fn the_protocol_of_sockets_is_published_alike() {
    let page = "https://chat.example";
    let world = World::with(|edge, _| {
        edge.allowed_origins = vec![page.to_owned().try_into().unwrap()];
    })
    .await;
    for path in ["/openapi.json", "/asyncapi.json"] {
        let got = ask(&world, "GET", path, &[("origin", page)]).await;
        assert_eq!((got.status, got.header("access-control-allow-origin")), (200, page), "{path}");
        assert_eq!(got.header("content-type"), "application/json");
        assert_eq!(ask(&world, "HEAD", path, &[]).await.status, 200, "{path}");
        assert_eq!(ask(&world, "OPTIONS", path, &[]).await.header("allow"), "GET, HEAD, OPTIONS", "{path}");
    }
    assert_eq!(ask(&world, "GET", "/asyncapi.json", &[]).await.body, crate::ws::asyncapi());
}

#[test]
fn every_code_of_an_error_is_published() {
    let described = describe(&table());
    let codes = &described["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["enum"];
    let codes: Vec<_> = codes.as_array().unwrap().iter().map(|code| code.as_str().unwrap()).collect();
    assert_eq!((codes.len(), codes.last()), (Code::ALL.len(), Some(&"METHOD_NOT_ALLOWED")), "{codes:?}");
}
