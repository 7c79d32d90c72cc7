//! The command line as it is written; `--help` is made from the comments here.

mod bench;
mod recovery;
mod replay;
mod servers;
mod verify;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use courant_pipeline::units::Span;
use courant_replay::positions::To;

pub use bench::{
    Bench, BenchOptions, ChatBenchOptions, ConnectionBenchOptions, IdleBenchOptions, ReplayBenchOptions,
    StoreBenchOptions, StreamBenchOptions,
};
pub use recovery::{CheckCounters, Counters, Moment, Reconcile, RecoverCounters};
pub use replay::{Replay, Table};
pub use servers::{Iam, IamFormat, Tables, Topics, WantedTables, WantedTopics};
pub use verify::{ListFormat, Verify};

use crate::graph;
use crate::settings::DEFAULT_FILE;

const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  it failed; standard error says why
  2  the command line is wrong
  3  the configuration is wrong, or `drift` found a difference
  4  a test of `courant test` failed
  5  no running process answered
  6  `verify`, `reconcile` or `counters` found something that must not be, and it is still so, or `replay` that a
     store is not what it should be

Files:
  pipelines.toml   what runs; `courant check` says what is wrong with it, `courant stages` what it can name
  data/            what the process keeps: positions, dead letters, the admin socket (`runtime.data_dir`)

Every setting can be given by the environment, `__` between the parts: COURANT_EDGE__LISTEN=0.0.0.0:8080";

/// A messaging backend in which every dataflow is a declared pipeline.
#[derive(Debug, Parser)]
#[command(name = "courant", version, after_help = EXIT_CODES, propagate_version = true)]
pub struct Cli {
    /// The file that declares the pipelines.
    #[arg(
        short,
        long,
        global = true,
        env = "COURANT_CONFIG",
        default_value = DEFAULT_FILE,
        value_name = "FILE"
    )]
    pub config: PathBuf,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the pipelines (what `courant` does without a command).
    Run(Run),
    /// Check the file and say everything that is wrong with it, each with its place.
    Check(Check),
    /// Show what a reload would restart, and which positions it would keep.
    Plan(Plan),
    /// Draw the pipelines.
    Graph(Graph),
    /// List the stage kinds, or describe one.
    Stages(Stages),
    /// Print a JSON Schema of the file, for editors.
    Schema,
    /// Run the tests written beside the pipelines.
    ///
    /// A `[[test]]` in the file, or in NAME.test.toml beside NAME.toml, gives records to a pipeline and says what
    /// should come of them. Sinks are replaced by ones that remember, so nothing outside is touched.
    Test(Test),
    /// Show records as they leave a stage of the running process.
    Tap(Tap),
    /// Watch the running process: throughput, latency, queues and lag of every stage.
    Top(Top),
    /// Look at records that were given up on, and run them again.
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Show how far sources have been read, start one over, or set where one goes on.
    #[command(subcommand)]
    Positions(Positions),
    /// Make the tables of `connections.store`, look at them, and compare them with the model.
    ///
    /// What is there already is never changed: `drift` says what is different, and somebody decides on it.
    #[command(subcommand)]
    Tables(Tables),
    /// Make the topics of `connections.log`, look at them, and compare them with the model.
    ///
    /// What is there already is never changed: `drift` says what is different, and somebody decides on it.
    #[command(subcommand)]
    Topics(Topics),
    /// Print the access that pipelines need: an IAM policy, Kafka ACLs, a Redis ACL.
    ///
    /// Made of what their stages declare, and nothing more; a process that answers clients needs --edge beside it. Names, region and table prefix are those of
    /// `[connections]`; what is not known there is left for you to fill in.
    Iam(Iam),
    /// Look after the folder of the embedded engine: what it takes, backups, checks.
    ///
    /// The engine keeps store and log in one folder, which one process at a time has open: stop `courant run` first. A
    /// backup is a folder like the original; keep it on another disk, and try `courant data check` on it now and then.
    #[command(subcommand)]
    Data(Data),
    /// Check what store and log hold against what the design promises, while others use them or at rest.
    ///
    /// Sequences, counters, idempotency keys, events, memberships, watermarks, sessions: `--list` names every check. It reads
    /// everything and writes nothing. Messages under way, late events and lagging indexes are waited for (`--grace`) and
    /// not reported. A running process that has the embedded engine open does the work
    /// itself and is asked over its admin socket; Ctrl-C ends it there too. Errors end it with 6; warnings, such as what
    /// an interrupted command left behind, do not unless `--strict` is given.
    Verify(Verify),
    /// Rebuild what a pipeline makes from history, prove it equal, and put it in place of the live one.
    ///
    /// The pipeline's own stages run from another start into a store beside the live one, which is then compared with
    /// what the store of record holds. It goes live at exactly the record where the live one stopped; the one before
    /// is kept for --rollback. Stop it with Ctrl-C at any time and go on with --resume.
    Replay(Replay),
    /// Look something up in a table that a pipeline keeps.
    Table(Table),
    /// Find messages without events and events without messages, and publish what is missing.
    ///
    /// The store decides. It reads the log and the messages, as `verify` does beside a deployment at work, and tells where
    /// they disagree; nothing is written unless you ask for it. `--publish` appends the events that are missing, with the
    /// ids they would have had, so consumers that know events by chat and sequence see each once. An event without a
    /// message stays in the log: find out where it came from, and rebuild what was made from it. Messages under way, and
    /// those older than the log keeps events, are not missed. `--sweep-chats` removes what is left of large groups whose
    /// making died. Ctrl-C at any moment is safe: run it again for the rest.
    ///
    /// docs/runbooks/reconcile.md tells when to use it. Ends with 6 while store and log disagree.
    Reconcile(Reconcile),
    /// Check the sequence counters of chats, and recover those that are missing or behind.
    ///
    /// A chat without its counter refuses messages with COUNTER_MISSING until a person recovers it: `check` finds such
    /// chats, `recover` sets their counters to the highest sequence that was used. docs/runbooks/counter-loss.md tells
    /// how to be sure.
    #[command(subcommand)]
    Counters(Counters),
    /// Make the running process read its file again, as SIGHUP does.
    Reload,
    /// Drain the running process and end it, as SIGTERM does.
    Stop,
    /// Measure, as ratios to limits measured in the same run.
    #[command(subcommand)]
    Bench(Bench),
    /// Print a completion script for a shell.
    Completions {
        /// bash, zsh, fish, elvish or powershell.
        shell: Shell,
    },
}

#[derive(Debug, Default, Args)]
pub struct Run {
    /// Run only these pipelines.
    #[arg(long, value_name = "PIPELINE", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Do not listen for HTTP.
    #[arg(long)]
    pub without_edge: bool,
    /// End when every pipeline has finished, instead of waiting for changes to the file.
    #[arg(long)]
    pub until_finished: bool,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Print what was found as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Plan {
    /// Print the plan as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Graph {
    #[arg(long, value_enum, default_value_t = graph::Format::Terminal)]
    pub format: graph::Format,
    /// Draw only these pipelines.
    #[arg(value_name = "PIPELINE")]
    pub pipelines: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Stages {
    /// The kind to describe.
    pub kind: Option<String>,
    /// Print the reference of all kinds as Markdown.
    #[arg(long, conflicts_with = "kind")]
    pub markdown: bool,
}

#[derive(Debug, Args)]
pub struct Test {
    /// Run only tests whose name contains this.
    pub name: Option<String>,
    /// Fail a test that takes longer.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub timeout: Span,
}

#[derive(Debug, Args)]
pub struct Tap {
    pub pipeline: String,
    /// Its name, or its kind if it has no name.
    pub stage: String,
    /// End after this many records.
    #[arg(short = 'n', long, value_name = "RECORDS")]
    pub limit: Option<u64>,
    /// One JSON object a line, with key and headers.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Print one table and end.
    #[arg(long)]
    pub once: bool,
    /// Time between two looks.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = above_zero)]
    pub every: Span,
}

fn above_zero(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(Span(time)) if time.is_zero() => Err("write a time above zero, such as \"1s\"".to_owned()),
        parsed => parsed,
    }
}

#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// List the letters that wait, oldest first.
    List {
        /// Only this queue.
        queue: Option<String>,
        /// How many to list.
        #[arg(short = 'n', long, default_value_t = 20, value_name = "LETTERS")]
        limit: usize,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Show one letter whole.
    Show {
        /// As `list` shows it: dl_…
        id: String,
    },
    /// Run letters again from the stage that gave up on them. What fails again becomes a new letter.
    Redrive {
        queue: String,
        /// Only these letters; all of the queue if left out.
        #[arg(value_name = "ID")]
        ids: Vec<String>,
    },
    /// Remove letters without running them.
    Discard {
        queue: String,
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Positions {
    /// Show the kept positions of every pipeline.
    List,
    /// Forget a pipeline's position: it starts over when it starts next.
    Forget { pipeline: String },
    /// Set where a pipeline goes on that reads topics: its group in the log is moved.
    ///
    /// For one that stopped because the log no longer holds what its group had not read, and for one that is to read again,
    /// or to leave something out. Refused while the pipeline runs, here or in another process. One that waits to be
    /// restarted goes on by itself.
    Reset {
        pipeline: String,
        /// `oldest`: with everything that the log still holds. `latest`: with what is published from now on. Or with what
        /// was published since a moment, such as 2026-01-30T14:30:00.000Z.
        #[arg(long, value_name = "PLACE")]
        to: To,
    },
}

#[derive(Debug, Subcommand)]
pub enum Data {
    /// Show what every table, index and topic takes on disk.
    Info {
        #[command(flatten)]
        folder: DataFolder,
        /// Print it as JSON, in bytes.
        #[arg(long)]
        json: bool,
    },
    /// Read everything, and say what cannot be read or does not agree. Ends with 1 if there is anything.
    Check {
        #[command(flatten)]
        folder: DataFolder,
    },
    /// Copy everything to a new folder, as it is at one moment.
    Backup {
        #[command(flatten)]
        folder: DataFolder,
        /// Where to; must not exist yet.
        to: PathBuf,
    },
    /// Copy a backup to where the engine looks for its data, after checking it. Overwrites nothing.
    Restore {
        /// A folder made by `courant data backup`.
        from: PathBuf,
        #[command(flatten)]
        folder: DataFolder,
    },
    /// Rewrite all files without what was removed or replaced. Worth it after much was removed.
    Compact {
        #[command(flatten)]
        folder: DataFolder,
    },
}

#[derive(Debug, Args)]
pub struct DataFolder {
    /// The folder of the engine, if it is not the one that `[connections.store]` names.
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<PathBuf>,
}
