//! The `[edge.socket]` table; its doc comments are the user's documentation.

use std::num::NonZeroU32;
use std::time::Duration;

use courant_pipeline::units::{Size, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one socket may cost, and how long it may be silent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SocketConfig {
    /// How often clients say that they are there, in whole seconds; after two intervals without a word a socket is closed
    /// (4408).
    pub heartbeat: Heartbeat,
    /// Sockets of this process; further ones are refused with `UNAVAILABLE`. Keep it below `edge.max_connections`, which
    /// counts them too, so that requests and health checks are still answered when all sockets are taken.
    pub max_sockets: NonZeroU32,
    /// Sockets of one device on this process; one more closes the oldest of them (4409). Not while `edge.limits` is off.
    pub max_per_device: NonZeroU32,
    /// Sockets of one user on this process, likewise.
    pub max_per_user: NonZeroU32,
    /// The largest frame a client may send; a larger one closes its socket (4413). The default has room for any
    /// allowed content, however it is escaped.
    pub max_frame: Size,
    /// Frames that may wait for a client. One more closes its socket (4504), and it catches up after connecting again.
    pub outbox_frames: NonZeroU32,
    /// Bytes that may wait for a client, likewise.
    pub outbox_bytes: Size,
    /// Messages of one socket that may wait for their answer; beyond it the socket is not read.
    pub max_in_flight: NonZeroU32,
    /// A client that takes nothing for this long, although something waits for it, is cut off.
    pub write_timeout: Span,
    /// How long sockets may take to end when the process stops. Messages under way are answered before.
    pub drain_timeout: Span,
    /// Clients are told to reconnect after a time between one second and this, so that they do not all come at once.
    pub reconnect_within: Span,
}

const fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not zero")
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            // Live state forgets a connection after twice this.
            heartbeat: Heartbeat(Span::secs(30)),
            max_sockets: number(9000),
            // A few tabs of a browser, and those that are not yet known to be gone.
            max_per_device: number(8),
            max_per_user: number(32),
            // 4096 bytes of content, six for each if all are escaped, and the rest of the frame.
            max_frame: Size(32 << 10),
            outbox_frames: number(1024),
            outbox_bytes: Size(1 << 20),
            max_in_flight: number(512),
            write_timeout: Span::secs(10),
            drain_timeout: Span::secs(5),
            reconnect_within: Span::secs(10),
        }
    }
}

/// Whole seconds, one at least: clients are told a number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "Span", into = "Span")]
#[schemars(inline)]
pub struct Heartbeat(Span);

impl Heartbeat {
    pub(super) fn interval(self) -> Duration {
        self.0.0
    }
}

impl TryFrom<Span> for Heartbeat {
    type Error = String;

    fn try_from(span: Span) -> Result<Self, String> {
        if span.0.is_zero() || span.0.subsec_nanos() > 0 {
            return Err(format!("`{span}` is not a heartbeat; write whole seconds, at least one"));
        }
        Ok(Self(span))
    }
}

impl From<Heartbeat> for Span {
    fn from(heartbeat: Heartbeat) -> Self {
        heartbeat.0
    }
}
