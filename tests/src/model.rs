//! A model in the test: a server of chat completions that does what it is told to, and keeps what it was asked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What the model does with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// Begins to answer and never ends.
    Slow,
    Refuses,
    /// Says something else each time.
    Answers,
    /// Likewise, but this one is to be asked later.
    AnswersBut(&'static str),
}

pub struct Model {
    pub url: String,
    state: Arc<Mutex<State>>,
}

struct State {
    mood: Mood,
    asked: Vec<String>,
}

impl Model {
    /// One that is [slow](Mood::Slow).
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(Mutex::new(State { mood: Mood::Slow, asked: Vec::new() }));
        let kept = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&kept)));
            }
        });
        Self { url: format!("http://{address}/v1"), state }
    }

    pub fn is(&self, mood: Mood) {
        lock(&self.state).mood = mood;
    }

    /// The questions so far, as often as they were asked.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.state).asked.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request. None if whoever asked has gone, since it may be killed.
async fn serve(socket: TcpStream, state: Arc<Mutex<State>>) -> Option<()> {
    let mut socket = BufReader::new(socket);
    let question = question(&mut socket).await?;
    let (mood, number) = {
        let mut state = lock(&state);
        state.asked.push(question.clone());
        (state.mood, state.asked.len())
    };
    let part = |text: &str| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": text}}]}));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let only = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let said = match mood {
        Mood::Slow => format!("{head}{}", part("well, ")),
        Mood::Refuses => only("400 Bad Request"),
        Mood::AnswersBut(later) if later == question => only("503 Service Unavailable"),
        Mood::Answers | Mood::AnswersBut(_) => {
            format!("{head}{}data: [DONE]\n\n", part(&format!("to {question}, try {number}")))
        }
    };
    socket.write_all(said.as_bytes()).await.ok()?;
    if mood == Mood::Slow {
        let _ = socket.read_u8().await; // until it is killed
    }
    Some(())
}

/// The last message of a request.
async fn question(socket: &mut BufReader<TcpStream>) -> Option<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length is a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    let body: Value = serde_json::from_slice(&body).expect("a request is JSON");
    let last =
        body["messages"].as_array().and_then(|messages| messages.last()).expect("somebody said something");
    Some(last["content"].as_str().expect("it is text").to_owned())
}
