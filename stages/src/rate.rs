//! Records per second as people write them in TOML: `100`, `0.5`.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use tokio::time::{Instant, sleep_until};

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

/// Keeps a source to a rate. What was read is paid for afterwards, so a read is as large as a tenth of a second's worth.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Option<PerSecond>,
    next_at: Option<Instant>,
}

impl Pace {
    /// A wait this long is not felt, and reads are still worth their call.
    const STEP: Duration = Duration::from_millis(100);

    pub(crate) fn new(rate: Option<PerSecond>) -> Self {
        Self { rate, next_at: None }
    }

    /// Waits until something may be read again; how many records, at most `max`. Cancel-safe.
    pub(crate) async fn wait(&self, max: usize) -> usize {
        let Some(rate) = self.rate else { return max };
        if let Some(next_at) = self.next_at {
            sleep_until(next_at).await;
        }
        max.min(rate.within(Self::STEP).get() as usize)
    }

    pub(crate) fn took(&mut self, records: usize) {
        let Some(rate) = self.rate else { return };
        let now = Instant::now();
        // A pause is not made up for.
        let since = self.next_at.unwrap_or(now).max(now.checked_sub(Self::STEP).unwrap_or(now));
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        self.next_at = Some(since + rate.interval().saturating_mul(records));
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

    #[tokio::test(start_paused = true)]
    async fn a_source_is_kept_to_its_rate() {
        let rate = serde_json::from_str("100").unwrap();
        let mut pace = Pace::new(Some(rate));
        let began = Instant::now();
        let mut read = 0;
        while read < 100 {
            let some = pace.wait(256).await;
            assert_eq!(some, 10);
            read += some;
            pace.took(some);
        }
        pace.wait(256).await;
        assert_eq!(began.elapsed().as_millis().div_ceil(10), 100, "a hundred in a second");
        assert_eq!(Pace::new(None).wait(256).await, 256);
    }
}
