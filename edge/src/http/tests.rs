//! The server over real sockets.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courant_connectors::model::commands::{Code, Refusal};
use courant_pipeline::health::PipelineState::{BackingOff, Finished, Running};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use warp::{Filter as _, Reply as _};

use super::stream::WRITE_TIMEOUT;
use super::{ClientAddress, ConnectionSlot, HttpServer, ListenError, Routes, refused};
use crate::config::EdgeConfig;
use crate::control::{Component, ComponentStatus};
use crate::fake::{FakeControl, pipeline};

struct Started {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

async fn start(control: Arc<FakeControl>, max_connections: u32) -> Started {
    start_with(control, max_connections, None).await
}

async fn start_with(control: Arc<FakeControl>, max_connections: u32, clients: Option<Routes>) -> Started {
    let config = EdgeConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        max_connections: NonZeroU32::new(max_connections).unwrap(),
        ..EdgeConfig::default()
    };
    let server = HttpServer::bind(&config).await.unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    let task = tokio::spawn(server.run(control, clients, stop.clone()));
    Started { address, stop, task }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        let status = head[9..12].parse().unwrap();
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn send(stream: &mut TcpStream, method: &str, path: &str) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn receive(stream: &mut TcpStream) -> Answer {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    Answer::parse(&text)
}

async fn ask(address: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    send(&mut stream, method, path).await;
    receive(&mut stream).await
}

#[tokio::test]
async fn ready_names_the_pipelines_that_are_not() {
    let control = FakeControl::with(vec![pipeline("ingest", Running), pipeline("fanout", BackingOff)]);
    let server = start(control, 8).await;
    assert_eq!(ask(server.address, "GET", "/health/live").await.status, 200);
    let answer = ask(server.address, "GET", "/health/ready").await;
    assert_eq!(answer.status, 503);
    let body = answer.json();
    assert_eq!(body["pipelines"].as_array().unwrap().len(), 1);
    assert_eq!(body["pipelines"][0]["name"], "fanout");
    assert_eq!(body["pipelines"][0]["state"], "backing-off");
}

#[tokio::test]
async fn ready_needs_every_component_too() {
    let control = FakeControl {
        pipelines: vec![pipeline("ingest", Running), pipeline("import", Finished)],
        ..FakeControl::default()
    };
    let server = start(Arc::new(control), 8).await;
    assert_eq!(ask(server.address, "GET", "/health/ready").await.status, 200);

    let down = Component { name: "store".into(), status: ComponentStatus::Down, detail: Some("gone".into()) };
    let server = start(Arc::new(FakeControl { components: vec![down], ..FakeControl::default() }), 8).await;
    let answer = ask(server.address, "GET", "/health/ready").await;
    assert_eq!((answer.status, &answer.json()["components"][0]["name"]), (503, &Value::from("store")));
}

#[tokio::test]
async fn health_tells_everything() {
    let server = start(FakeControl::with(vec![pipeline("ingest", Running)]), 8).await;
    let answer = ask(server.address, "GET", "/health").await;
    let body = answer.json();
    assert_eq!((answer.status, &body["status"]), (200, &Value::from("ready")));
    assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(body["pipelines"][0]["in_flight"], 3);
    assert_eq!(body["pipelines"][0]["dispositions"]["delivered"], 7);
    assert!(body["uptime_seconds"].is_u64() && body["components"].is_array(), "{body}");
}

#[tokio::test]
async fn metrics_come_as_prometheus_text() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let answer = ask(server.address, "GET", "/metrics").await;
    assert_eq!(answer.body, "courant_up 1\n");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let head = ask(server.address, "HEAD", "/metrics").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn what_no_route_takes_gets_the_error_body() {
    let server = start(FakeControl::with(vec![]), 8).await;
    for (method, path, status, code) in [
        ("GET", "/helth", 404, "NOT_FOUND"),
        ("GET", "/health/ready/now", 404, "NOT_FOUND"),
        ("POST", "/health", 405, "METHOD_NOT_ALLOWED"),
    ] {
        let answer = ask(server.address, method, path).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (status, Some(code)), "{method} {path}");
        assert_eq!((&error["retryable"], &error["retry_after_ms"]), (&Value::from(false), &Value::Null));
        assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
        assert_eq!(answer.head.contains("allow: get, head"), status == 405);
    }
}

/// `/where` tells where a request comes from, `/keep` keeps its connection's place, `/no` refuses.
fn client_routes(kept: Arc<Mutex<Vec<ConnectionSlot>>>) -> Routes {
    let told = warp::path!("where").and(warp::ext::get::<ClientAddress>());
    let told = told.map(|ClientAddress(address)| address.to_string().into_response());
    let keep = warp::path!("keep").and(warp::ext::get::<ConnectionSlot>()).map(move |slot| {
        kept.lock().unwrap().push(slot);
        warp::reply().into_response()
    });
    let no = warp::path!("no")
        .map(|| refused(Refusal::new(Code::RateLimited, "not now").retry_after(Duration::from_millis(1500))));
    told.or(keep).unify().or(no).unify().boxed()
}

#[tokio::test]
async fn clients_and_operators_share_the_server() {
    let control = FakeControl::with(vec![]);
    let server = start_with(control, 8, Some(client_routes(Arc::default()))).await;
    assert_eq!(ask(server.address, "GET", "/where").await.body, "127.0.0.1");
    assert_eq!(ask(server.address, "GET", "/health/live").await.status, 200);
    let refused = ask(server.address, "GET", "/no").await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &Value::from("RATE_LIMITED")));
    assert!(refused.head.contains("retry-after: 2"), "rounded up: {}", refused.head);
    assert!(refused.head.contains("content-type: application/json"), "{}", refused.head);
    let nowhere = ask(server.address, "GET", "/nowhere").await;
    assert_eq!((nowhere.status, nowhere.head.contains("x-request-id: req_")), (404, true));
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_a_place_keeps_others_out() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let server = start_with(FakeControl::with(vec![]), 1, Some(client_routes(Arc::clone(&kept)))).await;
    assert_eq!(ask(server.address, "GET", "/keep").await.status, 200);
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    send(&mut waiting, "GET", "/health/live").await;
    let early = timeout(Duration::from_secs(1), waiting.readable()).await;
    assert!(early.is_err(), "answered although the only place is kept");
    kept.lock().unwrap().clear();
    assert_eq!(receive(&mut waiting).await.status, 200);
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let config = EdgeConfig { listen: server.address, ..EdgeConfig::default() };
    let error = HttpServer::bind(&config).await.err().expect("the address is taken");
    assert!(matches!(error, ListenError::InUse { .. }));
    let text = error.to_string();
    assert!(text.contains(&server.address.to_string()) && text.contains("edge.listen"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn half_a_header_does_not_hold_a_connection() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: te").await.unwrap();
    let mut rest = Vec::new();
    timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.expect("cut off").unwrap();
}

#[tokio::test]
async fn huge_headers_are_refused() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /health HTTP/1.1\r\nhost: test\r\nx: {}\r\n\r\n", "x".repeat(20 * 1024));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 431");
}

#[tokio::test]
async fn a_connection_that_says_nothing_makes_room_for_one_that_does() {
    let server = start(FakeControl::with(vec![]), 1).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"GET /health/live HTTP/1.1\r\nhost: te").await.unwrap();
    let soon = Duration::from_secs(5);
    let asked = timeout(soon, ask(server.address, "GET", "/health/live")).await;
    assert_eq!(asked.expect("long before the others' time is over").status, 200);
    for silent in [&mut idle, &mut half] {
        assert!(timeout(soon, silent.read_u8()).await.expect("it made room").is_err());
    }
}

/// A client that asks and asks and reads nothing: what it is answered is not piled up, and it is cut off.
#[tokio::test(start_paused = true)]
async fn answers_that_nobody_reads_are_bounded_in_size_and_time() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let requests = "HEAD /health/live HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1000);
    let mut sent = 0;
    while timeout(Duration::from_secs(1), stream.write_all(requests.as_bytes())).await.is_ok() {
        sent += requests.len();
        assert!(sent < 64 << 20, "it goes on reading what it cannot answer");
    }
    let ended = timeout(WRITE_TIMEOUT * 2, stream.write_all(requests.as_bytes())).await;
    assert!(ended.expect("cut off").is_err());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_does_not_delay_the_stop() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    idle.read_u8().await.unwrap();
    server.stop.cancel();
    timeout(Duration::from_secs(1), server.task).await.expect("closed at once").unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_is_bounded_and_closes_everything() {
    let server = start(FakeControl::with(vec![]), 8).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"GET /health HT").await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    idle.read_u8().await.unwrap();
    server.stop.cancel();
    timeout(Duration::from_secs(6), server.task).await.expect("within the bound").unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
