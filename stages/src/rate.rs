//! Records per second as people write them in TOML: `100`, `0.5`.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// A number of records per second, above zero; fractions are fine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerSecond(f64);

/// The slowest rate: one record in about eleven days. Slower is a mistake, and would overflow the clock.
const SLOWEST: f64 = 1e-6;
/// The fastest: beyond a record per nanosecond a rate has no meaning to the clock.
const FASTEST: f64 = 1e9;

impl PerSecond {
    /// The time from one record to the next.
    pub fn interval(self) -> Duration {
        Duration::from_secs_f64(1.0 / self.0)
    }

    /// Whole records within a time, at least one.
    pub fn within(self, time: Duration) -> NonZeroU32 {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is above zero"
        )]
        let records = (self.0 * time.as_secs_f64()) as u32;
        NonZeroU32::new(records).unwrap_or(NonZeroU32::MIN)
    }
}

impl<'de> Deserialize<'de> for PerSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = f64::deserialize(deserializer)?;
        if (SLOWEST..=FASTEST).contains(&rate) {
            return Ok(Self(rate));
        }
        Err(de::Error::custom(format!(
            "`{rate}` is not a rate; write records per second, such as 100 or 0.5"
        )))
    }
}

impl JsonSchema for PerSecond {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PerSecond".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "number",
            "minimum": SLOWEST,
            "maximum": FASTEST,
            "description": "records per second such as 100 or 0.5",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_above_zero() {
        let rate = |text| serde_json::from_str::<PerSecond>(text);
        assert_eq!(rate("4").unwrap().interval(), Duration::from_millis(250));
        assert_eq!(rate("0.5").unwrap().interval(), Duration::from_secs(2));
        for text in ["0", "-1", "1e-300", "1e300"] {
            assert!(rate(text).unwrap_err().to_string().contains("records per second"), "{text}");
        }
    }
}
