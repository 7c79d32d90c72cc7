//! The server under load: a process of its own, so that its processor time can be told from the load's.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use courant_client::Client;
use courant_connectors::connections::{Connections, LogConnection, StoreConnection};
use courant_edge::ws::metrics::{FRAMES_OUT, WRITES};
use courant_stages::metrics::{STORE_CALLS, STORE_READS, STORE_WRITE_UNITS};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// Starting makes tables and topics where there are none yet.
const START_LIMIT: Duration = Duration::from_secs(60);

pub(in crate::bench) struct Server {
    pub(super) client: Client,
    process: Option<Process>,
}

struct Process {
    child: Child,
    pid: u32,
    folder: TempDir,
}

/// What the server has counted: what persisting messages costs at the store, in DynamoDB's measures, and how frames
/// are written to sockets.
pub(super) struct Counted {
    pub(super) calls: f64,
    pub(super) read_units: f64,
    pub(super) write_units: f64,
    pub(super) frames: f64,
    pub(super) writes: f64,
}

impl Counted {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            frames: self.frames - before.frames,
            writes: self.writes - before.writes,
            calls: self.calls - before.calls,
            read_units: self.read_units - before.read_units,
            write_units: self.write_units - before.write_units,
        }
    }
}

/// The sum of a counter's lines, which begin with this.
fn sum(metrics: &str, counter: &str) -> f64 {
    let of_counter =
        |line: &&str| line.strip_prefix(counter).is_some_and(|rest| rest.starts_with(['{', ' ']));
    let values = metrics.lines().filter(of_counter);
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

impl Server {
    /// A server that runs already.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        Ok(Self { client: Client::new(url)?, process: None })
    }

    /// Starts the file's pipelines in a folder of their own beside the configured one, without limits of rate.
    pub(in crate::bench) async fn start(file: &Path, connections: &Connections) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("courant-bench-").tempdir_in(".");
        let folder = folder.context("cannot make a folder for the server's data here")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let mut server = Self {
            client: Client::new(&address)?,
            process: Some(Process::spawn(file, connections, &address, folder)?),
        };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// The same server in a new process, which has nothing in memory of what the old one did.
    pub(super) async fn restart(mut self, file: &Path, connections: &Connections) -> anyhow::Result<Self> {
        if let Some(process) = self.process.take() {
            let folder = process.stop().await?;
            self.process = Some(Process::spawn(file, connections, self.client.address(), folder)?);
        }
        self.wait_until_ready().await?;
        Ok(self)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.client.get("/health/ready").await.is_err() {
            if let Some(process) = &mut self.process
                && let Some(status) = process.child.try_wait()?
            {
                bail!("the server ended while it was starting ({status})");
            }
            if started.elapsed() > START_LIMIT {
                bail!("the server was not ready after {START_LIMIT:?}; its log says why");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Processor time that the server has used, where it was started here.
    pub(super) fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.as_ref()?.pid)).ok()?;
        // The name, in parentheses, may hold spaces; of the rest, fields 12 and 13 count ticks in user and system mode.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    }

    /// Memory that the server has in use, where it was started here.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.process.as_ref()?.pid)).ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }

    pub(super) async fn counted(&self) -> anyhow::Result<Counted> {
        let text = self.client.text("/metrics").await?;
        let reads = |consistency| sum(&text, &format!("{STORE_READS}{{consistency=\"{consistency}\"}}"));
        Ok(Counted {
            frames: sum(&text, FRAMES_OUT),
            writes: sum(&text, WRITES),
            calls: sum(&text, STORE_CALLS),
            read_units: reads("eventual") / 2.0 + reads("strong"),
            write_units: sum(&text, STORE_WRITE_UNITS),
        })
    }

    /// Ends the server that was started here and waits for it.
    pub(in crate::bench) async fn stop(self) -> anyhow::Result<()> {
        if let Some(process) = self.process {
            process.stop().await?;
        }
        Ok(())
    }
}

impl Process {
    fn spawn(file: &Path, connections: &Connections, address: &str, folder: TempDir) -> anyhow::Result<Self> {
        let data = folder.path().join("data");
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("--config")
            .arg(file)
            .arg("run")
            .env("COURANT_RUNTIME__DATA_DIR", &data)
            .env("COURANT_EDGE__LISTEN", address)
            .env("COURANT_EDGE__LIMITS__ENABLED", "false")
            .env("COURANT_AUTH__REQUIRE_VERIFICATION", "false")
            .env("COURANT_LOGGING__LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        if matches!(connections.store, StoreConnection::Embedded(_)) {
            command.env("COURANT_CONNECTIONS__STORE__PATH", &data);
        }
        if matches!(connections.log, LogConnection::Embedded(_)) {
            command.env("COURANT_CONNECTIONS__LOG__PATH", &data);
        }
        let child = command.spawn().context("cannot start the server")?;
        let pid = child.id().context("the server ended at once")?;
        Ok(Self { child, pid, folder })
    }

    /// What it leaves behind.
    async fn stop(mut self) -> anyhow::Result<TempDir> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        self.child.wait().await?;
        Ok(self.folder)
    }
}
