//! What clients and operators talk to.
//!
//! [`http`] answers over TCP: health and metrics, and the client protocol of [`rest`] and [`ws`]. [`admin`] answers the
//! `courant` command over a Unix socket that only its owner can open. Neither knows how pipelines run: both
//! ask a [`Control`], which the process provides.
//!
//! [`commands`] is how the edge gets things changed; [`relay`] takes them to another process that does it.
//!
//! The edge holds no state of its own and changes nothing itself; whatever changes something goes through a
//! pipeline or through `Control`.

mod access;
pub mod admin;
mod api;
pub mod auth;
pub mod commands;
mod config;
mod control;
#[cfg(test)]
mod fake;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod http;
pub mod limits;
pub mod relay;
pub mod rest;
pub mod ws;

pub use access::grant;
pub use api::{Api, Backing};
pub use config::EdgeConfig;
pub use control::{
    Component, ComponentStatus, Control, LookUp, Redrive, RedriveReport, Running, RunningPipeline, TableRow,
    WorkLine,
};

/// Everything that clients ask for: REST and sockets.
pub fn client_routes(api: Api, gateway: ws::Gateway) -> http::Routes {
    use warp::Filter as _;
    // Sockets first: REST answers everything else below its prefix, if only that there is nothing there.
    ws::routes(api.clone(), gateway).or(rest::routes(api)).unify().boxed()
}
