//! Over real TCP: a gateway without pipelines and a process that has them.

use std::time::Duration;

use courant_connectors::model::commands::WEBSOCKET;
use courant_pipeline::intake::Intake;
use courant_pipeline::{Disposition, Payload, Record, Reply};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// With the secret in a file of its own.
fn config(listen: Option<&str>, to: &[String], secret: &str) -> RelayConfig {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), secret).unwrap();
    let (_, path) = file.keep().unwrap();
    RelayConfig {
        listen: listen.map(|address| address.parse().unwrap()),
        to: to.to_vec(),
        secret_env: None,
        secret_file: Some(path),
    }
}

const RIGHT: &str = "the secret of both sides";
const WRONG: &str = "a secret of somebody else";

async fn serving(intake: &Intake, secret: &str) -> (String, CancellationToken) {
    let listen = config(Some("127.0.0.1:0"), &[], secret);
    let server = RelayServer::bind(&listen, intake.clone()).await.unwrap().unwrap();
    let (address, stop) = (server.address().unwrap().to_string(), CancellationToken::new());
    tokio::spawn(server.run(stop.clone()));
    (address, stop)
}

fn record(text: &'static str) -> Record {
    let mut record = Record::new(Payload::from_static(text)).with_key("chat_1");
    record.headers.set("origin", "conn_1");
    record
}

#[tokio::test]
async fn a_command_is_carried_out_elsewhere() {
    let intake = Intake::default();
    let mut requests = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
    let (address, _stop) = serving(&intake, RIGHT).await;
    let relay = Relay::start(&config(None, &[address], RIGHT)).unwrap().unwrap();
    tokio::spawn(async move {
        loop {
            for request in requests.next(10).await {
                assert_eq!(request.record.headers.get("origin"), Some("conn_1"));
                assert_eq!(request.record.key.as_ref().unwrap().as_str(), "chat_1");
                let receipt = Some(Box::new(request.record.payload.clone()));
                let reply = Reply { disposition: Disposition::Delivered, reason: None, receipt };
                let _ = request.reply.send(reply);
            }
        }
    });
    for text in [r#"{"n":1}"#, "{\"n\":\"two\\nlines\"}"] {
        let answer = relay.send(WEBSOCKET, "ack", record(text)).await;
        let reply = timeout(LIMIT, answer).await.unwrap().unwrap();
        assert_eq!(&reply.receipt.unwrap().to_json()[..], text.as_bytes());
    }
    let unserved = relay.send(WEBSOCKET, "send_message", record("{}")).await;
    assert!(timeout(LIMIT, unserved).await.unwrap().is_err(), "nobody serves it there either");
}

#[tokio::test]
async fn without_the_secret_nothing_is_taken() {
    let intake = Intake::default();
    let mut requests = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
    let (address, _stop) = serving(&intake, RIGHT).await;
    let relay = Relay::start(&config(None, std::slice::from_ref(&address), WRONG)).unwrap().unwrap();
    let answer = relay.send(WEBSOCKET, "ack", record("{}")).await;
    assert!(timeout(LIMIT, answer).await.unwrap().is_err());
    assert!(timeout(Duration::from_millis(50), requests.next(1)).await.is_err());
    let listening = RelayServer::bind(&config(Some("127.0.0.1:0"), &[], ""), intake).await;
    assert!(matches!(listening, Err(RelayListenError::Secret(RelaySecretError::TooShort))));
    assert!(matches!(RelayConfig::default().secret(), Err(RelaySecretError::NotNamed)));
}

#[tokio::test]
async fn garbage_ends_the_connection_and_nothing_else() {
    let intake = Intake::default();
    let (address, _stop) = serving(&intake, RIGHT).await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"{}\n", b"\xff\xff\n"] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, garbage).await.unwrap();
        let mut rest = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.is_empty());
    }
    let _served = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
    let relay = Relay::start(&config(None, &[address], RIGHT)).unwrap().unwrap();
    let waiting = relay.send(WEBSOCKET, "ack", record("{}")).await;
    assert!(timeout(Duration::from_millis(100), waiting).await.is_err(), "it was taken, and waits");
}

/// One that cannot be reached costs nothing but its share of the work; none is told of.
#[tokio::test]
async fn one_that_is_reached_does_the_work_of_the_others() {
    let intake = Intake::default();
    let mut requests = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
    let (address, stop) = serving(&intake, RIGHT).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let relay = Relay::start(&config(None, &[nobody.clone(), address.clone()], RIGHT)).unwrap().unwrap();
    assert_eq!(relay.unreached(), Some(format!("{nobody}, {address}")), "none yet");
    until(|| relay.unreached().is_none()).await;
    for chat in 0..20 {
        let asked = Record::new(Payload::from_static("{}")).with_key(format!("chat_{chat}"));
        let _answer = relay.send(WEBSOCKET, "ack", asked).await;
        assert_eq!(timeout(LIMIT, requests.next(1)).await.unwrap().len(), 1, "chat {chat}");
    }
    stop.cancel();
    until(|| relay.unreached().is_some()).await;
}

async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, holds).await.unwrap();
}

/// A process that goes away answers nobody, and its clients are told to try again; the one after it serves them.
#[tokio::test]
async fn a_broken_connection_gives_up_what_was_under_way_and_comes_back() {
    let intake = Intake::default();
    let requests = intake.serve(WEBSOCKET, &["ack".to_owned()]).await.unwrap();
    let (address, stop) = serving(&intake, RIGHT).await;
    let relay = Relay::start(&config(None, std::slice::from_ref(&address), RIGHT)).unwrap().unwrap();
    let waiting = relay.send(WEBSOCKET, "ack", record("{}")).await;
    let mut requests = requests;
    let taken = timeout(LIMIT, requests.next(1)).await.unwrap();
    stop.cancel();
    drop(taken);
    assert!(timeout(LIMIT, waiting).await.unwrap().is_err());
    let server = config(Some(&address), &[], RIGHT);
    let server = loop {
        // The port is free once the first one has let go.
        match RelayServer::bind(&server, intake.clone()).await {
            Ok(server) => break server.unwrap(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    tokio::spawn(server.run(CancellationToken::new()));
    let served = async {
        loop {
            let answer = relay.send(WEBSOCKET, "ack", record("{}")).await;
            let got = tokio::select! {
                requests = requests.next(1) => requests,
                _ = answer => continue,
            };
            return got.len();
        }
    };
    assert_eq!(timeout(LIMIT, served).await.unwrap(), 1);
}
