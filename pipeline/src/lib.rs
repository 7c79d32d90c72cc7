//! The pipeline runtime.
//!
//! A pipeline is a tree of stages with one source at its root. [`config`] turns `pipelines.toml` into checked
//! topologies, [`runtime`] runs them. What flows is a [`Record`]; who answers for it is its ack ([`ack`]); how
//! far a source may commit is decided in `ledger`. A stage kind is described by a [`StageSpec`] and works
//! through [`Stage`] or [`Source`].
//!
//! This crate knows no vendor and no chat.

pub mod ack;
mod batch;
pub mod clock;
pub mod config;
pub mod dead_letter;
pub mod derived;
mod error;
pub mod health;
pub mod intake;
mod latency;
mod ledger;
pub mod metrics;
mod payload;
pub mod positions;
mod record;
pub mod runtime;
mod services;
pub mod spec;
pub mod stage;
pub mod tap;
pub mod units;

pub use ack::{Disposition, Origin, Reply, ReplyTo, Tally};
pub use batch::{Batch, Fate, Output, Slot};
pub use error::{Class, StageError};
pub use payload::{DecodeError, Json, Native, Payload};
pub use record::{Headers, Key, Record};
pub use services::Services;
pub use spec::StageSpec;
pub use stage::{Source, Stage};
