//! Every stage kind that `pipelines.toml` can name.
//!
//! A kind is one file: `sources/`, `transforms/` or `sinks/`, then the kind with `_` for `-`. The file holds its
//! `Config` (whose doc comments are the user's documentation), the stage, its `SPEC` and its tests; one row in
//! [`STAGES`] registers it. Beside them:
//!
//! - `applied`: which records a stage has taken, so that each counts once.
//! - [`backends`]: the process's connections, as a stage gets them.
//! - [`changes`]: changes of a table, as records.
//! - [`commands`]: how commands come in and are answered.
//! - [`deliveries`]: frames and whom they are for.
//! - [`derived`]: where stages keep what they make from history.
//! - [`history`]: whether records come in the order of time.
//! - [`host`]: what a process keeps for its pipelines in local files: dead letters and positions.
//! - [`jq`]: expressions, the one place that talks to jaq.
//! - [`log_range`]: a part of the log, read for oneself.
//! - [`metrics`]: what stages count beyond what the runtime counts of each.
//! - [`rate`]: records per second as people write them.
//! - [`runs`]: sets of sequences.
//! - `shared`: folders that several runs of a stage work on.
//! - [`stored_event`]: the event of a message that was read from the store.
//! - [`times`]: when a record says that something happened.
//! - `web`: servers on the web.

use courant_pipeline::StageSpec;
use courant_pipeline::spec::Registry;

mod applied;
pub mod backends;
pub mod changes;
pub mod commands;
pub mod deliveries;
pub mod derived;
pub mod history;
pub mod host;
pub mod jq;
mod lines;
pub mod log_range;
pub mod metrics;
pub mod rate;
pub mod runs;
mod shared;
pub mod sinks;
pub mod sources;
pub mod stored_event;
mod stream_group;
#[cfg(test)]
mod testing;
pub mod times;
pub mod transforms;
mod web;

/// Every kind, sources first.
pub static STAGES: &[&StageSpec] = &[
    &sources::dead_letter_read::SPEC,
    &sources::dynamo_scan::SPEC,
    &sources::dynamo_stream::SPEC,
    &sources::file::SPEC,
    &sources::generate::SPEC,
    &sources::kafka_consume::SPEC,
    &sources::kafka_read::SPEC,
    &sources::rest_ingest::SPEC,
    &sources::unpublished::SPEC,
    &sources::ws_ingest::SPEC,
    &transforms::cache_invalidate::SPEC,
    &transforms::account_mutate::SPEC,
    &transforms::agent::SPEC,
    &transforms::change_to_event::SPEC,
    &transforms::chat_mutate::SPEC,
    &transforms::dedupe::SPEC,
    &transforms::dynamo_persist::SPEC,
    &transforms::filter::SPEC,
    &transforms::map::SPEC,
    &transforms::membership_resolve::SPEC,
    &transforms::route::SPEC,
    &transforms::throttle::SPEC,
    &transforms::window::SPEC,
    &sinks::blackhole::SPEC,
    &sinks::delivery_ack::SPEC,
    &sinks::file::SPEC,
    &sinks::kafka_publish::SPEC,
    &sinks::parquet_write::SPEC,
    &sinks::redis_deliver::SPEC,
    &sinks::search_index::SPEC,
    &sinks::stdout::SPEC,
    &sinks::table::SPEC,
    &sinks::webhook::SPEC,
];

/// The kinds as the runtime looks them up.
pub fn registry() -> Registry {
    Registry(STAGES)
}
