//! Time as sockets note it: tenths of a second since the gateway began, in four bytes.

use std::time::Duration;

use tokio::time::Instant;

pub(super) const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(super) struct Ticks(Instant);

impl Ticks {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> u32 {
        of(self.0.elapsed())
    }
}

/// At least one, and at most thirteen years.
pub(super) fn of(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX)
}
