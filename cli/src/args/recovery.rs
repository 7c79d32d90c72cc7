//! Arguments of the commands that put things right.

use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::{Args, Subcommand};
use courant_connectors::model::Timestamp;
use courant_pipeline::clock;
use courant_pipeline::units::Span;

#[derive(Debug, Args)]
pub struct Reconcile {
    /// Only this chat; can be given several times. The log is read whole all the same, unless `--since` is given.
    #[arg(long = "chat", value_name = "CHAT")]
    pub chats: Vec<String>,
    /// Only what was stored or published since then: a moment such as 2026-01-30T14:30:00.000Z, or how long ago, such as
    /// 2h. Much faster on a long log.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Moment>,
    /// Publish the events that are missing.
    #[arg(long)]
    pub publish: bool,
    /// Remove groups that were begun and never made, and memberships that lead to no chat.
    #[arg(long)]
    pub sweep_chats: bool,
    /// How long ago such a group was begun at least. Making one takes seconds.
    #[arg(long, default_value = "10m", value_name = "TIME", requires = "sweep_chats")]
    pub older_than: Span,
    /// How long a message may wait for its event before it is missed. Longer than publishing takes, and than the clocks of
    /// your machines are apart.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub grace: Span,
    /// Examples to show of each kind of finding.
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub examples: usize,
    /// Workers that read at the same time. More are faster, and take more from those who use the store.
    #[arg(long, default_value = "2", value_name = "COUNT")]
    pub parallel: NonZeroUsize,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Counters {
    /// Tell which counters are missing, or behind the messages of their chat. Writes nothing; ends with 6 if there are any.
    Check(CheckCounters),
    /// Set counters that are missing or behind to the highest sequence that was used.
    ///
    /// That is the highest of the chat's messages, read strongly, and of what its members have acknowledged. A counter is
    /// only ever set forward, and only if nobody else has set it meanwhile; so it is safe while others write, and to run
    /// twice. What was recovered is looked at again after `--grace`, when writers that had their sequences before have
    /// ended. Ends with 6 if a counter could not be recovered.
    Recover(RecoverCounters),
}

#[derive(Debug, Args)]
pub struct CheckCounters {
    /// Only this chat; can be given several times. All chats if left out.
    #[arg(long = "chat", value_name = "CHAT")]
    pub chats: Vec<String>,
    #[command(flatten)]
    pub common: CounterOptions,
}

#[derive(Debug, Args)]
pub struct RecoverCounters {
    /// This chat; can be given several times.
    #[arg(long = "chat", value_name = "CHAT", required_unless_present = "all")]
    pub chats: Vec<String>,
    /// Every chat whose counter is missing or behind.
    #[arg(long, conflicts_with = "chats")]
    pub all: bool,
    /// Only tell what counters would be set to.
    #[arg(long)]
    pub dry_run: bool,
    /// Leave so many sequences unused, for writers that hold sequences from before the counter was lost and cannot be
    /// waited for. Clients allow for gaps.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub margin: u64,
    /// How long to wait for such writers before looking again. Longer than storing a message takes, retries included.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub grace: Span,
    #[command(flatten)]
    pub common: CounterOptions,
}

#[derive(Debug, Clone, Args)]
pub struct CounterOptions {
    /// Read the log too: sequences of events count as used. For a store that came from a backup, which the log is ahead of.
    #[arg(long)]
    pub with_log: bool,
    /// Counters to name of those that are not in order.
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    pub examples: usize,
    /// Workers that read at the same time. More are faster, and take more from those who use the store.
    #[arg(long, default_value = "2", value_name = "COUNT")]
    pub parallel: NonZeroUsize,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A point in time, written as one or as how long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(moment) = text.parse() {
            return Ok(Self(moment));
        }
        let ago: Span = text.parse().map_err(|_| {
            format!("`{text}` is no time; write one like 2026-01-30T14:30:00.000Z, or how long ago, like 2h")
        })?;
        let millis = u64::try_from(ago.0.as_millis()).unwrap_or(u64::MAX);
        Ok(Self(Timestamp::from_unix_millis(clock::unix_millis().saturating_sub(millis))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_one_or_so_long_ago() {
        let moment: Moment = "2026-01-30T14:30:00.000Z".parse().unwrap();
        assert_eq!(moment.0, Timestamp::from_unix_millis(1_769_783_400_000));
        let ago: Moment = "2h".parse().unwrap();
        let since = clock::unix_millis() - ago.0.unix_millis();
        assert!((7_200_000..7_260_000).contains(&since), "{since}");
        assert!("yesterday".parse::<Moment>().unwrap_err().contains("how long ago"));
    }
}
