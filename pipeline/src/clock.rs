//! The one place that reads the wall clock. Anything about durations uses `tokio::time`, which tests can pause.

use std::time::{Duration, SystemTime};

#[allow(clippy::disallowed_methods, reason = "this is the place the lint points to")]
pub fn now() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since 1970.
pub fn unix_millis() -> u64 {
    let since = now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// ISO 8601 in UTC with milliseconds, as the protocol writes times.
pub fn iso8601(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// A time that was kept as milliseconds since 1970.
pub fn from_unix_millis(millis: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}
