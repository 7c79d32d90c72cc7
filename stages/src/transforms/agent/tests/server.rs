//! A model server that says whatever a test wants, in the pieces it wants.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What is sent for a request.
#[derive(Clone)]
pub(super) enum Say {
    /// A completion in parts, as events.
    Words(Vec<String>),
    /// These bytes, then the end of the connection.
    Raw(String),
    /// These bytes, then nothing for ever.
    Hang(String),
}

type Answers = Arc<dyn Fn(usize, &Value) -> Say + Send + Sync>;

pub(super) struct Model {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Model {
    /// `answers` gets the number of the request, from 0, and its body.
    pub(super) async fn start(answers: impl Fn(usize, &Value) -> Say + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (answers, log): (Answers, _) = (Arc::new(answers), Arc::clone(&asked));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, Arc::clone(&answers), Arc::clone(&log)));
            }
        });
        Self { url, asked }
    }

    pub(super) fn params(&self, more: &Value) -> Value {
        let mut params = json!({"base_url": self.url, "model": "small", "silence": "2s", "timeout": "10s"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    }

    /// The bodies of all requests.
    pub(super) fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().iter().map(|(_, body)| body.clone()).collect()
    }

    /// The heads of all requests, in lower case.
    pub(super) fn heads(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|(head, _)| head.to_ascii_lowercase()).collect()
    }
}

pub(super) fn words(text: &str) -> Say {
    Say::Words(text.split_inclusive(' ').map(str::to_owned).collect())
}

pub(super) const EVENTS: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n";

pub(super) fn status(line: &str, more: &str) -> Say {
    Say::Raw(format!("HTTP/1.1 {line}\r\n{more}content-length: 4\r\nconnection: close\r\n\r\nnope"))
}

async fn serve(socket: TcpStream, answers: Answers, log: Arc<Mutex<Vec<(String, Value)>>>) {
    let mut socket = BufReader::new(socket);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let number = {
        let mut log = log.lock().unwrap();
        log.push((head, body.clone()));
        log.len() - 1
    };
    // The client may be gone, as after a crash.
    let _ = say(&mut socket, answers(number, &body)).await;
}

async fn say(socket: &mut BufReader<TcpStream>, what: Say) -> std::io::Result<()> {
    match what {
        Say::Raw(text) => socket.write_all(text.as_bytes()).await,
        Say::Hang(text) => {
            socket.write_all(text.as_bytes()).await?;
            std::future::pending().await
        }
        Say::Words(words) => {
            socket.write_all(EVENTS.as_bytes()).await?;
            for word in words {
                let part = json!({"choices": [{"delta": {"content": word}, "finish_reason": null}]});
                socket.write_all(format!("data: {part}\n\n").as_bytes()).await?;
                tokio::time::sleep(Duration::from_millis(1)).await; // a part of its own on the wire
            }
            socket.write_all(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n").await?;
            socket.write_all(b"data: [DONE]\n\n").await
        }
    }
}
