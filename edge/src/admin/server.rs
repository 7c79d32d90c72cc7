//! The process's side of the admin socket.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::protocol::{MAX_REQUEST_BYTES, Request, Response};
use super::socket::{OwnedSocket, SocketError};
use crate::control::{Control, WorkLine};

/// Commands and taps at the same time; an operator's hands, not a load.
const MAX_CONNECTIONS: usize = 32;
/// A request is one line that a program writes at once.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer that nobody reads is given up; a tap may stall, since people page through it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Answers get this long when the process stops.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Pause after an accept failed because the process has no file left; one may be closed until then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// The bound admin socket; nothing is answered before [`AdminServer::run`].
pub struct AdminServer {
    socket: OwnedSocket,
}

impl AdminServer {
    /// Makes the socket, and its folder if there is none. Must be called within a tokio runtime.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        OwnedSocket::bind(path).map(|socket| Self { socket })
    }

    /// Answers until `stop`, then lets requests under way finish, within a bound, and removes the socket.
    pub async fn run(self, control: Arc<dyn Control>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let cut = CancellationToken::new();
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let accepting = async {
            loop {
                let Some(stream) = self.accept().await else { continue };
                // full: the client is told and has to come again
                let slot = Arc::clone(&slots).try_acquire_owned();
                let connection = Connection { control: Arc::clone(&control), stop: stop.clone() };
                let cut = cut.clone();
                tasks.spawn(async move {
                    let served = match slot {
                        Ok(_held) => cut.run_until_cancelled(connection.serve(stream)).await,
                        Err(_) => cut.run_until_cancelled(refuse(stream)).await,
                    };
                    if let Some(Err(error)) = served {
                        tracing::debug!(%error, "admin connection ended");
                    }
                });
            }
        };
        stop.run_until_cancelled(accepting).await;
        tasks.close();
        if timeout(DRAIN_LIMIT, tasks.wait()).await.is_err() {
            tracing::warn!(requests = tasks.len(), "cut admin requests that did not finish in time");
            cut.cancel();
            tasks.wait().await;
        }
    }

    async fn accept(&self) -> Option<UnixStream> {
        match self.socket.listener.accept().await {
            Ok((stream, _)) => Some(stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }
}

async fn refuse(stream: UnixStream) -> io::Result<()> {
    let message = format!("{MAX_CONNECTIONS} admin connections are open; close a tap, or try again");
    let (_reader, mut writer) = stream.into_split();
    write(&mut writer, &Response::<()>::Error(message)).await
}

/// One connection: one request and its answers.
struct Connection {
    control: Arc<dyn Control>,
    stop: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: UnixStream) -> io::Result<()> {
        let peer = stream.peer_cred()?.uid();
        let (reader, mut writer) = stream.into_split();
        let own = rustix::process::geteuid().as_raw();
        if !may_ask(peer, own) {
            tracing::warn!(uid = peer, "refused an admin connection of another user");
            let message = format!("only the user with id {own} or root may do this, and yours is {peer}");
            return write(&mut writer, &Response::<()>::Error(message)).await;
        }
        let mut reader = BufReader::new(reader);
        match timeout(READ_TIMEOUT, read_request(&mut reader)).await {
            Ok(Ok(Some(request))) => self.answer(request, reader, writer).await,
            Ok(Ok(None)) => Ok(()),
            Ok(Err(message)) => write(&mut writer, &Response::<()>::Error(message)).await,
            Err(_) => {
                let message = format!("no request line came within {} s", READ_TIMEOUT.as_secs());
                write(&mut writer, &Response::<()>::Error(message)).await
            }
        }
    }

    async fn answer(
        self,
        request: Request,
        reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        let control = &self.control;
        match request {
            Request::Health => write(&mut writer, &Response::Ok(control.health())).await,
            Request::Metrics => write(&mut writer, &Response::Ok(control.metrics())).await,
            Request::Running => write(&mut writer, &Response::Ok(control.running().await)).await,
            Request::Reload => write(&mut writer, &Response::from(control.reload().await)).await,
            Request::Redrive(which) => {
                write(&mut writer, &Response::from(control.redrive(which).await)).await
            }
            Request::Tap { pipeline, stage, limit } => {
                let limit = limit.unwrap_or(u64::MAX);
                self.tap(&pipeline, &stage, limit, reader, writer).await
            }
            Request::Job(job) => self.follow(control.job(job), reader, writer).await,
            Request::Replay(ask) => self.follow(control.replay(ask), reader, writer).await,
            Request::LookUp(wanted) => {
                write(&mut writer, &Response::from(control.look_up(wanted).await)).await
            }
            Request::Reset(reset) => write(&mut writer, &Response::from(control.reset(reset).await)).await,
            Request::Stop => {
                // Answered first: what comes after may close this connection.
                let written = write(&mut writer, &Response::Ok(())).await;
                control.stop();
                written
            }
        }
    }

    async fn tap(
        &self,
        pipeline: &str,
        stage: &str,
        limit: u64,
        mut reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut records = match self.control.tap(pipeline, stage) {
            Ok(records) => records,
            Err(message) => return write(&mut writer, &Response::<()>::Error(message)).await,
        };
        let mut ignored = [0];
        for _ in 0..limit {
            let record = tokio::select! {
                record = records.recv() => record,
                // The client has no more to say: it hung up.
                _ = reader.read(&mut ignored) => return Ok(()),
                () = self.stop.cancelled() => None,
            };
            let Some(record) = record else {
                let message = format!("pipeline `{pipeline}` has ended; tap it again once it runs");
                return write(&mut writer, &Response::<()>::Error(message)).await;
            };
            writer.write_all(&line(&Response::Ok(record))?).await?;
        }
        Ok(())
    }
}

impl Connection {
    /// Hands on what long work tells.
    async fn follow(
        &self,
        started: Result<mpsc::Receiver<WorkLine>, String>,
        mut reader: BufReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<()> {
        let mut lines = match started {
            Ok(lines) => lines,
            Err(message) => return write(&mut writer, &Response::<()>::Error(message)).await,
        };
        let mut ignored = [0];
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                // The client has no more to say: it hung up, and the work ends.
                _ = reader.read(&mut ignored) => return Ok(()),
                () = self.stop.cancelled() => Some(Err("the process is being stopped".to_owned())),
            };
            match line {
                Some(Ok(line)) => write(&mut writer, &Response::Ok(line)).await?,
                Some(Err(message)) => return write(&mut writer, &Response::<()>::Error(message)).await,
                None => return Ok(()),
            }
        }
    }
}

/// Whoever runs the process, and root, who could do anything to it anyway.
fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// The request, or none if the client left without one.
async fn read_request(reader: &mut BufReader<OwnedReadHalf>) -> Result<Option<Request>, String> {
    let mut bytes = Vec::new();
    let limit = MAX_REQUEST_BYTES as u64 + 1;
    let read = reader.take(limit).read_until(b'\n', &mut bytes).await;
    read.map_err(|error| format!("cannot read the request: {error}"))?;
    if bytes.len() > MAX_REQUEST_BYTES {
        return Err(format!("a request line has at most {MAX_REQUEST_BYTES} bytes; name fewer ids"));
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        format!("not a request this version knows: {error}; is the command as old as the process?")
    })
}

async fn write(writer: &mut OwnedWriteHalf, answer: &impl Serialize) -> io::Result<()> {
    let line = line(answer)?;
    match timeout(WRITE_TIMEOUT, writer.write_all(&line)).await {
        Ok(written) => written,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")),
    }
}

fn line(answer: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::may_ask;

    #[test]
    fn only_the_owner_and_root_may_ask() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }
}
