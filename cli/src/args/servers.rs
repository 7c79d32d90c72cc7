//! Arguments of the commands about what servers hold and allow.

use std::num::{NonZeroU16, NonZeroU32};

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub enum Tables {
    /// Create the tables that are missing. Those that are there are left as they are.
    Create(WantedTables),
    /// Show tables as they are: keys, indexes, TTL, stream, capacity, recovery, size.
    Describe {
        /// Any table of the store; all of the model if left out.
        table: Option<String>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Compare tables with the model and print every difference. Ends with 3 if there is one.
    Drift {
        #[command(flatten)]
        wanted: WantedTables,
        /// Print the differences, and what the server does not tell, as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The model's tables with what an installation wants otherwise; the same for making and comparing.
#[derive(Debug, Args)]
pub struct WantedTables {
    /// Only these tables.
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub only: Vec<String>,
    /// These tables with a change stream, beside those that have one anyway.
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub stream: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Topics {
    /// Create the topics that are missing. Those that are there are left as they are.
    Create(WantedTopics),
    /// Show topics as they are: partitions, retention, copies, size.
    Describe {
        /// Any topic of the log; all of the model if left out.
        topic: Option<String>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Compare topics with the model and print every difference. Ends with 3 if there is one.
    Drift {
        #[command(flatten)]
        wanted: WantedTopics,
        /// Print the differences, and what the server does not tell, as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The model's topics with what an installation wants otherwise; the same for making and comparing.
#[derive(Debug, Args)]
pub struct WantedTopics {
    /// Only these topics.
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Partitions of each topic. Adding some later moves chats to other partitions, and their order is lost.
    #[arg(long, value_name = "COUNT")]
    pub partitions: Option<NonZeroU32>,
    /// Copies of each topic on different brokers. A single broker has one, with a warning.
    #[arg(long, value_name = "COUNT")]
    pub replication: Option<NonZeroU16>,
}

#[derive(Debug, Args)]
pub struct Iam {
    /// What a process needs that runs these.
    #[arg(value_name = "PIPELINE", required_unless_present = "edge")]
    pub pipelines: Vec<String>,
    /// And what one needs that answers clients: for queries, sockets, limits and /health. Without a pipeline, what a gateway
    /// needs.
    #[arg(long)]
    pub edge: bool,
    /// Only the rules of one server, as it takes them.
    #[arg(long, value_enum, conflicts_with = "json")]
    pub format: Option<IamFormat>,
    /// Print all rules as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The AWS account of the tables.
    #[arg(long, value_name = "ID", default_value = "${AWS_ACCOUNT_ID}", hide_default_value = true)]
    pub account: String,
    /// The user of Kafka and Redis. `courant-PIPELINE` if left out, and `courant` for several pipelines.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IamFormat {
    /// A policy document for DynamoDB.
    Iam,
    /// Commands for Kafka's `kafka-acls.sh`.
    Kafka,
    /// A command for Redis.
    Redis,
}
