//! A folder in which the command is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::Courant;
use crate::{LIMIT, lines};

/// A folder with a `pipelines.toml`; removed when dropped.
pub struct Home {
    folder: TempDir,
    binary: &'static str,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// None if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Standard output of a command that must have gone well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Standard error of a command that must have ended with `code`.
    #[track_caller]
    pub fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self.stderr
    }
}

/// What tests want of every process: any free port, and no look at the file that the test did not ask for.
const TABLES: &str = "edge = { listen = '127.0.0.1:0' }\nruntime = { watch = '0s' }\n\n";

impl Home {
    /// See [`home!`](crate::home).
    pub fn new(binary: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { folder, binary }
    }

    /// The command's file.
    pub fn binary(&self) -> &'static str {
        self.binary
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("the test's folder can be written to");
    }

    /// What is in a file of the folder; nothing if there is none yet.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The whole lines of a file, as JSON.
    pub fn json_lines(&self, name: &str) -> Vec<Value> {
        lines::json(&self.read(name))
    }

    /// Writes `pipelines.toml`: these pipelines, on any free port, reloaded only when asked to.
    #[must_use]
    pub fn with(self, pipelines: &str) -> Self {
        self.configure(pipelines);
        self
    }

    /// As [`Home::with`], in place of what was there, in one step.
    pub fn configure(&self, pipelines: &str) {
        self.replace_config(&format!("{TABLES}{pipelines}"));
    }

    /// Puts a text in place of `pipelines.toml` in one step, as deployments do.
    pub fn replace_config(&self, text: &str) {
        self.write("pipelines.toml.new", text);
        std::fs::rename(self.path("pipelines.toml.new"), self.path("pipelines.toml"))
            .expect("a file can be renamed in its folder");
    }

    /// Where a pipeline's source goes on, as kept on disk; of the only partition.
    pub fn position(&self, pipeline: &str) -> Option<u64> {
        let kept: Value =
            serde_json::from_str(&self.read(&format!("data/positions/{pipeline}.json"))).ok()?;
        kept["positions"]["0"].as_u64()
    }

    /// The waiting dead letters of a queue, as the command shows them.
    #[track_caller]
    pub fn letters(&self, queue: &str) -> Vec<Value> {
        lines::json(&self.run(&["dead-letters", "list", queue, "--json", "-n", "1000000"]).ok())
    }

    /// The command in this folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.prepare(self.binary, arguments)
    }

    /// Any command in this folder, without what the environment of the tests would change about ours.
    pub fn prepare(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.to_string_lossy().starts_with("COURANT_")) {
            command.env_remove(name);
        }
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.finish(self.command(arguments))
    }

    /// Runs a prepared [`Home::command`] to its end.
    #[track_caller]
    pub fn finish(&self, command: Command) -> Ended {
        let mut process = Courant::spawn(command);
        let code = process.wait(LIMIT);
        Ended { code, stdout: process.stdout(), stderr: process.stderr() }
    }

    /// Starts `courant run` with further arguments; returns once every pipeline is up.
    #[track_caller]
    pub fn start(&self, arguments: &[&str]) -> Courant {
        let mut process = self.launch(arguments);
        process.wait_ready();
        process
    }

    /// Starts `courant run` without waiting for anything.
    pub fn launch(&self, arguments: &[&str]) -> Courant {
        Courant::spawn(self.command(&[&["run"], arguments].concat()))
    }
}
