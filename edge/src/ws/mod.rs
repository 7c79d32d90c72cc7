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
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
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

use hyper::upgrade::OnUpgrade;
use warp::Filter as _;

use crate::Api;
use crate::http::{ClientAddress, ConnectionSlot, Routes};
use upgrade::Asked;

/// `GET /ws`.
pub fn routes(api: Api, gateway: Gateway) -> Routes {
    warp::path!("ws")
        .and(warp::get())
        .and(warp::any().map(move || (api.clone(), gateway.clone())))
        .and(warp::header::headers_cloned())
        .and(warp::ext::optional::<ClientAddress>())
        .and(warp::ext::optional::<ConnectionSlot>())
        .and(warp::ext::optional::<OnUpgrade>())
        .then(|(api, gateway), headers, from, slot, upgrade| {
            upgrade::answer(api, gateway, Asked { headers, from, slot, upgrade })
        })
        .boxed()
}
