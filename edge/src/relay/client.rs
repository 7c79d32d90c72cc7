//! The gateway's side: hands commands to processes that carry them out.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_pipeline::{Record, Reply, ReplyTo};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher as _;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::config::{RelayConfig, RelaySecretError};
use super::wire::{Answered, Asked, Hello, VERSION, Welcome, line, read};

/// Commands that may wait to be written to one process. Full: whoever sends waits.
const WAITING: usize = 8192;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The processes that carry out what this one does not. Clones share the connections; they end with the last one.
#[derive(Clone)]
pub struct Relay(Arc<[Link]>);

/// One of them.
struct Link {
    address: String,
    /// Whether there is a connection. It may be breaking just now: that only costs a retry.
    reached: Arc<AtomicBool>,
    handed: mpsc::Sender<Handed>,
}

impl Link {
    fn start(address: &str, secret: &Arc<str>) -> Self {
        let (sender, handed) = mpsc::channel(WAITING); // full: whoever sends waits
        let reached = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            address: address.to_owned(),
            secret: Arc::clone(secret),
            reached: Arc::clone(&reached),
        };
        tokio::spawn(connection.keep(handed));
        Self { address: address.to_owned(), reached, handed: sender }
    }

    fn is_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }
}

struct Handed {
    door: &'static str,
    command: String,
    record: Record,
    reply: ReplyTo,
}

impl Relay {
    /// Begins to connect; `None` if the configuration names nobody.
    pub fn start(config: &RelayConfig) -> Result<Option<Self>, RelaySecretError> {
        if config.to.is_empty() {
            return Ok(None);
        }
        let secret = config.secret()?;
        let all: Vec<_> = config.to.iter().map(|address| Link::start(address, &secret)).collect();
        Ok(Some(Self(all.into())))
    }

    /// Those that cannot be reached now, if that is all of them. One that can be does the work of the others.
    pub fn unreached(&self) -> Option<String> {
        if self.0.iter().any(Link::is_reached) {
            return None;
        }
        Some(self.0.iter().map(|link| &*link.address).collect::<Vec<_>>().join(", "))
    }

    /// Hands a command over. The reply is given up if the connection ends first.
    pub async fn send(&self, door: &'static str, command: &str, record: Record) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let link = self.link_for(record.key.as_ref().map_or("", |key| key.as_str()));
        let handed = Handed { door, command: command.to_owned(), record, reply };
        // The task ends only with the last sender, so somebody takes it; if not, dropping it is the answer.
        let _ = link.handed.send(handed).await;
        answer
    }

    /// The same for the same key, as long as it can be reached; the next one otherwise.
    fn link_for(&self, key: &str) -> &Link {
        let mut hasher = FxHasher::default();
        hasher.write(key.as_bytes());
        let first = usize::try_from(hasher.finish() % self.0.len() as u64).unwrap_or_default();
        let (before, from) = self.0.split_at(first);
        from.iter().chain(before).find(|link| link.is_reached()).unwrap_or(&from[0])
    }
}

/// Who waits, by the number of the request. The two halves of a connection share it.
#[derive(Clone, Default)]
struct UnderWay(Arc<Mutex<FxHashMap<u64, ReplyTo>>>);

impl UnderWay {
    fn add(&self, id: u64, reply: ReplyTo) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, reply);
    }

    fn take(&self, id: u64) -> Option<ReplyTo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

/// What keeps one process reached.
struct Connection {
    address: String,
    secret: Arc<str>,
    reached: Arc<AtomicBool>,
}

impl Connection {
    async fn keep(self, mut handed: mpsc::Receiver<Handed>) {
        let (address, mut pause) = (&*self.address, FIRST_PAUSE);
        loop {
            match connect(address, &self.secret).await {
                Ok((reading, writing)) => {
                    tracing::info!(address, "connected to the process that carries out commands");
                    self.reached.store(true, Ordering::Relaxed);
                    pause = FIRST_PAUSE;
                    let ended = use_up(reading, writing, &mut handed).await;
                    self.reached.store(false, Ordering::Relaxed);
                    match ended {
                        Ended::NobodyLeft => return,
                        Ended::Broken(error) => {
                            let error =
                                error.map_or_else(|| "it was closed".to_owned(), |error| error.to_string());
                            tracing::warn!(address, error, "the connection for commands broke");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(address, %error, "cannot reach the process that carries out commands");
                }
            }
            // What waited here was asked while nobody could do it: the clients are told so instead of being left waiting.
            while let Ok(waiting) = handed.try_recv() {
                drop(waiting);
            }
            if handed.is_closed() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Hands commands over and answers back until the connection breaks or nobody is left who asks.
async fn use_up(
    reading: BufReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
    handed: &mut mpsc::Receiver<Handed>,
) -> Ended {
    let under_way = UnderWay::default();
    let answers = tokio::spawn(answer(reading, under_way.clone()));
    let abort = answers.abort_handle();
    let ended = tokio::select! {
        ended = hand_over(writing, handed, &under_way) => ended,
        ended = answers => Ended::Broken(ended.map_err(io::Error::other).and_then(|read| read).err()),
    };
    abort.abort();
    ended
}

/// Why a connection is not used any more.
enum Ended {
    /// The gateway is going away.
    NobodyLeft,
    Broken(Option<io::Error>),
}

async fn connect(address: &str, secret: &str) -> io::Result<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (reading, mut writing) = stream.into_split();
        let mut reading = BufReader::with_capacity(64 * 1024, reading);
        let hello = Hello { relay: VERSION, secret: secret.to_owned() };
        writing.write_all(&line(&hello)?).await?;
        match read::<Welcome>(&mut reading, &mut Vec::new()).await? {
            Some(_) => Ok((reading, writing)),
            None => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it refused; see that `edge.relay.secret` is the same on both sides",
            )),
        }
    };
    timeout(CONNECT_LIMIT, connecting).await?
}

/// Writes commands, as many at a time as there are.
async fn hand_over(
    mut to: OwnedWriteHalf,
    handed: &mut mpsc::Receiver<Handed>,
    under_way: &UnderWay,
) -> Ended {
    let (mut waiting, mut lines, mut next) = (Vec::new(), Vec::new(), 0);
    while handed.recv_many(&mut waiting, 256).await > 0 {
        lines.clear();
        for Handed { door, command, record, reply } in waiting.drain(..) {
            next += 1;
            // One that has no JSON form cannot be handed over; its reply is dropped with it.
            let Ok(asked) = Asked::new(next, door, &command, &record).and_then(|asked| line(&asked)) else {
                continue;
            };
            lines.extend(asked);
            under_way.add(next, reply);
        }
        if let Err(error) = to.write_all(&lines).await {
            return Ended::Broken(Some(error));
        }
    }
    Ended::NobodyLeft
}

/// Hands replies to those who wait, until the connection ends.
async fn answer(mut from: BufReader<OwnedReadHalf>, under_way: UnderWay) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(answered) = read::<Answered>(&mut from, &mut buffer).await? {
        let waiting = under_way.take(answered.id);
        if let (Some(waiting), Some(reply)) = (waiting, answered.into_reply()) {
            // The client may have gone.
            let _ = waiting.send(reply);
        }
    }
    Ok(())
}
