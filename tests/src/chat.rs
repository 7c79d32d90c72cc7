//! People who talk: the shipped pipelines, and clients of their edge.

use std::time::Duration;

use courant_client::{Client, SignedIn, Socket};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{Courant, Home, LIMIT, repository};

/// The shipped `pipelines.toml` on any free port, without limits of rate.
pub fn shipped_pipelines() -> String {
    let shipped = std::fs::read_to_string(repository().join("pipelines.toml")).expect("it is shipped");
    let on_any_port = shipped.replace("127.0.0.1:8080", "127.0.0.1:0");
    format!("{on_any_port}\n[edge.limits]\nenabled = false\n\n[runtime]\nwatch = '0s'\n")
}

/// The shipped pipelines with other tables `[connections.…]`.
pub fn shipped_pipelines_on(connections: &str) -> String {
    let shipped = shipped_pipelines();
    let from = shipped.find("[connections.store]").expect("the shipped file says where the data is");
    let to = shipped.find("[edge]").expect("the shipped file has an edge");
    format!("{}{connections}\n{}", &shipped[..from], &shipped[to..])
}

impl Home {
    /// Writes the shipped pipelines.
    #[must_use]
    pub fn with_shipped_pipelines(self) -> Self {
        self.replace_config(&shipped_pipelines());
        self
    }
}

impl Courant {
    /// A client of its edge that has not signed in.
    #[track_caller]
    pub fn client(&mut self) -> Client {
        let address = self.address().expect("the process listens");
        Client::new(&address.to_string()).expect("an address is one")
    }

    /// Somebody new, signed in.
    pub async fn person(&mut self, name: &str) -> SignedIn {
        let number = ulid::Ulid::generate().random() % 10_000_000_000;
        self.client().sign_up(&format!("+99{number:010}"), name).await.expect("anybody can sign up")
    }
}

/// Makes a group of its first person's making; its id.
pub async fn group(people: &[&SignedIn]) -> String {
    let others: Vec<&str> = people[1..].iter().map(|person| person.user_id.as_str()).collect();
    let wanted = json!({"chat_type": "group", "name": "a group", "members": others});
    let made = people[0].client.post("/api/v1/chats", &wanted).await.expect("a group can be made");
    made["chat_id"].as_str().expect("it has an id").to_owned()
}

/// Connects, and waits for the welcome.
pub async fn connect(person: &SignedIn) -> Socket {
    let mut socket = person.client.connect().await.expect("who signed in can connect");
    let welcome = next(&mut socket).await;
    assert_eq!((&welcome["type"], &welcome["user_id"]), (&json!("welcome"), &json!(person.user_id)));
    socket
}

/// The next frame.
#[track_caller]
pub fn next(socket: &mut Socket) -> impl Future<Output = Value> {
    let place = std::panic::Location::caller();
    async move {
        let frame = timeout(LIMIT, socket.next_json()).await;
        let frame = frame.unwrap_or_else(|_| panic!("{place}: no frame came"));
        frame.unwrap_or_else(|| panic!("{place}: the socket was closed"))
    }
}

/// The next frame of this type; those of other types are passed over.
#[track_caller]
pub fn next_of(socket: &mut Socket, kind: &'static str) -> impl Future<Output = Value> {
    let place = std::panic::Location::caller();
    async move {
        let found = async {
            loop {
                let frame = socket.next_json().await;
                let frame = frame.unwrap_or_else(|| panic!("{place}: closed before a {kind} came"));
                if frame["type"] == kind {
                    return frame;
                }
            }
        };
        timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("{place}: no {kind} came"))
    }
}

/// Nothing comes for a moment. Only to be asked after something later has come elsewhere.
pub async fn nothing_comes(socket: &mut Socket) {
    if let Ok(frame) = timeout(Duration::from_millis(200), socket.next_json()).await {
        panic!("{frame:?} came");
    }
}

/// Sends and waits for what is answered: an ack, or an error.
pub async fn send(socket: &mut Socket, chat: &str, id: &str, content: &str) -> Value {
    socket.send_message(chat, id, content).await.expect("the socket is open");
    let answered = async {
        loop {
            let frame = socket.next_json().await.expect("the socket stays open");
            if frame["client_message_id"] == id {
                return frame;
            }
        }
    };
    timeout(LIMIT, answered).await.expect("a send is answered")
}

/// Everything that is stored in a chat, as its member sees it.
pub async fn history(person: &SignedIn, chat: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("/api/v1/chats/{chat}/messages?after={after}&limit=100");
        let page = person.client.get(&path).await.expect("a member can read");
        let messages = page["messages"].as_array().expect("messages").clone();
        after = messages.last().map_or(after, |last| last["sequence"].as_u64().expect("a sequence"));
        all.extend(messages);
        if page["has_more"] != true {
            return all;
        }
    }
}
