//! Lengths of time as people write them: `"250ms"`, `"10s"`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*span))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span = humantime::parse_duration(&text).map_err(|_| {
        de::Error::custom(format!("`{text}` is not a length of time; write one like \"250ms\" or \"10s\""))
    })?;
    if span.is_zero() {
        return Err(de::Error::custom("nothing happens in no time; write a length of time above zero"));
    }
    Ok(span)
}
