//! Durations and sizes as people write them in TOML: `"250ms"`, `"1 MiB"`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time, written `"250ms"`, `"5s"`, `"1m 30s"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

impl Span {
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
}

/// Longer than anything waits, and short enough that adding it to a point in time never overflows.
const LONGEST_SPAN: Duration = Duration::from_secs(1000 * 86_400);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = humantime::parse_duration(text).map_err(|_| {
            format!("`{text}` is not a length of time; write one like \"250ms\" or \"1m 30s\"")
        })?;
        if span > LONGEST_SPAN {
            return Err(format!("`{text}` is longer than 1000 days; write a shorter time"));
        }
        Ok(Self(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", humantime::format_duration(self.0))
    }
}

/// A number of bytes, written `"512 B"`, `"64 KiB"`, `"1 MiB"`, `"2 GB"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);

/// Decimal and binary units, longest first so that `MiB` is not read as `B`.
const SIZE_UNITS: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a size; write one like \"64 KiB\" or \"1 MiB\"");
        let (digits, unit) = SIZE_UNITS
            .iter()
            .find_map(|(name, bytes)| text.strip_suffix(name).map(|digits| (digits, *bytes)))
            .unwrap_or((text, 1));
        let count: u64 = digits.trim().parse().map_err(|_| bad())?;
        count.checked_mul(unit).map(Self).ok_or_else(bad)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary =
            SIZE_UNITS[..4].iter().rev().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        match binary {
            Some((name, bytes)) => write!(f, "{} {name}", self.0 / bytes),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Text in, text out, `format` in the schema: the same for both units.
macro_rules! text_unit {
    ($type:ident, $format:literal, $describe:literal) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $format, "description": $describe })
            }
        }
    };
}

text_unit!(Span, "duration", "a length of time such as \"250ms\" or \"1m 30s\"");
text_unit!(Size, "size", "a number of bytes such as \"64 KiB\" or \"1 MiB\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_written() {
        for text in ["0 B", "513 B", "64 KiB", "1 MiB", "3 GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("2 MB".parse::<Size>().unwrap().0, 2_000_000);
        assert!("1 parsec".parse::<Size>().is_err());
        assert!("99999999999 TiB".parse::<Size>().is_err());
    }

    #[test]
    fn spans_say_how_to_write_them() {
        assert_eq!("1m 30s".parse::<Span>().unwrap(), Span::secs(90));
        let error = "soon".parse::<Span>().unwrap_err();
        assert!(error.contains("250ms"), "{error}");
    }

    #[test]
    fn a_span_can_be_added_to_a_point_in_time() {
        let longest = "1000days".parse::<Span>().unwrap();
        assert!(tokio::time::Instant::now().checked_add(longest.0).is_some());
        for text in ["1001days", "500000000000years", "18446744073709551615s"] {
            let error = text.parse::<Span>().unwrap_err();
            assert!(error.contains("1000 days"), "{error}");
        }
    }
}
