//! People who talk: the shipped pipelines, and clients of their edge.

use std::pin::pin;
use std::time::Duration;

use courant_client::{Client, SignedIn, Socket};
use futures::future::{Either, select};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::{Courant, Home, LIMIT, repository};

/// Between a refusal and the next try.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The shipped `pipelines.toml` on any free port, without limits of rate.
pub fn shipped_pipelines() -> String {
    shipped("pipelines.toml")
}

/// A shipped topology, likewise.
pub fn shipped(file: &str) -> String {
    let shipped = std::fs::read_to_string(repository().join(file)).expect("it is shipped");
    let on_any_port = shipped.replace("127.0.0.1:8080", "127.0.0.1:0");
    format!("{on_any_port}\n[edge.limits]\nenabled = false\n\n[runtime]\nwatch = '0s'\n")
}

/// The shipped pipelines with other tables `[connections.…]`.
pub fn shipped_pipelines_on(connections: &str) -> String {
    shipped_on("pipelines.toml", connections)
}

/// A shipped topology, likewise.
pub fn shipped_on(file: &str, connections: &str) -> String {
    let shipped = shipped(file);
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

/// Both ways to get events out: written twice, or made of what was written once.
pub const TOPOLOGIES: [&str; 2] = ["pipelines.toml", "examples/event-bus.toml"];

impl Home {
    #[must_use]
    pub fn with_topology(self, file: &str) -> Self {
        self.replace_config(&shipped(file));
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

/// Sends until it is acknowledged, again and again with the same id. Only what the server says may be retried is.
pub async fn send_until_acked(socket: &mut Socket, chat: &str, id: &str, content: &str) -> Value {
    let acked = async {
        loop {
            let answer = send(socket, chat, id, content).await;
            if answer["type"] == "ack" {
                return answer;
            }
            assert_eq!(answer["retryable"], true, "{answer}");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    timeout(LIMIT, acked).await.expect("a message that may be retried is acknowledged at last")
}

/// What a message takes from one to the other at the most, by the median, on a machine that is busy with tests.
const NORMAL: Duration = Duration::from_millis(500);
/// Fewer tell nothing.
const FEWEST: usize = 5;
/// Between two messages, as people talk who are in a hurry.
const BREATH: Duration = Duration::from_millis(50);

/// Two people who go on talking.
pub struct Talk {
    from: Socket,
    to: Socket,
    chat: String,
    said: usize,
}

impl Talk {
    pub async fn begin(courant: &mut Courant) -> Self {
        let (one, other) = (courant.person("Ann").await, courant.person("Bob").await);
        let chat = group(&[&one, &other]).await;
        let (from, to) = (connect(&one).await, connect(&other).await);
        Self { from, to, chat, said: 0 }
    }

    /// Goes on as long as something else takes, and takes no longer than usual for it.
    pub async fn goes_on<T>(&mut self, during: impl Future<Output = T>) -> T {
        let mut during = pin!(during);
        let (mut took, mut done) = (Vec::new(), None);
        while done.is_none() || took.len() < FEWEST {
            let exchange = pin!(self.exchange());
            took.push(if done.is_some() {
                exchange.await
            } else {
                match select(exchange, during.as_mut()).await {
                    Either::Left((took, _)) => took,
                    Either::Right((ended, exchange)) => {
                        done = Some(ended);
                        exchange.await
                    }
                }
            });
        }
        took.sort_unstable();
        let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
        assert!(median < NORMAL, "of {} messages half took {median:?}, one {worst:?}", took.len());
        done.expect("it was waited for")
    }

    /// One message, acknowledged and heard; how long that took.
    async fn exchange(&mut self) -> Duration {
        let begun = Instant::now();
        self.said += 1;
        let id = format!("talk-{}", self.said);
        let ack = send(&mut self.from, &self.chat, &id, "hello").await;
        let heard = next_of(&mut self.to, "message").await;
        assert_eq!(heard["sequence"], ack["sequence"], "{ack}");
        let took = begun.elapsed();
        sleep(BREATH).await;
        took
    }
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
