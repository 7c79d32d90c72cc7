//! Arguments of `courant verify`.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use courant_connectors::model::Timestamp;
use courant_pipeline::units::Span;

#[derive(Debug, Args)]
pub struct Verify {
    /// List the checks: what must hold, what it means when it does not, and what to do then.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        conflicts_with = "json"
    )]
    pub list: Option<ListFormat>,
    /// Only these checks.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only these chats, and nothing about users. The log is read whole all the same.
    #[arg(long, value_name = "CHAT", value_delimiter = ',')]
    pub chats: Vec<String>,
    /// How long a message may wait for its event before it is missed. Longer than publishing takes, and than the clocks of
    /// your machines are apart.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub grace: Span,
    /// Look at watermarks and counters again after this long: whether they only move forward takes two looks.
    #[arg(long, value_name = "TIME")]
    pub watch: Option<Span>,
    /// Miss no events of messages from before this: the log was begun, or lost, then.
    #[arg(long, value_name = "MOMENT")]
    pub events_since: Option<Timestamp>,
    /// Examples to show of each kind of finding.
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub examples: usize,
    /// Workers that read at the same time. More are faster, and take more from those who use the store.
    #[arg(long, default_value = "2", value_name = "COUNT")]
    pub parallel: NonZeroUsize,
    /// End with 6 for warnings too.
    #[arg(long)]
    pub strict: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    Text,
    Json,
    Markdown,
}
