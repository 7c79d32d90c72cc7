//! Sockets of clients: `GET /ws`, frames of JSON both ways.
//!
//! [`routes`] answers upgrades, a [`Gateway`] holds the sockets of this process. Frames that change something become
//! commands for pipelines, questions go to the store; what is fanned out comes ready-made from live state and is
//! written as it is. A client that misses a frame finds out and asks the store, so everything here may drop frames
//! rather than wait: an outbox that is full closes its socket and nothing else.
//!
//! A token is looked at when a socket is opened. After that it is the session that counts: the socket lives on when the token
//! expires after its quarter of an hour, and is closed (4401) when the session ends.
//!
//! - [`upgrade`](self::upgrade): from HTTP to a socket. `socket`, `obey`: its task. `codec`, `request`, `frames`: what is
//!   read and written.
//! - `outbox`, `sequences`, `peer`, `registry`: what is known of each socket.
//! - `gateway`: what runs for all of them: `deliver`, `answers`, `watermarks`, `watch`, `registrations`, `drain`.
//! - [`asyncapi`]: the protocol as it is published, made of the types above.

mod answers;
mod asyncapi;
mod close;
mod codec;
mod config;
mod deliver;
mod drain;
mod frames;
mod gateway;
pub mod metrics;
mod obey;
mod outbox;
mod peer;
mod registrations;
mod registry;
mod request;
mod sequences;
mod socket;
#[cfg(test)]
mod tests;
mod ticks;
mod upgrade;
mod watch;
mod watermarks;

pub use asyncapi::asyncapi;
pub use config::SocketConfig;
pub use gateway::Gateway;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::upgrade::OnUpgrade;
use warp::reject::Rejection;
use warp::reply::Response;
use warp::{Filter, Reply as _};

use crate::Api;

/// `GET /ws` and `GET /api/v1/asyncapi.json`. The client's address is taken from the request's extensions, where there
/// is one.
pub fn routes(
    api: Api,
    gateway: Gateway,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static {
    let socket = warp::path!("ws")
        .and(warp::get())
        .and(warp::any().map(move || (api.clone(), gateway.clone())))
        .and(warp::header::headers_cloned())
        .and(warp::ext::optional::<SocketAddr>())
        .and(warp::ext::optional::<OnUpgrade>())
        .then(|(api, gateway), headers, from, upgrade| upgrade::answer(api, gateway, headers, from, upgrade));
    let published: Arc<str> = asyncapi().to_string().into();
    let document = warp::path!("api" / "v1" / "asyncapi.json").and(warp::get()).map(move || {
        let json = ("content-type", "application/json");
        warp::reply::with_header(published.to_string(), json.0, json.1).into_response()
    });
    socket.or(document).unify()
}
