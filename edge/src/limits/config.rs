//! The `[edge.limits]` table; its doc comments are the user's documentation.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use courant_pipeline::units::Span;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Limit;

/// How often somebody may do something, counted across all processes. A window begins with the first thing that is counted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Off for benchmarks and tests; sizes stay bounded.
    pub enabled: bool,
    /// Messages that a user sends.
    pub messages: Rate,
    /// Attempts to sign in, from an address and for a phone number.
    pub logins: Rate,
    /// Everything else that a signed-in user asks for.
    pub requests: Rate,
    /// What is asked for without signing in, and new sockets, from an address.
    pub anonymous: Rate,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let per = |count: u32, secs| Rate {
            count: NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN),
            per: Duration::from_secs(secs),
        };
        Self {
            enabled: true,
            messages: per(60, 60),
            logins: per(5, 15 * 60),
            // ten a second: a client that opens, lists its chats and catches up on each
            requests: per(600, 60),
            // many people can be behind one address
            anonymous: per(120, 60),
        }
    }
}

impl LimitsConfig {
    pub(super) fn of(&self, limit: Limit) -> Rate {
        match limit {
            Limit::Messages => self.messages,
            Limit::Logins => self.logins,
            Limit::Requests => self.requests,
            Limit::Anonymous => self.anonymous,
        }
    }
}

/// So many within a time, written `"60/min"`, `"5/15min"`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub count: NonZeroU32,
    pub per: Duration,
}

/// Longer windows are what accounts and not rates are for.
const LONGEST: Duration = Duration::from_secs(86_400);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a rate; write one like \"60/min\" or \"5/15min\"");
        let (count, per) = text.split_once('/').ok_or_else(bad)?;
        let count = count.trim().parse().map_err(|_| bad())?;
        let per = per.trim();
        // "60/min" means one minute
        let one = if per.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "1" };
        let Span(per) = format!("{one}{per}").parse().map_err(|_: String| bad())?;
        if per < Duration::from_millis(1) || per > LONGEST {
            return Err(format!("`{text}` counts over less than a millisecond or more than a day"));
        }
        Ok(Self { count, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, Span(self.per))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Rate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "so many within a time, such as \"60/min\" or \"5/15min\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_people_say_them() {
        let rate = |text: &str| text.parse::<Rate>().map(|rate| (rate.count.get(), rate.per.as_millis()));
        assert_eq!(rate("60/min"), Ok((60, 60_000)));
        assert_eq!(rate("5/15min"), Ok((5, 900_000)));
        assert_eq!(rate("1 / s"), Ok((1, 1000)));
        for bad in ["", "60", "60/", "0/min", "-1/min", "x/min", "60/soon", "1/0s", "1/2days", "1/0.1ms"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        for rate in [LimitsConfig::default().messages, LimitsConfig::default().logins] {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
