//! A running `courant`.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use serde_json::Value;

pub use rustix::process::Signal;

use crate::http::get;
use crate::{LIMIT, until};

/// How much of its log a failed test shows.
const LOG_LINES: usize = 40;

/// A child process whose output is kept; killed when dropped.
pub struct Courant {
    child: Child,
    stdout: Capture,
    stderr: Capture,
    address: Option<SocketAddr>,
}

impl Courant {
    /// Starts a command, taking over the outputs it does not send elsewhere.
    pub fn spawn(mut command: Command) -> Self {
        Self::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts a command whose standard output goes where it says.
    pub fn spawn_with_stdout(mut command: Command, stdout: Stdio) -> Self {
        Self::of(command.stdout(stdout).stderr(Stdio::piped()))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = child.stdout.take().map_or_else(Capture::default, Capture::of);
        let stderr = child.stderr.take().map_or_else(Capture::default, Capture::of);
        Self { child, stdout, stderr, address: None }
    }

    /// Everything printed so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Everything logged so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn has_logged(&self, part: &str) -> bool {
        self.stderr().contains(part)
    }

    /// Waits until the log says so.
    #[track_caller]
    pub fn wait_logged(&mut self, part: &str) {
        until(&format!("`{part}` in the log"), LIMIT, || {
            assert!(self.is_running() || self.has_logged(part), "it ended");
            self.has_logged(part).then_some(())
        });
    }

    /// Waits until it listens and every pipeline is up.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        until("a ready process", LIMIT, || {
            assert!(self.is_running(), "it ended");
            (get(self.address()?, "/health/ready")?.0 == 200).then_some(())
        });
    }

    /// Where it answers HTTP, once it does.
    pub fn address(&mut self) -> Option<SocketAddr> {
        if self.address.is_none() {
            let log = self.stderr();
            let (_, after) = log.split_once("listening address=")?;
            let (address, _) = after.split_once('\n')?;
            self.address = address.trim().parse().ok();
        }
        self.address
    }

    /// The body of a page of the process.
    #[track_caller]
    pub fn page(&mut self, path: &str) -> String {
        let address = self.address().expect("the process listens");
        get(address, path).unwrap_or_else(|| panic!("nobody answers at {address}{path}")).1
    }

    /// A pipeline's entry in `/health`; none if it is not there, or nobody answers.
    pub fn health(&mut self, pipeline: &str) -> Option<Value> {
        let (_, body) = get(self.address()?, "/health")?;
        let health: Value = serde_json::from_str(&body).ok()?;
        health["pipelines"].as_array()?.iter().find(|entry| entry["name"] == pipeline).cloned()
    }

    /// Waits until a pipeline's entry in `/health` is as wanted.
    #[track_caller]
    pub fn wait_health(&mut self, pipeline: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("the wanted health of `{pipeline}`"), LIMIT, || self.health(pipeline).filter(&wanted))
    }

    #[track_caller]
    pub fn wait_state(&mut self, pipeline: &str, state: &str) -> Value {
        self.wait_health(pipeline, |health| health["state"] == state)
    }

    /// The sum of a metric over its labels, of those that have this one.
    #[track_caller]
    pub fn metric(&mut self, name: &str, label: &str) -> f64 {
        let page = self.page("/metrics");
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let lines = page.lines().filter(of_name).filter(|line| line.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The memory it has now, in KiB.
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it has not been waited for");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|resident| resident.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse().ok()).expect("the system tells how much memory is used")
    }

    pub fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        // One that has just ended has its id until it is waited for, so this reaches nobody else.
        kill_process(self.id(), signal).expect("a child can be signalled");
    }

    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits for its end and returns its exit code; none if a signal ended it.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let status = until("the end of the process", limit, || self.try_wait());
        self.stdout.finish();
        self.stderr.finish();
        status.code()
    }

    /// Asks it to stop and returns its exit code.
    #[track_caller]
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.wait(LIMIT)
    }

    /// Ends it without warning.
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Courant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.stderr();
            let last = log.lines().count().saturating_sub(LOG_LINES);
            let lines: Vec<&str> = log.lines().skip(last).collect();
            eprintln!("the end of the log of the process:\n{}", lines.join("\n"));
        }
    }
}

/// What a process writes, read by a thread so that it never waits for a reader.
#[derive(Default)]
struct Capture {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Capture {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut chunk) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..read]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for the last byte; to be called once the process has ended.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
