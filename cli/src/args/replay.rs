//! Arguments of `courant replay` and `courant table`.

use std::num::NonZeroU32;

use clap::Args;
use courant_pipeline::units::Span;
use courant_replay::rebuild::{From, To};
use courant_stages::sources::dynamo_scan;

/// Actions that run no records, so that none could be slower.
const WITHOUT_A_PACE: [&str; 6] = ["pause", "approve", "rollback", "discard", "list", "show"];

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Replay {
    /// The pipeline whose store is rebuilt.
    #[arg(required_unless_present = "list")]
    pub pipeline: Option<String>,
    /// What to rebuild from: `oldest`, `offset:120`, `offset:TOPIC/0=120,TOPIC/1=80`, `time:2026-01-30T14:30:00Z`, or
    /// `scan` for everything that the store holds. What of the messages the log does not reach back to comes from the
    /// store; of other topics it is not in the rebuild, which then waits for --approve.
    #[arg(long, value_name = "START", required_unless_present = "action", conflicts_with = "action")]
    pub from: Option<From>,
    /// `live`: goes live if it is proved equal. `now`, `offset:…`, `time:…`: is compared, and waits for --approve.
    #[arg(long, value_name = "END", default_value = "live", conflicts_with = "action")]
    pub to: To,
    /// Records per second at the most, so that live traffic is not held up.
    #[arg(long, value_name = "RECORDS", conflicts_with_all = WITHOUT_A_PACE)]
    pub rate: Option<f64>,
    /// Stand back while records of live pipelines take longer than this, such as `50ms`: those of the running process
    /// that clients wait for. It slows down to a hundred records a second, and goes on.
    #[arg(long = "yield", value_name = "TIME", conflicts_with_all = WITHOUT_A_PACE)]
    pub yield_over: Option<Span>,
    /// End records at this stage, which would have effects that somebody sees again.
    #[arg(long, value_name = "STAGE", value_delimiter = ',', conflicts_with = "action")]
    pub suppress: Vec<String>,
    /// Run this stage although somebody sees its effects again. A pipeline that keeps no store is run for these alone.
    #[arg(long, value_name = "STAGE", value_delimiter = ',', conflicts_with = "action")]
    pub allow: Vec<String>,
    /// Parts of the store that are read side by side. More are faster, and take more from those who use the store.
    #[arg(long, value_name = "COUNT", default_value_t = dynamo_scan::SEGMENTS, conflicts_with = "action")]
    pub segments: NonZeroU32,
    /// Do not compare what is younger than this at the end of the history that was run.
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "action")]
    pub grace: Span,
    /// Examples to show of each kind of difference.
    #[arg(long, value_name = "COUNT", default_value_t = 10, conflicts_with = "action")]
    pub examples: usize,
    /// Say what it would take, and make nothing.
    #[arg(long, conflicts_with = "action")]
    pub dry_run: bool,
    /// Stop a rebuild that the running process carries out, in good order; --resume goes on.
    #[arg(long, group = "action")]
    pub pause: bool,
    /// Go on with a rebuild that was stopped, paused or killed; with --rate or --yield at another pace.
    #[arg(long, group = "action")]
    pub resume: bool,
    /// Put the newest rebuild in place, whatever its comparison said.
    #[arg(long, group = "action")]
    pub approve: bool,
    /// Put back the generation that was live before, brought up to date.
    #[arg(long, group = "action")]
    pub rollback: bool,
    /// Remove a generation for good.
    #[arg(long, group = "action", value_name = "GENERATION")]
    pub discard: Option<String>,
    /// List the generations; of all pipelines if none is named.
    #[arg(long, group = "action")]
    pub list: bool,
    /// Show the receipt of a generation; the newest if none is named.
    #[arg(long, group = "action", value_name = "GENERATION", num_args = 0..=1, require_equals = true)]
    pub show: Option<Option<String>>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Table {
    /// The pipeline that keeps the table.
    pub pipeline: String,
    /// One row; all if left out.
    pub key: Option<String>,
    /// The stage, if the pipeline has several tables.
    #[arg(long)]
    pub stage: Option<String>,
    /// Rows whose key begins like this.
    #[arg(long, default_value = "", conflicts_with = "key")]
    pub prefix: String,
    /// Rows behind this key.
    #[arg(long, value_name = "KEY", conflicts_with = "key")]
    pub after: Option<String>,
    /// Rows at the most.
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::Cli;

    fn is_taken(arguments: &str) -> bool {
        let line = format!("courant replay archive {arguments}");
        Cli::try_parse_from(line.split_whitespace()).is_ok()
    }

    #[test]
    fn what_an_action_would_ignore_is_refused() {
        for taken in [
            "--from scan --rate 100 --yield 50ms --examples 3",
            "--resume --rate 100 --yield 50ms",
            "--show --json",
        ] {
            assert!(is_taken(taken), "{taken}");
        }
        assert!(!is_taken("--resume --examples 3"));
        for action in ["--pause", "--approve", "--rollback", "--discard gen_1", "--list", "--show=gen_1"] {
            assert!(is_taken(action), "{action}");
            for ignored in ["--rate 100", "--yield 50ms", "--examples 3"] {
                assert!(!is_taken(&format!("{action} {ignored}")), "{action} {ignored}");
            }
        }
    }
}
