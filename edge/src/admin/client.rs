//! The command's side of the admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use courant_pipeline::health::PipelineHealth;
use courant_pipeline::runtime::ReloadReport;
use courant_pipeline::tap::TapRecord;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::protocol::{Request, Response};
use super::socket::{SocketError, check_length};
use crate::control::{LookUp, Redrive, RedriveReport, Running, TableRow};

/// A process that does not answer a look at its state for this long is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the process did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no courant is running here: nothing answers at `{}`; start one with `courant run`", path.display())]
    NotRunning { path: PathBuf },
    #[error("not permitted to use `{}`; run this as the user that runs courant, or as root", path.display())]
    NotPermitted { path: PathBuf },
    #[error(transparent)]
    Path(#[from] SocketError),
    /// The process's own words.
    #[error("{0}")]
    Refused(String),
    #[error("the process at `{}` gave no answer within {} s; it may be overloaded", path.display(), ANSWER_TIMEOUT.as_secs())]
    NoAnswer { path: PathBuf },
    #[error("the process at `{}` hung up before it answered", path.display())]
    HungUp { path: PathBuf },
    #[error("cannot talk to the process at `{}`", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the process at `{}` gave an answer this version does not know", path.display())]
    Garbled { path: PathBuf, source: serde_json::Error },
}

/// Asks the process behind one socket; each call is a connection of its own.
#[derive(Debug, Clone)]
pub struct AdminClient {
    path: PathBuf,
}

impl AdminClient {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub async fn health(&self) -> Result<Vec<PipelineHealth>, ClientError> {
        self.look(&Request::Health).await
    }

    /// The metrics in Prometheus' text format.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        self.look(&Request::Metrics).await
    }

    pub async fn running(&self) -> Result<Running, ClientError> {
        self.look(&Request::Running).await
    }

    /// Waits as long as the reload takes: draining a pipeline may be slow.
    pub async fn reload(&self) -> Result<ReloadReport, ClientError> {
        self.ask(&Request::Reload).await
    }

    /// Waits as long as the letters take.
    pub async fn redrive(&self, request: Redrive) -> Result<RedriveReport, ClientError> {
        self.ask(&Request::Redrive(request)).await
    }

    /// Starts to rebuild something, or looks at what was rebuilt; dropping the result stops it in good order.
    pub async fn replay(&self, ask: serde_json::Value) -> Result<LongWork, ClientError> {
        let lines = self.send(&Request::Replay(ask)).await?;
        Ok(LongWork { lines, path: self.path.clone() })
    }

    pub async fn look_up(&self, wanted: LookUp) -> Result<Vec<TableRow>, ClientError> {
        self.look(&Request::LookUp(wanted)).await
    }

    /// Starts work on store and log; dropping the result ends it.
    pub async fn job(&self, job: serde_json::Value) -> Result<LongWork, ClientError> {
        let lines = self.send(&Request::Job(job)).await?;
        Ok(LongWork { lines, path: self.path.clone() })
    }

    /// Waits as long as the log takes.
    pub async fn reset(&self, reset: serde_json::Value) -> Result<serde_json::Value, ClientError> {
        self.ask(&Request::Reset(reset)).await
    }

    /// Returns once the process has agreed, before it has ended.
    pub async fn stop(&self) -> Result<(), ClientError> {
        self.look(&Request::Stop).await
    }

    /// Starts to watch a stage's records; `limit` of them, or until the result is dropped.
    pub async fn tap(&self, pipeline: &str, stage: &str, limit: Option<u64>) -> Result<Tapped, ClientError> {
        let (pipeline, stage) = (pipeline.to_owned(), stage.to_owned());
        let lines = self.send(&Request::Tap { pipeline, stage, limit }).await?;
        Ok(Tapped { lines, path: self.path.clone() })
    }

    async fn look<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        match timeout(ANSWER_TIMEOUT, self.ask(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::NoAnswer { path: self.path.clone() }),
        }
    }

    async fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let mut lines = self.send(request).await?;
        let answer = read_answer(&mut lines, &self.path).await?;
        answer.ok_or_else(|| ClientError::HungUp { path: self.path.clone() })
    }

    async fn send(&self, request: &Request) -> Result<BufReader<UnixStream>, ClientError> {
        check_length(&self.path)?;
        let failed = |error| failed(&self.path, error);
        let mut stream = UnixStream::connect(&self.path).await.map_err(failed)?;
        let mut line = serde_json::to_vec(request)
            .map_err(|source| ClientError::Garbled { path: self.path.clone(), source })?;
        line.push(b'\n');
        match stream.write_all(&line).await {
            // It answered and closed without reading on; its answer says why.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            written => written.map_err(failed)?,
        }
        Ok(BufReader::new(stream))
    }
}

/// Records of a tapped stage.
#[derive(Debug)]
pub struct Tapped {
    lines: BufReader<UnixStream>,
    path: PathBuf,
}

impl Tapped {
    /// The next record; none once the limit is reached.
    pub async fn next(&mut self) -> Result<Option<TapRecord>, ClientError> {
        read_answer(&mut self.lines, &self.path).await
    }
}

/// Progress of long work, and what came of it at the end.
#[derive(Debug)]
pub struct LongWork {
    lines: BufReader<UnixStream>,
    path: PathBuf,
}

impl LongWork {
    /// The next line; none after the last.
    pub async fn next(&mut self) -> Result<Option<serde_json::Value>, ClientError> {
        read_answer(&mut self.lines, &self.path).await
    }
}

async fn read_answer<T: DeserializeOwned>(
    lines: &mut BufReader<UnixStream>,
    path: &Path,
) -> Result<Option<T>, ClientError> {
    let mut line = String::new();
    if lines.read_line(&mut line).await.map_err(|error| failed(path, error))? == 0 {
        return Ok(None);
    }
    match serde_json::from_str(&line) {
        Ok(Response::Ok(value)) => Ok(Some(value)),
        Ok(Response::Error(message)) => Err(ClientError::Refused(message)),
        // Without its end a line was cut off by the end of the process.
        Err(_) if !line.ends_with('\n') => Err(ClientError::HungUp { path: path.to_owned() }),
        Err(source) => Err(ClientError::Garbled { path: path.to_owned(), source }),
    }
}

fn failed(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning { path },
        io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path },
        _ => ClientError::Io { path, source },
    }
}
