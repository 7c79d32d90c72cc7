//! How the `courant` command talks to a running process: a Unix socket beside its data.
//!
//! Whoever may open the socket may stop the process, so only its own user and root may: the socket has mode
//! 0600 and the peer's credentials are checked besides. HTTP with a token was rejected: a secret to keep, a
//! port to guard, and nothing gained on the same machine.
//!
//! One request line of JSON comes in ([`Request`]), lines of JSON go out ([`Response`]), then the connection
//! ends.

mod client;
mod protocol;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use client::{AdminClient, ClientError, Tapped, Working};
pub use protocol::{Request, Response};
pub use server::AdminServer;
pub use socket::SocketError;
