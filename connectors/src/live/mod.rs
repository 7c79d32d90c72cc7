//! Live state: who is connected where, what is cached, and messages between processes. All of it can be lost at any
//! moment and costs a reconnect or a cache miss, never data.
//!
//! One trait per key family, so that a handle can be given out that knows one family and no other. Redis is behind
//! them, or the process's own memory; `tests/` runs one conformance suite on both.

mod error;
mod limits;
mod queue;
mod state;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use error::LiveError;
pub(crate) use limits::check_window;
pub use limits::{FILL_TTL, Limits};
pub(crate) use queue::ListenerQueue;
pub use state::{Channel, Connection, Count, FillToken, Heard, Presence, Status};

use crate::model::{ChatId, ConnectionId, GatewayId, UserId};

pub type Result<T> = std::result::Result<T, LiveError>;

/// How long a connection is known without a heartbeat: twice the interval of heartbeats.
pub const CONNECTION_TTL: Duration = Duration::from_secs(60);
/// How long members are believed without looking at the store again.
pub const MEMBERS_TTL: Duration = Duration::from_secs(300);
pub const PRESENCE_TTL: Duration = Duration::from_secs(30);

/// Which connections exist, by user and by gateway. A connection whose time is over is never returned.
#[async_trait]
pub trait Connections: Send + Sync {
    /// Makes the connection known, all at once: nobody sees half of it.
    async fn register(&self, connection: &Connection) -> Result<()>;

    /// Keeps connections known for another [`CONNECTION_TTL`]. Returns those that are not known any more, for the
    /// caller to register again.
    async fn heartbeat(&self, connections: &[Connection]) -> Result<Vec<ConnectionId>>;

    async fn unregister(&self, connections: &[Connection]) -> Result<()>;

    /// One list per user, in the order asked.
    async fn connections_of(&self, users: &[UserId]) -> Result<Vec<Vec<Connection>>>;

    async fn connections_on(&self, gateway: &GatewayId) -> Result<Vec<ConnectionId>>;
}

/// Who is in a chat, as far as the store was asked lately.
///
/// A fill must not bring back members that were removed while the store was being read. So a filler begins first,
/// then reads the store, then fills; an invalidation in between voids the fill.
#[async_trait]
pub trait MembershipCache: Send + Sync {
    /// One answer per chat, in the order asked; `None` where the cache does not know.
    async fn members(&self, chats: &[ChatId]) -> Result<Vec<Option<Vec<UserId>>>>;

    async fn begin_fill(&self, chat: &ChatId) -> Result<FillToken>;

    /// Whether members are cached now: these, or those of another filler who was faster. Chats without members are
    /// cached too.
    async fn fill(&self, token: FillToken, members: &[UserId]) -> Result<bool>;

    async fn invalidate(&self, chats: &[ChatId]) -> Result<()>;
}

/// Whether users are there.
#[async_trait]
pub trait PresenceBoard: Send + Sync {
    /// Known for [`PRESENCE_TTL`] unless set again.
    async fn set_presence(&self, user: &UserId, presence: Presence) -> Result<()>;

    async fn presence_of(&self, users: &[UserId]) -> Result<Vec<Option<Presence>>>;
}

/// Counting in windows of time, for limits that hold across processes.
#[async_trait]
pub trait Counters: Send + Sync {
    /// Adds to a counter and returns what it is then. The window begins with the first count and ends, counter and
    /// all, after `window`.
    async fn count(&self, counter: &str, by: u32, window: Duration) -> Result<Count>;
}

/// Sending to whoever listens at this moment.
#[async_trait]
pub trait Publish: Send + Sync {
    /// Sends each message; returns how many heard it, in the order given. No promise is kept for those who do not
    /// listen.
    async fn publish(&self, messages: &[(Channel, Bytes)]) -> Result<Vec<u64>>;
}

#[async_trait]
pub trait Subscribe: Send + Sync {
    /// Listens from now on; `Ok` means the subscription stands.
    async fn subscribe(&self, channels: &[Channel]) -> Result<Box<dyn Listener>>;
}

/// Hears a set of channels until it is dropped. What it does not fetch in time is dropped and reported.
#[async_trait]
pub trait Listener: Send {
    /// Waits for the next message. Cancel-safe: a dropped call loses nothing. After a lost connection it goes on by
    /// itself and says so with [`Heard::Gap`].
    async fn next(&mut self) -> Result<Heard>;
}

/// Everything live state can do.
pub trait Live: Connections + MembershipCache + PresenceBoard + Counters + Publish + Subscribe {}
impl<T: Connections + MembershipCache + PresenceBoard + Counters + Publish + Subscribe + ?Sized> Live for T {}
