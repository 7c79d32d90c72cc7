//! Moments as tables and events write them: ISO 8601 in UTC with milliseconds, `2026-01-30T14:30:00.000Z`.
//!
//! Text of one length and one zone, so that the order of the text is the order of time. Nothing here reads a clock:
//! whoever writes an item says when that is, and tests do too.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use smol_str::ToSmolStr as _;

use crate::store::Value;

/// Milliseconds since 1970, so that what is written reads back as the same moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// The last moment with a year of four digits: 9999-12-31T23:59:59.999Z.
const LAST_MILLIS: u64 = 253_402_300_799_999;

impl Timestamp {
    pub const fn from_unix_millis(millis: u64) -> Self {
        Self(if millis > LAST_MILLIS { LAST_MILLIS } else { millis })
    }

    pub const fn unix_millis(self) -> u64 {
        self.0
    }

    /// What a table's time-to-live attribute holds. Rounded up, so that nothing ends before its time.
    pub const fn unix_seconds(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Stops at the end of the year 9999.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self::from_unix_millis(self.0.saturating_add(millis))
    }
}

impl From<SystemTime> for Timestamp {
    /// Moments before 1970 count as 1970.
    fn from(time: SystemTime) -> Self {
        Self(0).plus(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> Self {
        SystemTime::UNIX_EPOCH + Duration::from_millis(timestamp.0)
    }
}

impl From<Timestamp> for Value {
    fn from(timestamp: Timestamp) -> Self {
        Self::Text(timestamp.to_smolstr())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(SystemTime::from(*self)).fmt(f)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time; write one like 2026-01-30T14:30:00.000Z")]
pub struct NotATime(String);

impl FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        humantime::parse_rfc3339(text).map(Self::from).map_err(|_| NotATime(text.to_owned()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "ISO 8601 in UTC with milliseconds",
            "examples": ["2026-01-30T14:30:00.000Z"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_with_milliseconds_and_read_back() {
        let time = Timestamp::from_unix_millis(1_769_783_400_007);
        assert_eq!(time.to_string(), "2026-01-30T14:30:00.007Z");
        assert_eq!("2026-01-30T14:30:00.007Z".parse(), Ok(time));
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2026-01-30T14:30:00.007Z\"");
        let error = "yesterday".parse::<Timestamp>().unwrap_err().to_string();
        assert!(error.contains("yesterday") && error.contains("2026-01-30T14:30:00.000Z"), "{error}");
    }

    #[test]
    fn what_ends_never_ends_early_and_far_moments_stay_writable() {
        assert_eq!(Timestamp::from_unix_millis(1001).unix_seconds(), 2);
        assert_eq!(Timestamp::from_unix_millis(1000).unix_seconds(), 1);
        let last = Timestamp::from_unix_millis(1).plus(Duration::MAX);
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999Z");
        let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(Timestamp::from(before_1970), Timestamp::from_unix_millis(0));
    }
}
