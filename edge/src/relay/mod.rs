//! Commands between processes: gateways hold sockets, others run the pipelines that carry commands out.
//!
//! A gateway that serves a command in none of its own pipelines hands it to a process that does, over one connection
//! for all of its clients. Lines of JSON both ways, so that it can be read off the wire; requests have numbers, and
//! replies come in any order. A connection that ends gives up what was under way on it: clients are told to try again,
//! and the ids in their commands make that safe.
//!
//! Rejected: passing commands through the live level. A send would then need Redis, which may be wiped at any moment;
//! and through the log, which has no way back.

mod client;
mod config;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use client::Relay;
pub use config::{RelayConfig, RelaySecretError};
pub use server::{RelayListenError, RelayServer};
