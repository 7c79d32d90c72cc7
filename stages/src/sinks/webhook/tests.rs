use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use courant_pipeline::{Class, Payload, Record, Services, Stage};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::testing::origins::read;
use crate::testing::{build, fates, problem};

/// A request as it arrived, and the number of its connection.
#[derive(Debug, Clone)]
struct Arrived {
    connection: usize,
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

/// What the server says to a request, as it goes over the wire; nothing at all if empty.
type Answers = Arc<dyn Fn(&Arrived) -> String + Send + Sync>;

/// A server in the test process that says whatever it is told to.
struct Hook {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
}

fn says(status: &str, more: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n{more}\r\n")
}

impl Hook {
    async fn start(answers: impl Fn(&Arrived) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, arrived) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (answers, log): (Answers, _) = (Arc::new(answers), Arc::clone(&arrived));
        tokio::spawn(async move {
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, connection, Arc::clone(&answers), Arc::clone(&log)));
            }
        });
        Self { address, arrived }
    }

    fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }

    fn bodies(&self) -> Vec<String> {
        self.arrived().into_iter().map(|request| request.body).collect()
    }

    async fn stage(&self, more: Value) -> Arc<dyn Stage> {
        let mut params =
            json!({"url": format!("http://{}/hook?token=hidden", self.address), "timeout": "2s"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        open(params).await
    }
}

async fn open(params: Value) -> Arc<dyn Stage> {
    let stage = crate::testing::stage(&SPEC, params);
    stage.open().await.unwrap();
    stage
}

/// Reads requests of one connection until it ends.
async fn serve(socket: TcpStream, connection: usize, answers: Answers, log: Arc<Mutex<Vec<Arrived>>>) {
    let mut socket = BufReader::new(socket);
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap().to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            socket.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        socket.read_exact(&mut body).await.unwrap();
        let request = Arrived { connection, path, headers, body: String::from_utf8(body).unwrap() };
        log.lock().unwrap().push(request.clone());
        let answer = answers(&request);
        if answer.is_empty() {
            std::future::pending::<()>().await; // it never answers
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        if !answer.starts_with("HTTP/1.1 ") {
            return; // after garbage it hangs up
        }
    }
}

fn keyed(key: &str, body: &str) -> Record {
    Record::new(body.to_owned()).with_key(key)
}

async fn posted(stage: &dyn Stage, mut batch: Batch) -> Vec<String> {
    stage.process(&mut batch).await.unwrap();
    fates(&batch)
}

#[tokio::test]
async fn a_receiver_can_check_who_posts_and_what() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that is long enough\n").unwrap();
    let hook = Hook::start(|_| says("204 No Content", "")).await;
    let stage = hook.stage(json!({"secret_file": secret, "headers": {"x-team": "chat"}})).await;
    assert_eq!(posted(&*stage, Batch::from(vec![keyed("a", r#"{"n": 1}"#)])).await, [r#"{"n": 1}"#]);
    let request = hook.arrived().remove(0);
    let headers = &request.headers;
    assert_eq!((request.path.as_str(), request.body.as_str()), ("/hook?token=hidden", r#"{"n": 1}"#));
    assert_eq!((headers["content-type"].as_str(), headers["x-team"].as_str()), ("application/json", "chat"));
    assert_eq!(headers["webhook-id"], headers["idempotency-key"]);
    let timestamp: u64 = headers["webhook-timestamp"].parse().unwrap();
    assert!(timestamp.abs_diff(courant_pipeline::clock::unix_millis() / 1000) < 60);
    let secret = Secret { variable: None, file: Some(secret) };
    let signer = Signer::of(&secret).unwrap().unwrap();
    assert_eq!(headers["webhook-signature"], signer.sign(&headers["webhook-id"], timestamp, br#"{"n": 1}"#));
}

#[tokio::test]
async fn answers_decide_what_becomes_of_a_record() {
    let hook = Hook::start(|request| match request.body.as_str() {
        "\"broken\"" => "nonsense\r\n\r\n".to_owned(),
        "\"long\"" => format!("HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n{}", "x".repeat(99_999)),
        "\"text\"" => "HTTP/1.1 400 Bad Request\r\ncontent-length: 7\r\n\r\nno\nname".to_owned(),
        body => says(body.trim_matches('"'), "location: http://elsewhere.example/secret\r\n"),
    })
    .await;
    let stage = hook.stage(json!({})).await;
    let cases = [
        ("200", ""),
        ("202", ""),
        ("long", ""),
        ("408", "retry: "),
        ("425", "retry: "),
        ("429", "retry: "),
        ("500", "retry: post to the webhook: the receiver answered 500"),
        ("503", "retry: "),
        ("broken", "retry: post to the webhook: http://127.0.0.1 cannot be reached"),
        (
            "301",
            "reject: post to the webhook: the receiver answered 301 Moved Permanently; redirects are not followed",
        ),
        ("400", "reject: "),
        ("404", "reject: "),
        ("410", "reject: "),
        ("text", "reject: post to the webhook: the receiver answered 400 Bad Request: no name"),
    ];
    let batch =
        Batch::from(cases.iter().map(|(said, _)| keyed(said, &format!("{said:?}"))).collect::<Vec<_>>());
    for (said, (status, expected)) in posted(&*stage, batch).await.iter().zip(cases) {
        let expected = if expected.is_empty() { format!("{status:?}") } else { expected.to_owned() };
        assert!(said.starts_with(&expected), "{status}: {said}");
        assert!(!said.contains("hidden") && !said.contains("elsewhere"), "{said}");
    }
    let to_elsewhere = hook.arrived().iter().filter(|request| request.path != "/hook?token=hidden").count();
    assert_eq!(to_elsewhere, 0);
}

#[tokio::test]
async fn a_key_that_fails_waits_and_others_go_on() {
    let hook = Hook::start(|request| {
        says(if request.body.contains("bad") { "503 Service Unavailable" } else { "200 OK" }, "")
    })
    .await;
    let stage = hook.stage(json!({})).await;
    let records = [("a", "1"), ("b", "\"bad\""), ("a", "2"), ("b", "3"), ("c", "4")];
    let batch = Batch::from(records.map(|(key, body)| keyed(key, body)).to_vec());
    let said = posted(&*stage, batch).await;
    assert_eq!([&said[0], &said[2], &said[3], &said[4]], ["1", "2", "held", "4"]);
    assert!(said[1].starts_with("retry: "), "{}", said[1]);
    let bodies = hook.bodies();
    let at = |body: &str| bodies.iter().position(|found| found == body);
    assert!(at("1") < at("2") && at("3").is_none(), "{bodies:?}");
}

#[tokio::test]
async fn a_receiver_that_never_answers_is_given_up() {
    let hook = Hook::start(|_| String::new()).await;
    let stage = hook.stage(json!({"timeout": "50ms"})).await;
    let said = posted(&*stage, Batch::from(vec![keyed("a", "1")])).await;
    assert_eq!(said, ["retry: post to the webhook: http://127.0.0.1 did not answer within 50ms"]);
    // a port that nobody listens on
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let stage = open(json!({"url": format!("http://{free}/")})).await;
    let said = posted(&*stage, Batch::from(vec![keyed("a", "1")])).await;
    assert!(
        said[0].starts_with("retry: post to the webhook: http://127.0.0.1 cannot be reached"),
        "{said:?}"
    );
}

#[tokio::test]
async fn every_try_of_a_record_has_the_same_id() {
    let hook = Hook::start(|_| says("500 Internal Server Error", "")).await;
    let stage = hook.stage(json!({})).await;
    let again = || read("0", [(1, keyed("a", "1")), (2, keyed("b", "1"))], None);
    for _ in 0..2 {
        posted(&*stage, again()).await;
    }
    // another object, as after a restart, and without positions
    posted(&*hook.stage(json!({})).await, again()).await;
    posted(&*stage, Batch::from(vec![keyed("a", "1"), keyed("b", "1")])).await;
    let by_id = stage_with_id(&hook).await;
    posted(&*by_id, Batch::from(vec![keyed("a", r#"{"id":7}"#), keyed("b", r#"{"id":7,"more":1}"#)])).await;
    let mut tries: BTreeMap<String, usize> = BTreeMap::new();
    for request in hook.arrived() {
        *tries.entry(request.headers["webhook-id"].clone()).or_default() += 1;
    }
    let mut counts: Vec<_> = tries.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2, 3, 3]);
    let refused = posted(&*by_id, Batch::from(vec![keyed("a", "{}")])).await;
    assert!(refused[0].starts_with("reject: evaluate `id`"), "{refused:?}");
}

async fn stage_with_id(hook: &Hook) -> Arc<dyn Stage> {
    hook.stage(json!({"id": ".id"})).await
}

#[tokio::test]
async fn a_batch_can_be_one_request() {
    let hook = Hook::start(|_| says("200 OK", "")).await;
    let records = || Batch::from(vec![keyed("a", "{\"n\":\n1}"), keyed("b", "2"), keyed("a", "3")]);
    posted(&*hook.stage(json!({"body": "array"})).await, records()).await;
    posted(&*hook.stage(json!({"body": "lines"})).await, records()).await;
    assert_eq!(hook.bodies(), ["[{\"n\":\n1},2,3]", "{\"n\": 1}\n2\n3\n"]);
    let kinds: Vec<_> =
        hook.arrived().iter().map(|request| request.headers["content-type"].clone()).collect();
    assert_eq!(kinds, ["application/json", "application/x-ndjson"]);
    let named = |name| hook.arrived().iter().any(|request| request.headers.contains_key(name));
    assert!(named("webhook-id") && !named("idempotency-key"), "the next try may carry others");
}

#[tokio::test]
async fn of_a_batch_only_the_records_at_fault_are_refused() {
    let hook = Hook::start(|request| {
        says(if request.body.contains("bad") { "422 Unprocessable" } else { "200 OK" }, "")
    })
    .await;
    let stage = hook.stage(json!({"body": "array"})).await;
    let records = ["1", "2", "\"bad\"", "4", "5"].map(|body| keyed("a", body));
    let said = posted(&*stage, Batch::from(records.to_vec())).await;
    assert!(said[2].starts_with("reject: "), "{said:?}");
    assert_eq!([&said[0], &said[1], &said[3], &said[4]], ["1", "2", "4", "5"]);
    let delivered: Vec<_> = hook.bodies().into_iter().filter(|body| !body.contains("bad")).collect();
    assert_eq!(delivered, ["[1,2]", "[4,5]"]);
}

#[tokio::test]
async fn connections_are_used_again_and_requests_bounded() {
    let hook = Hook::start(|_| says("200 OK", "")).await;
    let stage = hook.stage(json!({"concurrency": 2})).await;
    for _ in 0..5 {
        posted(&*stage, (0..10).map(|n| keyed(&n.to_string(), "1")).collect()).await;
    }
    let arrived = hook.arrived();
    assert_eq!(arrived.len(), 50);
    let connections = arrived.iter().map(|request| request.connection).max().unwrap() + 1;
    assert!(connections <= 4, "{connections}");
}

#[tokio::test]
async fn a_receiver_that_asks_for_a_pause_gets_it() {
    let hook = Hook::start(|_| says("429 Too Many Requests", "retry-after: 3600\r\n")).await;
    let stage = hook.stage(json!({})).await;
    assert!(posted(&*stage, Batch::from(vec![keyed("a", "1")])).await[0].starts_with("retry: "));
    let error = stage.process(&mut Batch::from(vec![keyed("b", "1")])).await.unwrap_err();
    assert_eq!(error.class, Class::Retry);
    assert!(error.to_string().contains("left alone for 59"), "ten minutes at the most: {error}");
    assert_eq!(hook.arrived().len(), 1);
}

#[tokio::test]
async fn a_garbled_payload_is_posted_as_it_is() {
    let hook = Hook::start(|_| says("200 OK", "")).await;
    let stage = hook.stage(json!({})).await;
    posted(&*stage, Batch::from(vec![Record::new(Payload::from_static("{not json"))])).await;
    assert_eq!(hook.bodies(), ["{not json"]);
}

#[tokio::test]
async fn what_is_missing_is_said_when_it_opens() {
    for (params, said) in [
        (json!({"url_env": "COURANT_TEST_NO_SUCH_URL"}), "`COURANT_TEST_NO_SUCH_URL` is not set"),
        (
            json!({"url": "http://x/", "secret_env": "COURANT_TEST_NO_SECRET"}),
            "`COURANT_TEST_NO_SECRET` should hold",
        ),
        (json!({"url": "http://x/", "secret_file": "/no/such/file"}), "/no/such/file"),
        (json!({"url": "http://x/", "headers": {"a b": "c"}}), "a header cannot be sent"),
    ] {
        let error = crate::testing::stage(&SPEC, params).open().await.unwrap_err();
        assert_eq!(error.class, Class::Fatal);
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn wrong_parameters_are_refused() {
    let key = |params| problem(&SPEC, params).key;
    assert_eq!(key(json!({})), "url");
    assert_eq!(key(json!({"url": "http://x/", "url_env": "X"})), "url");
    assert_eq!(key(json!({"url": "example.org"})), "url");
    assert_eq!(key(json!({"url": "http://x/", "secret_env": "X", "secret_file": "y"})), "secret_file");
    assert_eq!(key(json!({"url": "http://x/", "timeout": "0s"})), "timeout");
    assert_eq!(key(json!({"url": "http://x/", "id": "("})), "id");
    assert!(
        build(&SPEC, json!({"url_env": "X"}), &Services::default()).is_ok(),
        "checking needs no environment"
    );
}
