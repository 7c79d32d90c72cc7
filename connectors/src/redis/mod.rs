//! Live state on Redis 6 or later, one server or a cluster, with the keys of ADR-003 section 3.
//!
//! **One slot per command.** Keys of different families lie in different slots of a cluster, so no command, script or
//! transaction here touches two of them, with one exception: on a single server a connection is registered and
//! unregistered in one MULTI. On a cluster its metadata is written first and removed last; readers come through the
//! sets and drop what has no metadata, so they see the whole connection or none of it. Hash tags would put a user's
//! keys into one slot, and would change key names that other tools read.
//!
//! **One round trip for many.** What is asked for many users or chats goes out as one pipeline, or on a cluster as
//! one per slot at the same time. Scripts are sent as text (EVAL): they are short, and there is nothing to load again
//! after a restart or a failover.
//!
//! **Never waits for long.** Every round trip has a time-out. A lost connection is made again with back-off; until
//! then calls fail as unavailable, and they work again by themselves. They do, too, once a server that refused them, or
//! that had become a replica, is put right or replaced.

mod channels;
mod config;
mod connections;
mod counters;
mod error;
mod keys;
mod link;
mod listener;
mod members;
mod presence;
mod single;

use std::sync::Arc;
use std::time::Duration;

pub use config::{ChannelMode, RedisConfig};

use crate::live::{Limits, Result};
use link::Link;
use listener::Dial;

/// A connection to Redis. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    link: Link,
    dial: Dial,
    limits: Limits,
}

impl Redis {
    /// Connects; fails if Redis is not there now.
    pub async fn open(config: &RedisConfig) -> Result<Self> {
        Self::open_with_limits(config, Limits::default()).await
    }

    pub async fn open_with_limits(config: &RedisConfig, limits: Limits) -> Result<Self> {
        let servers = config.servers().await?;
        let dial = Dial::probe(servers.clone(), config).await?;
        let link = Link::open(servers, config).await?;
        Ok(Self(Arc::new(Inner { link, dial, limits })))
    }
}

/// As Redis takes a length of time.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
