//! Sockets over loopback: a real store, live state in memory, and a pipeline that is played by the test.

mod conforms;
mod hostile;
mod life;
mod opening;
mod published;
mod sessions_end;
mod talking;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use courant_client::{Client, Heard, Socket};
use courant_connectors::embedded::{Engine, MemoryLive, Options};
use courant_connectors::live::{Channel, Connections as _, Publish as _};
use courant_connectors::model::commands::{Answer, Code, Command, Refusal, Sent, WEBSOCKET};
use courant_connectors::model::frames::{Frame, MessageFrame, Revoked, write_delivery};
use courant_connectors::model::tables::TABLES;
use courant_connectors::model::tables::chat_memberships::{self, Membership, Role};
use courant_connectors::model::tables::chats::{self, Chat, ChatType};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::sessions::{self, Session};
use courant_connectors::model::{ConnectionId, GatewayId, Timestamp, UserId};
use courant_connectors::store::{AdminStore as _, Transaction, WriteStore as _};
use courant_pipeline::intake::Intake;
use courant_pipeline::{Disposition, Json, Payload, Reply, ReplyTo};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::auth::{AuthConfig, Authenticate, Caller};
use crate::commands::Commands;
use crate::fake::FakeControl;
use crate::http::HttpServer;
use crate::limits::LimitsConfig;
use crate::{Backing, EdgeConfig};

/// Longer than anything takes; a test that waits for it fails.
const LIMIT: Duration = Duration::from_secs(20);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

struct World {
    store: Arc<Engine>,
    live: MemoryLive,
    gateway: Gateway,
    id: GatewayId,
    address: SocketAddr,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    /// What was handed in, if the test wants to answer itself.
    commands: Mutex<Option<mpsc::Receiver<(Command, ReplyTo)>>>,
    intake: Intake,
    api: Api,
    _folder: tempfile::TempDir,
}

/// Believes whoever says `user/session`; the device is the session's.
struct Believes;

impl Authenticate for Believes {
    fn authenticate(&self, token: &str) -> Result<Caller, Refusal> {
        let refusal = || Refusal::new(Code::Unauthenticated, "not a token");
        let (user, session) = token.split_once('/').ok_or_else(refusal)?;
        Ok(Caller { user_id: user.into(), session_id: session.into(), device_id: "dev_1".into() })
    }
}

fn limit(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

async fn world() -> World {
    world_with(SocketConfig::default()).await
}

async fn world_with(socket: SocketConfig) -> World {
    let limits = LimitsConfig { enabled: false, ..LimitsConfig::default() };
    world_of(EdgeConfig { limits, socket, ..EdgeConfig::default() }).await
}

/// With limits, those of sockets among them.
async fn world_with_limits(socket: SocketConfig) -> World {
    world_of(EdgeConfig { socket, ..EdgeConfig::default() }).await
}

async fn world_of(edge: EdgeConfig) -> World {
    let edge = EdgeConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        allowed_origins: vec!["https://chat.example".to_owned().try_into().unwrap()],
        ..edge
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Engine::open(folder.path().join("data"), Options::default()).await.unwrap();
    for schema in TABLES {
        store.create_table(schema).await.unwrap();
    }
    let (live, intake, id) = (MemoryLive::new(), Intake::default(), GatewayId::generate());
    let backing = Backing {
        store: Arc::clone(&store) as _,
        live: Arc::new(live.clone()),
        searches: Arc::default(),
        commands: Commands::new(intake.clone(), COMMAND_TIMEOUT),
        gateway: id.clone(),
    };
    let server = HttpServer::bind(&edge).await.unwrap();
    let address = server.address();
    let api = Api::open(edge, AuthConfig::default(), folder.path(), backing).unwrap();
    let api = Api { authenticate: Arc::new(Believes), ..api };
    let (gateway, stop) = (Gateway::new(&api), CancellationToken::new());
    let running = tokio::spawn({
        let (gateway, stop) = (gateway.clone(), stop.clone());
        async move { gateway.run(stop).await }
    });
    let routes = routes(api.clone(), gateway.clone());
    // It goes on while sockets are drained, as in the process.
    tokio::spawn(server.run(FakeControl::with(Vec::new()), Some(routes), CancellationToken::new()));
    let commands = Mutex::new(Some(take_commands(&intake).await));
    World { store, live, gateway, id, address, stop, running, commands, intake, api, _folder: folder }
}

async fn take_commands(intake: &Intake) -> mpsc::Receiver<(Command, ReplyTo)> {
    let served = ["send_message".to_owned(), "ack".to_owned()];
    let mut requests = intake.serve(WEBSOCKET, &served).await.unwrap();
    let (commands, taken) = mpsc::channel(4096); // full: the test has stopped looking
    tokio::spawn(async move {
        loop {
            let taken = tokio::select! {
                taken = requests.next(64) => taken,
                () = commands.closed() => return,
            };
            for request in taken {
                let command = request.record.payload.decode::<Json<Command>>().unwrap().0.clone();
                if commands.send((command, request.reply)).await.is_err() {
                    return;
                }
            }
        }
    });
    taken
}

fn reply(to: ReplyTo, answer: Answer) {
    let disposition = match answer {
        Answer::Refused(_) => Disposition::Dropped,
        _ => Disposition::Delivered,
    };
    let receipt = Some(Box::new(Payload::value(Json(answer))));
    // Whoever asked may have gone.
    let _ = to.send(Reply { disposition, reason: None, receipt });
}

fn sent(command: &Command, sequence: u64) -> Answer {
    let Command::SendMessage(send) = command else { panic!("not a message: {command:?}") };
    Answer::Sent(Sent {
        message_id: "msg_1".into(),
        chat_id: send.chat_id.clone(),
        sequence,
        created_at: Timestamp::from_unix_millis(1_769_783_400_000),
        deduplicated: false,
    })
}

impl World {
    /// Acks every message, and refuses those to `chat_no` and to what is nowhere.
    fn answer_all(&self) {
        let mut commands = self.commands();
        tokio::spawn(async move {
            let mut sequence = 0;
            while let Some((command, to)) = commands.recv().await {
                sequence += 1;
                let answer = match &command {
                    Command::SendMessage(send) if send.chat_id.as_str().starts_with("chat_no") => {
                        Answer::Refused(Refusal::new(Code::NotAMember, "not a member"))
                    }
                    Command::SendMessage(_) => sent(&command, sequence),
                    _ => Answer::Done,
                };
                reply(to, answer);
            }
        });
    }

    fn commands(&self) -> mpsc::Receiver<(Command, ReplyTo)> {
        self.commands.lock().unwrap().take().expect("taken once")
    }

    async fn sign_in(&self, user: &str, session: &str) -> Client {
        let now = Timestamp::from(courant_pipeline::clock::now());
        let stored = Session {
            session_id: session.into(),
            user_id: user.into(),
            device_id: "dev_1".into(),
            device_name: None,
            refresh_token_hash: String::from("hash"),
            spent: Vec::new(),
            created_at: now,
            last_used_at: now,
            expires_at: now.plus(Duration::from_secs(3600)),
        };
        sessions::create(&*self.store, &stored).await.unwrap();
        self.client(&format!("{user}/{session}"))
    }

    fn client(&self, token: &str) -> Client {
        Client::new(&self.address.to_string()).unwrap().with_token(token)
    }

    /// A new user with a socket that has been welcomed; the socket and its id.
    async fn connect(&self, user: &str) -> (Socket, ConnectionId) {
        let client = self.sign_in(user, &format!("sess_{user}")).await;
        welcomed(&client).await
    }

    async fn make_chat(&self, chat: &str) {
        let chat = Chat {
            chat_id: chat.into(),
            chat_type: ChatType::Group,
            name: None,
            created_by: "user_2".into(),
            created_at: Timestamp::from_unix_millis(0),
            updated_at: Timestamp::from_unix_millis(0),
        };
        let writes = vec![chats::create_write(&chat)];
        self.store.transact(Transaction { writes, token: None }).await.unwrap();
    }

    async fn join(&self, chat: &str, user: &str) {
        let membership = Membership {
            chat_id: chat.into(),
            user_id: user.into(),
            role: Role::Member,
            joined_at: Timestamp::from_unix_millis(0),
            muted_until: None,
        };
        let writes = vec![chat_memberships::add_write(&membership)];
        self.store.transact(Transaction { writes, token: None }).await.unwrap();
    }

    async fn store_messages(&self, chat: &str, sequences: impl Iterator<Item = u64>, content: &str) {
        let write = |sequence| {
            messages::put_write(&Message {
                chat_id: chat.into(),
                sequence,
                message_id: format!("msg_{sequence}").into(),
                sender_id: "user_2".into(),
                client_message_id: format!("c-{sequence}").into(),
                content: content.into(),
                content_type: "text/plain".into(),
                created_at: Timestamp::from_unix_millis(1_769_783_400_000),
            })
        };
        let writes: Vec<_> = sequences.map(write).collect();
        for writes in writes.chunks(100) {
            let transaction = Transaction { writes: writes.to_vec(), token: None };
            self.store.transact(transaction).await.unwrap();
        }
    }

    /// Publishes messages of a chat to these connections, as whoever fans out would.
    async fn publish(&self, to: &[ConnectionId], sequences: &[u64], content: &str) {
        let mut out = BytesMut::new();
        for &sequence in sequences {
            let frame = message(sequence, content).encode();
            write_delivery(&mut out, &"chat_1".into(), Some(sequence), to, &frame).unwrap();
        }
        self.live.publish(&[(Channel::deliver(&self.id), out.freeze())]).await.unwrap();
    }

    async fn revoke(&self, user: &str, sessions: &[&str]) {
        let told = Revoked {
            user_id: user.into(),
            session_ids: sessions.iter().map(|&session| session.into()).collect(),
        };
        let payload = serde_json::to_vec(&told).unwrap().into();
        self.live.publish(&[(Channel::revoked_sessions(), payload)]).await.unwrap();
    }

    async fn known(&self, user: &str) -> usize {
        self.live.connections_of(&[UserId::from(user)]).await.unwrap()[0].len()
    }

    /// Waits until the gateway has this many sockets.
    async fn until_sockets(&self, count: usize) {
        until(async || self.gateway.sockets() == count).await;
    }
}

fn message(sequence: u64, content: &str) -> Frame {
    Frame::Message(MessageFrame {
        message_id: format!("msg_{sequence}").into(),
        chat_id: "chat_1".into(),
        sequence,
        sender_id: "user_2".into(),
        content: content.into(),
        content_type: "text/plain".into(),
        created_at: Timestamp::from_unix_millis(1_769_783_400_000),
        previous_sequence: sequence - 1,
    })
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, waiting).await.expect("it comes to hold");
}

async fn welcomed(client: &Client) -> (Socket, ConnectionId) {
    let mut socket = client.connect().await.unwrap();
    let welcome = frame(&mut socket).await;
    assert_eq!(welcome["type"], "welcome", "first of all: {welcome}");
    let id = welcome["connection_id"].as_str().unwrap().into();
    (socket, id)
}

/// A request for an upgrade, as it goes over the wire.
fn upgrade_request(token: &str) -> String {
    format!(
        "GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         authorization: Bearer {token}\r\n\r\n"
    )
}

/// The next frame, which is as the published protocol says.
async fn frame(socket: &mut Socket) -> Value {
    match timeout(LIMIT, socket.next()).await.expect("a frame comes") {
        Heard::Frame(text) => {
            let frame = serde_json::from_slice(&text).unwrap();
            assert!(text.starts_with(b"{\"type\":"), "type first: {frame}");
            conforms::check(&frame);
            frame
        }
        Heard::Closed(code) => panic!("closed with {code:?}"),
    }
}

/// Reads until the server closes; its code.
async fn closed(socket: &mut Socket) -> Option<u16> {
    loop {
        if let Heard::Closed(code) = timeout(LIMIT, socket.next()).await.expect("it is closed") {
            return code;
        }
    }
}

fn send_frame(id: &str, chat: &str, content: &str) -> Value {
    json!({"type": "send_message", "client_message_id": id, "chat_id": chat, "content": content})
}
