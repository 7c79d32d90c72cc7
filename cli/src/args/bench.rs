//! `courant bench`: what to measure, and how long.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use courant_pipeline::units::Size;

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// What the runtime costs beside a loop written by hand.
    Runtime(BenchOptions),
    /// Durable writes to `connections.store`, at 1, 64 and 1024 in flight.
    ///
    /// On the embedded engine in a new folder beside the configured one, against what the same disk does; on a server
    /// in a new table, which is removed again.
    Store(StoreBenchOptions),
    /// Durable appends to `connections.log`, at 1, 64 and 1024 in flight, and reading them back.
    ///
    /// On the embedded engine in a new folder beside the configured one, against what the same disk does; on a server
    /// in a new topic, which is removed again.
    Log(ConnectionBenchOptions),
    /// What delivering asks of `connections.live`: registering, looking up, publishing, at 1, 64 and 1024 in flight.
    Live(ConnectionBenchOptions),
    /// Messages from socket to socket: how many are acknowledged and delivered a second, and how long that takes.
    ///
    /// Starts the file's pipelines as a server of its own in a new folder beside the configured one, without limits of
    /// rate, and loads it from this process. 50 chats of 5 members, messages of 200 bytes, one sender in each chat: 1, 16
    /// and 256 messages in flight altogether, then a fixed 500 messages a second.
    Chat(ChatBenchOptions),
    /// How long a message takes when everything follows from what changed in the store, and when it is published too.
    ///
    /// Starts the pipelines of both files as servers of their own, as `bench chat` does, and loads them in turns: first
    /// 500 messages a second, then 256 in flight.
    Stream(StreamBenchOptions),
    /// What an idle connection costs in memory.
    Idle(IdleBenchOptions),
    /// Rebuilding from history: the log into a search index, and a scan of the store.
    ///
    /// On the embedded engine, in a new folder beside the configured one that is filled with messages first. The limits
    /// are Tantivy fed with the same documents, and the engine below gone through row by row.
    Replay(ReplayBenchOptions),
}

#[derive(Debug, Clone, Copy, Args)]
pub struct ReplayBenchOptions {
    #[command(flatten)]
    pub common: ConnectionBenchOptions,
    /// Messages in store and log, of 200 bytes of text each. Everything is measured once at least, however many.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
}

#[derive(Debug, Clone, Args)]
pub struct ChatBenchOptions {
    /// How long to measure, all figures together.
    #[arg(long, default_value_t = 40)]
    pub seconds: u32,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Chats, with one sender each.
    #[arg(long, default_value_t = 50)]
    pub chats: usize,
    /// Members of each chat, the sender among them; 2 to 1000.
    #[arg(long, default_value_t = 5)]
    pub members: usize,
    /// Have as many in flight for each sender, not altogether.
    #[arg(long)]
    pub per_sender: bool,
    /// Load a server that runs already, such as http://127.0.0.1:8080. Its processor time is then not measured.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Measure how cost grows: 1 to 1000 chats of two, then chats of 2 to 1000 members, 256 in flight.
    #[arg(long, conflicts_with_all = ["chats", "members", "per_sender", "url"])]
    pub growth: bool,
}

#[derive(Debug, Clone, Args)]
pub struct StreamBenchOptions {
    /// How long to measure, all figures together.
    #[arg(long, default_value_t = 40)]
    pub seconds: u32,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// The pipelines that have the store as their event bus; `--config` names those that write twice.
    #[arg(long, value_name = "FILE", default_value = "examples/event-bus.toml")]
    pub event_bus: PathBuf,
    /// Chats, with one sender each.
    #[arg(long, default_value_t = 50)]
    pub chats: usize,
    /// Members of each chat, the sender among them; 2 to 1000.
    #[arg(long, default_value_t = 5)]
    pub members: usize,
}

#[derive(Debug, Clone, Args)]
pub struct IdleBenchOptions {
    /// How many connections.
    #[arg(long, default_value_t = 5000)]
    pub connections: usize,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct BenchOptions {
    /// How long to measure, all figures together.
    #[arg(long, default_value_t = 40)]
    pub seconds: u32,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct StoreBenchOptions {
    #[command(flatten)]
    pub common: ConnectionBenchOptions,
    /// Write so much to the embedded engine instead, then open it again: what that takes of memory and time.
    #[arg(long, value_name = "SIZE")]
    pub fill: Option<Size>,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct ConnectionBenchOptions {
    /// How long to measure, all figures together.
    #[arg(long, default_value_t = 30)]
    pub seconds: u32,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::Cli;

    #[test]
    fn growth_has_shapes_of_its_own() {
        let is_taken = |arguments: &[&str]| {
            let line = ["courant", "bench", "chat"].iter().chain(arguments);
            Cli::try_parse_from(line).is_ok()
        };
        assert!(is_taken(&["--growth", "--seconds", "24"]) && is_taken(&["--per-sender", "--chats", "3"]));
        for ignored in [&["--per-sender"][..], &["--chats", "3"], &["--members", "3"], &["--url", "http://h"]]
        {
            assert!(!is_taken(&[&["--growth"], ignored].concat()), "{ignored:?}");
        }
    }
}
