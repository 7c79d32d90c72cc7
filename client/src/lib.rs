//! A client of the edge protocol, as thin as it can be: REST calls and a socket with the protocol's own JSON.
//!
//! [`Client`] calls, [`Socket`] is connected. Both hand JSON on as it is, so that what is sent and answered can be read
//! beside the protocol's documentation; the benchmarks and end-to-end tests are written with them.

mod error;
mod rest;
mod socket;

pub use error::ClientError;
pub use rest::{Answer, Client, SignedIn};
pub use socket::{Heard, Socket, SocketSender};
