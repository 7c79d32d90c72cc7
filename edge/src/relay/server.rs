//! The side that carries commands out: takes other processes' commands into this one's pipelines.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::model::commands::{REST, WEBSOCKET};
use courant_pipeline::Reply;
use courant_pipeline::intake::Intake;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::{RelayConfig, RelaySecretError};
use super::wire::{Answered, Asked, Hello, VERSION, Welcome, line, read, same_secret};

/// A gateway that does not say who it is within this time is none.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Gateways at a time; far more than a deployment has.
const MAX_GATEWAYS: usize = 256;
/// Commands of one gateway that may be under way. Full: no more are read from it.
const MAX_UNDER_WAY: usize = 16_384;
/// Requests under way get this long when the process stops.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum RelayListenError {
    #[error(
        "cannot take commands of other processes on {address}: {source}; set `edge.relay.listen` to a free address"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Secret(#[from] RelaySecretError),
}

/// Listens for gateways.
pub struct RelayServer {
    listener: TcpListener,
    secret: Arc<str>,
    intake: Intake,
}

impl RelayServer {
    /// `None` if the configuration asks for none.
    pub async fn bind(config: &RelayConfig, intake: Intake) -> Result<Option<Self>, RelayListenError> {
        let Some(address) = config.listen else { return Ok(None) };
        let secret = config.secret()?;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| RelayListenError::Listen { address, source })?;
        Ok(Some(Self { listener, secret, intake }))
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`; what is under way then is answered, within a bound.
    pub async fn run(self, stop: CancellationToken) {
        let (room, gateways) = (Arc::new(Semaphore::new(MAX_GATEWAYS)), TaskTracker::new());
        loop {
            // full: further gateways wait in the system's queue
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (secret, intake, stop) = (Arc::clone(&self.secret), self.intake.clone(), stop.clone());
            gateways.spawn(async move {
                if let Err(error) = serve(stream, &secret, intake, stop).await {
                    tracing::warn!(%peer, %error, "the connection of a gateway ended");
                }
                drop(permit);
            });
        }
        gateways.close();
        let _ = timeout(DRAIN_LIMIT, gateways.wait()).await;
    }
}

async fn serve(stream: TcpStream, secret: &str, intake: Intake, stop: CancellationToken) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (reading, mut writing) = stream.into_split();
    let (mut reading, mut buffer) = (BufReader::with_capacity(64 * 1024, reading), Vec::new());
    let hello = timeout(HELLO_LIMIT, read::<Hello>(&mut reading, &mut buffer)).await??;
    if !hello.is_some_and(|hello| hello.relay == VERSION && same_secret(&hello.secret, secret)) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it does not know the secret of this relay",
        ));
    }
    writing.write_all(&line(&Welcome { relay: VERSION })?).await?;
    let (answers, to_write) = mpsc::channel(MAX_UNDER_WAY); // full: answers wait, and with them their permits
    let under_way = Arc::new(Semaphore::new(MAX_UNDER_WAY));
    let writer = tokio::spawn(write(writing, to_write));
    loop {
        let asked = tokio::select! {
            asked = read::<Asked>(&mut reading, &mut buffer) => asked?,
            () = stop.cancelled() => break,
        };
        let Some(asked) = asked else { break };
        let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else { break };
        let (id, answers) = (asked.id, answers.clone());
        let Some(reply) = submit(&intake, asked).await else {
            drop(answers.send(Answered::new(id, None)).await);
            continue;
        };
        tokio::spawn(async move {
            let reply: Option<Reply> = reply.await.ok();
            drop(answers.send(Answered::new(id, reply.as_ref())).await);
            drop(permit);
        });
    }
    drop(answers);
    writer.await.map_err(io::Error::other)?
}

async fn submit(intake: &Intake, asked: Asked) -> Option<tokio::sync::oneshot::Receiver<Reply>> {
    // Doors are a few fixed words; any other is a gateway of another version.
    let door = [WEBSOCKET, REST].into_iter().find(|door| *door == asked.door)?;
    let command = asked.command.clone();
    let way_in = if intake.is_served(door, &command) { door } else { WEBSOCKET };
    intake.send(way_in, &command, asked.into_record()).await.ok()
}

/// Writes what is answered, as much at a time as there is.
async fn write(mut to: OwnedWriteHalf, mut answers: mpsc::Receiver<Answered>) -> io::Result<()> {
    let (mut waiting, mut lines) = (Vec::new(), Vec::new());
    while answers.recv_many(&mut waiting, 256).await > 0 {
        lines.clear();
        for answered in waiting.drain(..) {
            lines.extend(line(&answered)?);
        }
        to.write_all(&lines).await?;
    }
    to.shutdown().await
}
