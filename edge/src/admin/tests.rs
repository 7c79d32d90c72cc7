//! Client and server over real sockets.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use courant_pipeline::health::PipelineState::Running;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{AdminClient, AdminServer, ClientError, SocketError};
use crate::control::Redrive;
use crate::fake::{FakeControl, pipeline, tap_record};

struct Started {
    control: Arc<FakeControl>,
    client: AdminClient,
    stop: CancellationToken,
    task: JoinHandle<()>,
    folder: TempDir,
}

impl Started {
    fn path(&self) -> PathBuf {
        socket(&self.folder)
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("made").join("admin.sock")
}

fn start() -> Started {
    let folder = tempfile::tempdir().unwrap();
    let server = AdminServer::bind(&socket(&folder)).unwrap();
    let control = FakeControl::with(vec![pipeline("ingest", Running)]);
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(Arc::clone(&control) as _, stop.clone()));
    Started { control, client: AdminClient::new(socket(&folder)), stop, task, folder }
}

/// Everything the server says to some bytes.
async fn say(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> String {
    match result {
        Err(ClientError::Refused(message)) => message,
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn looks_and_commands_reach_the_control() {
    let server = start();
    assert_eq!(server.client.health().await.unwrap(), server.control.pipelines);
    assert_eq!(server.client.metrics().await.unwrap(), "courant_up 1\n");
    let running = server.client.running().await.unwrap();
    assert_eq!(running.pipelines[0].entry.name, "ingest");
    assert!(running.wants("ingest") && !running.wants("fanout"), "it runs no more than that");
    assert!(refusal(server.client.reload().await).contains("kafka-consum"));
    let which = Redrive { queue: "ingest".into(), ids: vec!["1".into()] };
    assert_eq!(server.client.redrive(which.clone()).await.unwrap().redriven, 1);
    assert_eq!(*server.control.redriven.lock().unwrap(), [which]);
    assert!(!server.control.stopped.is_cancelled());
    server.client.stop().await.unwrap();
    server.control.stopped.cancelled().await;
}

#[tokio::test]
async fn a_tap_ends_at_its_limit() {
    let server = start();
    let mut tapped = server.client.tap("ingest", "persist", Some(2)).await.unwrap();
    let sender = server.control.tap_sender().await;
    for n in 0..3 {
        let _ = sender.send(tap_record(json!({ "n": n }))).await;
    }
    assert_eq!(tapped.next().await.unwrap().unwrap().payload, json!({"n": 0}));
    assert_eq!(tapped.next().await.unwrap().unwrap().payload, json!({"n": 1}));
    assert_eq!(tapped.next().await.unwrap(), None);
    sender.closed().await;
}

#[tokio::test]
async fn a_tap_ends_when_its_client_hangs_up() {
    let server = start();
    let tapped = server.client.tap("ingest", "persist", None).await.unwrap();
    let sender = server.control.tap_sender().await;
    assert!(!sender.is_closed());
    drop(tapped);
    sender.closed().await;
}

#[tokio::test]
async fn a_tap_says_why_it_ended() {
    let server = start();
    let mut unknown = server.client.tap("ingst", "persist", None).await.unwrap();
    assert_eq!(refusal(unknown.next().await), "no pipeline `ingst` is running");
    let mut tapped = server.client.tap("ingest", "persist", None).await.unwrap();
    drop(server.control.tap_sender().await);
    assert!(refusal(tapped.next().await).contains("`ingest` has ended"));
}

#[tokio::test]
async fn a_job_is_told_line_by_line() {
    let server = start();
    let mut working = server.client.job(json!({"verify": {"only": []}})).await.unwrap();
    let sender = server.control.job_sender().await;
    for line in [json!({"progress": 1}), json!({"report": {}})] {
        sender.send(Ok(line.clone())).await.unwrap();
        assert_eq!(working.next().await.unwrap(), Some(line));
    }
    drop(sender);
    assert_eq!(working.next().await.unwrap(), None);

    let mut refused = server.client.job(json!({"verify": {"only": "nonsense"}})).await.unwrap();
    assert_eq!(refusal(refused.next().await), "there is no check 'nonsense'");
    let mut failing = server.client.job(json!({})).await.unwrap();
    server.control.job_sender().await.send(Err("the log is down".to_owned())).await.unwrap();
    assert_eq!(refusal(failing.next().await), "the log is down");
}

#[tokio::test]
async fn a_job_ends_when_its_client_hangs_up() {
    let server = start();
    let working = server.client.job(json!({})).await.unwrap();
    let sender = server.control.job_sender().await;
    drop(working);
    sender.closed().await;
}

#[tokio::test]
async fn bad_lines_are_refused() {
    let server = start();
    for (line, expected) in [
        ("\"helth\"\n", "helth"),
        ("{\"tap\":{\"pipeline\":\"a\"}}\n", "stage"),
        ("{\n", "not a request"),
        ("\n", "not a request"),
    ] {
        let answer = say(&server.path(), line.as_bytes()).await;
        assert!(answer.starts_with(r#"{"error":"#) && answer.contains(expected), "{line:?}: {answer}");
    }
    assert_eq!(say(&server.path(), b"\"metrics\"\n").await, "{\"ok\":\"courant_up 1\\n\"}\n");
}

#[tokio::test]
async fn an_endless_line_is_refused() {
    let server = start();
    let ids = vec!["x".repeat(1000); 1100];
    let refused = server.client.redrive(Redrive { queue: "q".into(), ids }).await;
    assert!(refusal(refused).contains("1048576"));
    assert!(server.control.redriven.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_sent_away() {
    let server = start();
    let answer = say(&server.path(), b"\"heal").await;
    assert!(answer.contains("no request line"), "{answer}");
}

#[tokio::test]
async fn connections_are_bounded() {
    let server = start();
    let mut taps = Vec::new();
    for _ in 0..32 {
        taps.push(server.client.tap("ingest", "persist", None).await.unwrap());
        server.control.tapped.notified().await;
    }
    let refused = server.client.health().await;
    assert!(refusal(refused).contains("32 admin connections"));
}

#[tokio::test]
async fn stopping_ends_taps_and_removes_the_socket() {
    let server = start();
    let mut tapped = server.client.tap("ingest", "persist", None).await.unwrap();
    let _sender = server.control.tap_sender().await;
    server.stop.cancel();
    assert!(matches!(tapped.next().await, Err(ClientError::Refused(_))));
    server.task.await.unwrap();
    assert!(!socket(&server.folder).exists());
    assert!(matches!(server.client.health().await, Err(ClientError::NotRunning { .. })));
}

#[tokio::test]
async fn only_the_owner_can_open_the_socket() {
    let server = start();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&server.path()), 0o600);
    assert_eq!(mode(server.path().parent().unwrap()), 0o700);
}

#[tokio::test]
async fn a_live_socket_is_refused_and_a_dead_one_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead process leaves its socket");
    let server = AdminServer::bind(&path).unwrap();
    let second = AdminServer::bind(&path).err().expect("the first one lives");
    assert!(matches!(second, SocketError::Live { .. }) && second.to_string().contains("courant stop"));
    drop(server);
    assert!(AdminServer::bind(&path).is_ok());

    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(AdminServer::bind(&path), Err(SocketError::Live { .. })), "a stranger answers");
}

#[tokio::test]
async fn a_file_in_the_way_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(AdminServer::bind(&path), Err(SocketError::InTheWay { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_path_too_long_is_named() {
    let path = PathBuf::from(format!("/tmp/{}", "x".repeat(103)));
    let error = AdminServer::bind(&path).err().expect("108 bytes").to_string();
    assert!(error.contains("108") && error.contains("shorter"), "{error}");
    let error = AdminClient::new(path).health().await.unwrap_err().to_string();
    assert!(error.contains("shorter"), "{error}");
}
