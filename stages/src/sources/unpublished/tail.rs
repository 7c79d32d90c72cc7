//! The log from some time on, for itself alone.

use std::time::{Duration, SystemTime};

use courant_connectors::capability::RestrictedLog;
use courant_connectors::log::{Fetch, LogRecord, Offsets, ReadLog as _, Reader, Topic, TopicPartition};
use courant_connectors::model::topics::messages_persisted;
use courant_pipeline::StageError;

use crate::backends::log_error;

/// How far the clocks of store and log may be apart: the log is read from this long before what was stored.
const MARGIN: Duration = Duration::from_secs(600);
const FETCH: usize = 1000;

pub(super) struct Tail {
    log: RestrictedLog,
    topic: Topic,
    /// Nothing is read before something was stored.
    reader: Option<Box<dyn Reader>>,
    /// Where the reader is, by partition.
    read_to: Offsets,
    /// When the newest record was appended that this reader has read.
    newest: Option<SystemTime>,
    /// Since when everything was read.
    since: Option<SystemTime>,
    /// From when on to read, if the reader is past that.
    wanted: Option<SystemTime>,
}

impl Tail {
    pub(super) fn of(log: RestrictedLog) -> Self {
        let topic = Topic::from(messages_persisted::NAME);
        Self { log, topic, reader: None, read_to: Offsets::new(), newest: None, since: None, wanted: None }
    }

    /// Whether the event of a message that was stored then is among what was read, or what is to be read.
    pub(super) fn covers(&self, stored_at: SystemTime) -> bool {
        self.since.is_some_and(|since| since <= margin_before(stored_at))
    }

    /// Has everything read again that may hold the event of a message that was stored then; see [`open`](Self::open).
    pub(super) fn go_back_to(&mut self, stored_at: SystemTime) {
        let wanted = margin_before(stored_at);
        self.wanted = Some(self.wanted.map_or(wanted, |other| other.min(wanted)));
    }

    /// Opens the reader where it was told to go back to, and nothing is left out of what it had before it. To be called
    /// before anything else; a dropped call is made up for by the next.
    pub(super) async fn open(&mut self) -> Result<(), StageError> {
        let Some(wanted) = self.wanted else { return Ok(()) };
        let offsets = self.log.offsets_at(&self.topic, wanted).await;
        let mut offsets = offsets.map_err(|error| log_error("find where to read the log", error))?;
        for (partition, at) in &self.read_to {
            offsets.entry(partition.clone()).and_modify(|offset| *offset = (*offset).min(*at)).or_insert(*at);
        }
        if self.reader.is_none() || offsets != self.read_to {
            let reader = self.log.read_from(offsets.clone()).await;
            self.reader = Some(reader.map_err(|error| log_error("read the log", error))?);
            (self.read_to, self.newest) = (offsets, None);
        }
        self.since = Some(self.since.map_or(wanted, |since| since.min(wanted)));
        self.wanted = None;
        Ok(())
    }

    /// The next records. Cancel-safe, like [`Reader::fetch`].
    pub(super) async fn fetch(&mut self) -> Result<Vec<LogRecord>, StageError> {
        let Some(reader) = &mut self.reader else { return std::future::pending().await };
        let fetched = reader.fetch(FETCH).await.map_err(|error| log_error("read the log", error))?;
        let Fetch::Records { from, records } = fetched else { return Ok(Vec::new()) };
        if let Some(last) = records.last() {
            self.read_to.insert(from, last.offset + 1);
            self.newest = self.newest.max(Some(last.at));
        }
        Ok(records)
    }

    /// Whether records of then or later were read.
    pub(super) fn has_reached(&self, time: SystemTime) -> bool {
        self.newest >= Some(time)
    }

    /// Where the log ends now.
    pub(super) async fn end(&mut self) -> Result<Offsets, StageError> {
        let marks = self.log.watermarks(&self.topic).await;
        let marks = marks.map_err(|error| log_error("find the end of the log", error))?;
        let end = (0..).zip(marks).map(|(at, marks)| (TopicPartition::new(&self.topic, at), marks.high));
        Ok(end.collect())
    }

    pub(super) fn has_read(&self, end: &Offsets) -> bool {
        let read_to = |partition: &TopicPartition| self.read_to.get(partition).copied().unwrap_or(0);
        end.iter().all(|(partition, end)| read_to(partition) >= *end)
    }
}

fn margin_before(time: SystemTime) -> SystemTime {
    time.checked_sub(MARGIN).unwrap_or(SystemTime::UNIX_EPOCH)
}
