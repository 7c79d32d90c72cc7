//! Looking at records as they leave a stage, without slowing it down.
//!
//! A stage looks at one atomic flag per batch; only while somebody watches are records rendered, and when the
//! watcher is slow they are left out of the view, never held back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::record::Record;

/// Records a watcher may be behind by.
const TAP_QUEUE: usize = 256;

/// A record as a tap shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TapRecord {
    pub pipeline: String,
    pub stage: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub headers: Vec<(String, String)>,
    /// The payload if it is JSON, else its text.
    pub payload: serde_json::Value,
}

/// Where watchers of one stage hang on.
#[derive(Default)]
pub(crate) struct Tap {
    watched: AtomicBool,
    watchers: Mutex<Vec<mpsc::Sender<TapRecord>>>,
}

impl Tap {
    pub(crate) fn watch(&self) -> mpsc::Receiver<TapRecord> {
        let (to, from) = mpsc::channel(TAP_QUEUE); // full: the record is left out of this view
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| !watcher.is_closed());
        watchers.push(to);
        self.watched.store(true, Ordering::Release);
        from
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Shows records to whoever has room.
    pub(crate) fn show<'a>(&self, pipeline: &str, stage: &str, records: impl Iterator<Item = &'a Record>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| !watcher.is_closed());
        self.watched.store(!watchers.is_empty(), Ordering::Release);
        for record in records {
            if watchers.iter().all(|watcher| watcher.capacity() == 0) {
                return;
            }
            let shown = render(pipeline, stage, record);
            for watcher in watchers.iter() {
                let _ = watcher.try_send(shown.clone());
            }
        }
    }
}

fn render(pipeline: &str, stage: &str, record: &Record) -> TapRecord {
    let text = record.payload.to_json();
    TapRecord {
        pipeline: pipeline.to_owned(),
        stage: stage.to_owned(),
        key: record.key.as_ref().map(|key| key.as_str().to_owned()),
        headers: record.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        payload: serde_json::from_slice(&text)
            .unwrap_or_else(|_| serde_json::Value::String(String::from_utf8_lossy(&text).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;

    #[test]
    fn a_slow_watcher_misses_records_and_a_gone_one_is_forgotten() {
        let tap = Tap::default();
        let mut seen = tap.watch();
        let record = Record::new(Payload::from_static("not json"));
        tap.show("p", "s", std::iter::repeat_n(&record, TAP_QUEUE + 10));
        for _ in 0..TAP_QUEUE {
            assert_eq!(seen.try_recv().unwrap().payload, "not json");
        }
        assert!(seen.try_recv().is_err());
        drop(seen);
        tap.show("p", "s", std::iter::once(&record));
        assert!(!tap.is_watched());
    }
}
