//! What every store, log and live state must do, whoever offers it.
//!
//! One suite per trait of `courant-connectors`, the same code for the embedded engine and for the real servers. A
//! crate of its own, apart from the end-to-end tests, so that a change to a connector is tried without building the
//! product around it.
//!
//! [`model`] is a suite above them: the data model's access patterns, on any store. [`stream`]: workers that follow a table together. [`crash`]: a process that writes to the embedded engine until it is killed, and what must be there afterwards. [`deployment`]: what the product leaves on store and log, for those who look at it.

pub mod crash;
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
pub mod deployment;
#[cfg(test)]
mod listed;
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
pub mod live;
pub mod log;
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
pub mod model;
pub mod servers;
pub mod store;
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
pub mod stream;
mod wait;

pub use wait::{LIMIT, eventually, until};
