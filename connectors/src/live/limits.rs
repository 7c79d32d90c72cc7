//! How long live state is believed and how much of it waits, the same for every implementation.

use std::time::Duration;

use super::{CONNECTION_TTL, LiveError, MEMBERS_TTL, PRESENCE_TTL, Result};

/// How long a filler may take between asking for permission and filling: many reads of the store, and short enough
/// that a filler that died is soon forgotten.
pub const FILL_TTL: Duration = Duration::from_secs(10);
/// One publish carries many deliveries, so this is a long time of not fetching rather than a burst.
const QUEUE_MESSAGES: usize = 4096;
/// What a listener that does not fetch may cost.
const QUEUE_BYTES: usize = 16 << 20;

/// Other than the defaults in tests only, which cannot wait for a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub connection_ttl: Duration,
    pub members_ttl: Duration,
    pub fill_ttl: Duration,
    pub presence_ttl: Duration,
    /// How many messages wait for one listener.
    pub queue_messages: usize,
    /// How many bytes of payload wait for one listener.
    pub queue_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection_ttl: CONNECTION_TTL,
            members_ttl: MEMBERS_TTL,
            fill_ttl: FILL_TTL,
            presence_ttl: PRESENCE_TTL,
            queue_messages: QUEUE_MESSAGES,
            queue_bytes: QUEUE_BYTES,
        }
    }
}

/// Redis counts time in milliseconds, and a window of none would never begin.
pub(crate) fn check_window(counter: &str, window: Duration) -> Result<()> {
    if window < Duration::from_millis(1) {
        return Err(LiveError::Invalid(format!(
            "counter '{counter}' needs a window of a millisecond or more"
        )));
    }
    Ok(())
}
