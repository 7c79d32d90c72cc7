//! What time it is for the engine. The wall clock, or whatever a test says.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "this crate's one place that reads the wall clock")]
    pub fn wall() -> Self {
        Self(Arc::new(SystemTime::now))
    }

    /// A clock for tests of what takes hours.
    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn since_1970(&self) -> Duration {
        (self.0)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
    }

    pub fn unix_millis(&self) -> u64 {
        u64::try_from(self.since_1970().as_millis()).unwrap_or(u64::MAX)
    }
}

pub(super) fn from_unix_millis(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}
