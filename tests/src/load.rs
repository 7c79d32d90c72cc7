//! People who keep talking while servers fail, with clients that do what the protocol tells clients to do.
//!
//! A [`Talker`] sends one message after the other, each with the same id until it is acknowledged. A [`Listener`] keeps
//! what it is told, asks the store where a frame names a sequence it has not seen, and connects again when it is cut off.
//! What was acknowledged and what was heard are compared at the end: [`Load::finish`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courant_client::{SignedIn, Socket};
use courant_conformance::eventually;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::LIMIT;
use crate::chat::RETRY_PAUSE;

/// Between two messages of a talker: together some hundred a second, which a debug build does beside everything else.
const PACE: Duration = Duration::from_millis(20);
/// Longer than the server takes for any answer, an outage of half a minute included: it says `TIMEOUT` after ten seconds.
const ANSWER: Duration = Duration::from_secs(20);
/// Messages to ask the store for at a time; the most that it gives.
const SYNC: usize = 1000;

/// Who talks in which chats, and who listens.
pub struct Load {
    talkers: Vec<Talker>,
    listeners: Vec<Listener>,
}

impl Load {
    /// In each chat somebody talks; everybody else listens in all of them.
    pub fn start(talking: Vec<(SignedIn, String)>, listening: Vec<SignedIn>) -> Self {
        let chats: Vec<String> = talking.iter().map(|(_, chat)| chat.clone()).collect();
        let listeners = listening.into_iter().map(|person| Listener::start(person, &chats)).collect();
        let talkers = talking.into_iter().map(|(person, chat)| Talker::start(person, chat)).collect();
        Self { talkers, listeners }
    }

    /// Waits until everybody has had so many more messages acknowledged.
    pub async fn talks_on(&self, messages: usize) {
        let wanted: Vec<usize> = self.talkers.iter().map(|talker| talker.acked() + messages).collect();
        eventually("messages are acknowledged", || async {
            self.talkers.iter().zip(&wanted).all(|(talker, wanted)| talker.acked() >= *wanted).then_some(())
        })
        .await;
    }

    /// How many messages were acknowledged so far.
    pub fn acked(&self) -> usize {
        self.talkers.iter().map(Talker::acked).sum()
    }

    /// Waits until everybody was told of something that was sent from now on, in every chat.
    pub async fn delivers_again(&self) {
        let sent: BTreeMap<String, u64> =
            self.talkers.iter().map(|talker| (talker.chat.clone(), talker.last())).collect();
        eventually("deliveries come", || async {
            let heard = |listener: &Listener| {
                let heard = lock(&listener.heard);
                sent.iter().all(|(chat, sequence)| heard.delivered.get(chat) > Some(sequence))
            };
            self.listeners.iter().all(heard).then_some(())
        })
        .await;
    }

    /// Lets everybody finish. Fails unless every acknowledged message reached every listener, under its sequence, and no
    /// message has two.
    pub async fn finish(self) -> Talked {
        let mut acked: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
        for talker in self.talkers {
            let chat = talker.chat.clone();
            acked.insert(chat, talker.finish().await);
        }
        for listener in self.listeners {
            let heard = listener.finish().await;
            for (chat, acked) in &acked {
                let heard = &heard[chat];
                for (sequence, content) in acked {
                    assert_eq!(heard.get(sequence), Some(content), "sequence {sequence} of {chat}");
                }
                let contents: BTreeSet<&String> = heard.values().collect();
                assert_eq!(contents.len(), heard.len(), "a message of {chat} has two sequences");
            }
        }
        Talked { messages: acked.values().map(BTreeMap::len).sum() }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Talked {
    /// How many were acknowledged.
    pub messages: usize,
}

struct Talker {
    chat: String,
    acked: Arc<Mutex<BTreeMap<u64, String>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Talker {
    fn start(person: SignedIn, chat: String) -> Self {
        let acked = Arc::<Mutex<BTreeMap<u64, String>>>::default();
        let (stop, stopped) = watch::channel(false);
        let (to, kept) = (chat.clone(), Arc::clone(&acked));
        let task = tokio::spawn(async move {
            let mut socket = None;
            let mut pace = tokio::time::interval(PACE);
            for n in 0.. {
                if *stopped.borrow() {
                    return;
                }
                let content = format!("{} says {n}", person.user_id);
                let sequence = say(&person, &mut socket, &to, &content).await;
                let before = lock(&kept).insert(sequence, content);
                assert_eq!(before, None, "sequence {sequence} of {to} was given twice");
                pace.tick().await;
            }
        });
        Self { chat, acked, stop, task }
    }

    fn acked(&self) -> usize {
        assert!(!self.task.is_finished(), "the talker of {} has failed", self.chat);
        lock(&self.acked).len()
    }

    fn last(&self) -> u64 {
        lock(&self.acked).last_key_value().map_or(0, |(sequence, _)| *sequence)
    }

    async fn finish(self) -> BTreeMap<u64, String> {
        self.stop.send_replace(true);
        timeout(LIMIT, self.task).await.expect("the last message is acknowledged").expect("it did not fail");
        lock(&self.acked).clone()
    }
}

/// Sends until it is acknowledged, over as many sockets as that takes; its sequence.
async fn say(person: &SignedIn, open: &mut Option<Socket>, chat: &str, content: &str) -> u64 {
    loop {
        let Some(socket) = open else {
            *open = connect(person).await;
            continue;
        };
        let answer = match socket.send_message(chat, content, content).await {
            Ok(()) => answer_to(socket, content).await,
            Err(_) => None,
        };
        match answer {
            Some(answer) if answer["type"] == "ack" => {
                return answer["sequence"].as_u64().expect("an ack has a sequence");
            }
            Some(answer) => assert_eq!(answer["retryable"], true, "{answer}"),
            None => *open = None,
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// None if the socket was closed before.
async fn answer_to(socket: &mut Socket, id: &str) -> Option<Value> {
    let answered = async {
        loop {
            let frame = socket.next_json().await?;
            if frame["client_message_id"] == id {
                return Some(frame);
            }
        }
    };
    timeout(ANSWER, answered).await.expect("what is sent is answered or the socket closed")
}

/// None if the server cannot take it now.
async fn connect(person: &SignedIn) -> Option<Socket> {
    let socket = person.client.connect().await.ok();
    if socket.is_none() {
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    socket
}

/// What somebody heard, by chat.
#[derive(Default)]
struct Heard {
    messages: BTreeMap<String, BTreeMap<u64, String>>,
    /// Everything up to here is known.
    known: BTreeMap<String, u64>,
    /// The last that came by itself.
    delivered: BTreeMap<String, u64>,
}

struct Listener {
    heard: Arc<Mutex<Heard>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Listener {
    fn start(person: SignedIn, chats: &[String]) -> Self {
        let mut heard = Heard::default();
        for chat in chats {
            heard.messages.insert(chat.clone(), BTreeMap::new());
            heard.known.insert(chat.clone(), 0);
        }
        let heard = Arc::new(Mutex::new(heard));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(listen(person, Arc::clone(&heard), stopped));
        Self { heard, stop, task }
    }

    /// Looks a last time at what it may have missed, as a client does that comes back.
    async fn finish(self) -> BTreeMap<String, BTreeMap<u64, String>> {
        self.stop.send_replace(true);
        timeout(LIMIT, self.task).await.expect("a listener comes to its end").expect("it did not fail");
        std::mem::take(&mut lock(&self.heard).messages)
    }
}

/// Until told to stop; then until a new connection has asked for everything that it does not know.
async fn listen(person: SignedIn, heard: Arc<Mutex<Heard>>, mut stopped: watch::Receiver<bool>) {
    loop {
        let last = *stopped.borrow_and_update();
        let Some(mut socket) = connect(&person).await else { continue };
        let mut asked = Asked::new();
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        let chats: Vec<_> = lock(&heard).known.keys().cloned().collect();
        for chat in chats {
            ask(&mut socket, &heard, chat, &mut asked).await;
        }
        loop {
            let frame = tokio::select! {
                frame = socket.next_json() => frame,
                _ = stopped.changed(), if !last => None,
            };
            let Some(frame) = frame else { break };
            if frame["type"] == "error" {
                // The store could not be asked: on a new connection it is asked again.
                assert_eq!(frame["retryable"], true, "{frame}");
                tokio::time::sleep(RETRY_PAUSE).await;
                break;
            }
            let behind = take(&frame, &heard, &mut told, &mut asked);
            if let Some(chat) = behind.filter(|chat| !asked.contains_key(chat)) {
                ask(&mut socket, &heard, chat, &mut asked).await;
            }
            if last && asked.is_empty() {
                return;
            }
        }
    }
}

/// By chat, how many messages are still to come at the most.
type Asked = BTreeMap<String, usize>;

/// Asks for what comes after everything that is known. A socket that closes meanwhile is noticed by who reads it.
async fn ask(socket: &mut Socket, heard: &Mutex<Heard>, chat: String, asked: &mut Asked) {
    let known = lock(heard).known[&chat];
    let request =
        json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": known, "limit": SYNC});
    if socket.send(&request).await.is_ok() {
        asked.insert(chat, SYNC);
    }
}

/// Keeps what a frame tells; a chat of which more is to be asked.
fn take(
    frame: &Value,
    heard: &Mutex<Heard>,
    told: &mut BTreeMap<String, u64>,
    asked: &mut Asked,
) -> Option<String> {
    let chat = frame["chat_id"].as_str().unwrap_or_default().to_owned();
    let mut heard = lock(heard);
    match frame["type"].as_str() {
        Some("message") => {
            let sequence = heard.keep(&chat, frame);
            let before = told.insert(chat.clone(), sequence);
            assert!(before < Some(sequence), "{chat}: {sequence} came after {before:?}");
            heard.delivered.insert(chat.clone(), sequence);
            let known = heard.known.get_mut(&chat).expect("a chat of the test");
            if frame["previous_sequence"].as_u64() > Some(*known) {
                return Some(chat);
            }
            *known = sequence.max(*known);
            None
        }
        Some("sync_batch") => {
            let messages = frame["messages"].as_array().expect("messages");
            for message in messages {
                let sequence = heard.keep(&chat, message);
                let known = heard.known.get_mut(&chat).expect("a chat of the test");
                *known = sequence.max(*known);
            }
            let left = asked.get_mut(&chat).expect("only what was asked is answered");
            *left -= messages.len();
            // The server goes on by itself up to what was asked for.
            match (frame["has_more"] == true, *left) {
                (true, 1..) => None,
                (more, _) => {
                    asked.remove(&chat);
                    more.then_some(chat)
                }
            }
        }
        _ => None,
    }
}

impl Heard {
    /// The same message may come twice, by itself and by asking; never another under its sequence.
    fn keep(&mut self, chat: &str, message: &Value) -> u64 {
        let sequence = message["sequence"].as_u64().expect("a message has a sequence");
        let content = message["content"].as_str().expect("a message has a content").to_owned();
        let messages = self.messages.get_mut(chat).expect("a chat of the test");
        let before = messages.insert(sequence, content.clone());
        assert!(before.is_none_or(|before| before == content), "{chat} has two messages {sequence}");
        sequence
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
