//! The lines that go over the admin socket.

use serde::{Deserialize, Serialize};

use crate::control::{LookUp, Redrive};

/// The longest request line: a redrive that names some tens of thousands of letters.
pub(super) const MAX_REQUEST_BYTES: usize = 1 << 20;

/// A request line: `"health"`, `{"tap":{"pipeline":"ingest","stage":"persist"}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Every pipeline's health.
    Health,
    /// The metrics in Prometheus' text format, as one string.
    Metrics,
    /// The running pipelines' entries and positions, and whether it runs no others.
    Running,
    /// Reads the file again and applies it.
    Reload,
    /// Records as they leave a stage: one line each, until the client hangs up or `limit` is reached.
    Tap {
        pipeline: String,
        stage: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
    },
    /// Runs dead letters again.
    Redrive(Redrive),
    /// Sets where a pipeline goes on in the log.
    Reset(serde_json::Value),
    /// Rebuilds what a pipeline makes from history, or looks at what was: lines of progress, and what came of it.
    Replay(serde_json::Value),
    /// Rows of a table that a pipeline keeps.
    LookUp(LookUp),
    /// Work on store and log, as the command describes it: lines of progress, and a report at the end.
    Job(serde_json::Value),
    /// Drains and ends the process; answered before it does.
    Stop,
}

/// An answer line: `{"ok":…}` or `{"error":"…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response<T> {
    Ok(T),
    Error(String),
}

impl<T> From<Result<T, String>> for Response<T> {
    fn from(result: Result<T, String>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(message) => Self::Error(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_as_documented() {
        let read = |line| serde_json::from_str::<Request>(line);
        assert_eq!(read(r#""health""#).unwrap(), Request::Health);
        let tap = Request::Tap { pipeline: "ingest".into(), stage: "persist".into(), limit: None };
        assert_eq!(read(r#"{"tap":{"pipeline":"ingest","stage":"persist"}}"#).unwrap(), tap);
        let all = Request::Redrive(Redrive { queue: "ingest".into(), ids: vec![] });
        assert_eq!(read(r#"{"redrive":{"queue":"ingest"}}"#).unwrap(), all);
        assert!(read(r#"{"tap":{"pipeline":"a","stage":"b","limt":1}}"#).is_err());
        assert!(read(r#"{"redrive":{"queue":"a","id":["1"]}}"#).is_err());
        assert_eq!(serde_json::to_string(&Response::Ok(1)).unwrap(), r#"{"ok":1}"#);
        assert_eq!(serde_json::to_string(&Response::<()>::Error("no".into())).unwrap(), r#"{"error":"no"}"#);
    }
}
