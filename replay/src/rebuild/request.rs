//! What to rebuild, and from what history.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_stages::sources::dynamo_scan;
use serde::{Deserialize, Serialize};

/// A rebuild as it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub pipeline: String,
    pub from: From,
    pub to: To,
    /// Records per second at the most.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Stand back while records of live pipelines take longer than this.
    #[serde(default)]
    pub yield_over: Option<Duration>,
    /// Stages whose records end there.
    #[serde(default)]
    pub suppress: Vec<String>,
    /// Stages whose effects somebody is to see again.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Parts of the table that are read side by side.
    pub segments: NonZeroU32,
    /// What is newer than this at the fence is not compared.
    pub grace: Duration,
    /// Of each kind of difference.
    pub examples: usize,
}

impl Request {
    pub fn new(pipeline: &str, from: From, to: To) -> Self {
        Self {
            pipeline: pipeline.to_owned(),
            from,
            to,
            rate: None,
            yield_over: None,
            suppress: Vec::new(),
            allow: Vec::new(),
            segments: dynamo_scan::SEGMENTS,
            grace: Duration::from_secs(10),
            examples: 10,
        }
    }
}

/// How fast it goes, where that is said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Records per second at the most.
    pub rate: Option<f64>,
    /// Stand back while records of live pipelines take longer than this.
    pub yield_over: Option<Duration>,
}

impl Request {
    pub(super) fn pace(&self) -> Pace {
        Pace { rate: self.rate, yield_over: self.yield_over }
    }
}

/// Where history begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum From {
    /// With what the log still holds.
    Oldest,
    /// The log, from these offsets on.
    Offset(At),
    /// The log, from this moment on.
    Time(Timestamp),
    /// With everything that the store holds.
    Scan,
}

/// Where a rebuild ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum To {
    /// Where the log ends now; the result waits for an approval.
    Now,
    /// It goes live if it is proved equal.
    Live,
    /// Before these offsets; the result waits for an approval.
    Offset(At),
    /// Before this moment; the result waits for an approval.
    Time(Timestamp),
}

/// Offsets of all partitions, or by partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    Each(u64),
    Named(BTreeMap<String, u64>),
}

const STARTS: &str =
    "`oldest`, `scan`, `offset:120`, `offset:TOPIC/0=120,TOPIC/1=80` or `time:2026-01-30T14:30:00Z`";
const ENDS: &str = "`now`, `live`, `offset:…` or `time:…`";

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("oldest", _) => Ok(Self::Oldest),
            ("scan", _) => Ok(Self::Scan),
            (_, Some(("offset", at))) => at.parse().map(Self::Offset),
            (_, Some(("time", time))) => moment(time).map(Self::Time),
            _ => Err(format!("`{text}` is no start; write {STARTS}")),
        }
    }
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("now", _) => Ok(Self::Now),
            ("live", _) => Ok(Self::Live),
            (_, Some(("offset", at))) => at.parse().map(Self::Offset),
            (_, Some(("time", time))) => moment(time).map(Self::Time),
            _ => Err(format!("`{text}` is no end; write {ENDS}")),
        }
    }
}

fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("`{text}` is no moment; write one like 2026-01-30T14:30:00Z"))
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no offset; write {STARTS}");
        if !text.contains('=') {
            return text.parse().map(Self::Each).map_err(|_| wrong());
        }
        let named = text.split(',').map(|part| {
            let (partition, offset) = part.split_once('=').ok_or_else(wrong)?;
            Ok((partition.to_owned(), offset.parse().map_err(|_| wrong())?))
        });
        named.collect::<Result<_, String>>().map(Self::Named)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(offset) => write!(f, "{offset}"),
            Self::Named(named) => {
                let parts: Vec<_> = named.iter().map(|(name, offset)| format!("{name}={offset}")).collect();
                f.write_str(&parts.join(","))
            }
        }
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oldest => f.write_str("oldest"),
            Self::Scan => f.write_str("scan"),
            Self::Offset(at) => write!(f, "offset:{at}"),
            Self::Time(time) => write!(f, "time:{time}"),
        }
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::Live => f.write_str("live"),
            Self::Offset(at) => write!(f, "offset:{at}"),
            Self::Time(time) => write!(f, "time:{time}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_and_ends_are_read_as_they_are_written() {
        for text in ["oldest", "scan", "offset:7", "offset:a/0=1,a/1=2", "time:2026-01-30T14:30:00.000Z"] {
            assert_eq!(text.parse::<From>().unwrap().to_string(), text);
        }
        for text in ["", "newest", "offset:", "offset:-1", "offset:a=", "time:noon", "scan:1"] {
            let error = text.parse::<From>().unwrap_err();
            assert!(error.contains("write"), "{error}");
            assert!(text.parse::<To>().is_err());
        }
        for text in ["now", "live", "offset:7", "time:2026-01-30T14:30:00.000Z"] {
            assert_eq!(text.parse::<To>().unwrap().to_string(), text);
        }
    }
}
