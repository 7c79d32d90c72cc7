//! The writing process, as the test sees it.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{Model, Told};

/// Killed when dropped.
pub struct Writer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    /// Starts a command that ends up as `crash_writer`.
    pub fn start(command: &mut Command) -> Self {
        let started = command.stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut child = started.unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = child.stdout.take().expect("its output is piped");
        Self { child, lines: BufReader::new(stdout).lines() }
    }

    async fn next(&mut self) -> Option<Told> {
        let line = self.lines.next_line().await.expect("its output can be read")?;
        Some(serde_json::from_str(&line).expect("it tells what it was told"))
    }

    /// Hears this many lines more.
    pub async fn hear(&mut self, model: &mut Model, lines: u64) {
        for _ in 0..lines {
            model.hear(self.next().await.expect("it writes until it is killed"));
        }
    }

    /// Kills it and hears what it still had said.
    pub async fn kill(mut self, model: &mut Model) {
        assert_eq!(self.child.try_wait().expect("it can be waited for"), None, "it ended by itself");
        self.child.start_kill().expect("it can be killed");
        while let Some(told) = self.next().await {
            model.hear(told);
        }
        self.child.wait().await.expect("it can be waited for");
    }

    /// Hears it to the end that it comes to by itself, and returns its last words; its errors are to be piped.
    pub async fn last_words(mut self, model: &mut Model) -> String {
        let mut stderr = self.child.stderr.take().expect("its errors are piped");
        let mut words = Vec::new();
        let hear = async {
            while let Some(told) = self.next().await {
                model.hear(told);
            }
        };
        let (read, ()) = tokio::join!(stderr.read_to_end(&mut words), hear);
        read.expect("its errors can be read");
        self.child.wait().await.expect("it can be waited for");
        String::from_utf8_lossy(&words).into_owned()
    }
}
