//! Where a scan of the store hands over to the log, without a gap or a double.
//!
//! The join is a place in the log, noted before the scan begins, with the time at which the log came there. A message is
//! given by the scan if it was created up to [`MARGIN`] after that time: everything newer was published behind the
//! place. Of what the log then gives, everything older than [`MARGIN`] before that time was in the table when the scan
//! began, however late its event came, and is left out. In between either may have it, so there, and only there, what
//! the scan gave is remembered: the messages of twice the margin, as runs of sequences by chat, however long the scan
//! takes and however large the table is.
//!
//! The place may be one in the past, which the log must still reach back to ([`joined_at`]). One that was well before
//! another place keeps everything from the scan that was published behind that ([`latest_before`]).

use std::path::Path;
use std::time::Duration;

use courant_connectors::capability::RestrictedLog;
use courant_connectors::files::json_lines::{LineAppender, LineReader, Start, Sync};
use courant_connectors::log::{LogRecord, Offsets, Topic, TopicPartition};
use courant_connectors::model::topics::messages_persisted;
use courant_connectors::model::{ChatId, Timestamp};
use courant_pipeline::{StageError, clock};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::journal::{Journal, Keys};
use crate::host::file_error;
use crate::log_range::{Held, RangeStart, start_of, times_at};
use crate::runs::Runs;

/// How far the clocks of store, log and processes may be apart, and how long storing a message may take.
pub(super) const MARGIN: Duration = Duration::from_secs(600);
const LONGEST_NOTE: usize = 8 << 20;

/// The place, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Join {
    offsets: Vec<(TopicPartition, u64)>,
    /// When the first and the last partition came to their place, in milliseconds since 1970.
    first: u64,
    last: u64,
}

impl Join {
    /// The one that was noted when the scan began; if there is none, one is.
    pub(super) async fn open(
        folder: &Path,
        log: &RestrictedLog,
        at: Option<&RangeStart>,
        published_before: Option<Timestamp>,
    ) -> Result<Self, StageError> {
        let path = folder.join("join.jsonl");
        let appender = LineAppender::open(&path).await.map_err(failed)?;
        let mut noted = LineReader::open(&path, Start::default(), LONGEST_NOTE).await.map_err(failed)?;
        while let Some(line) = noted.lines(1).await.map_err(failed)?.pop() {
            if let Ok(join) = serde_json::from_slice(&line.text) {
                return Ok(join);
            }
        }
        let join = Self::find(log, at).await?;
        if let Some(end) = published_before
            && join.last > latest_before(end).unix_millis()
        {
            let reason =
                format!("what was published before {end} can no longer be told; begin anew with a later end");
            return Err(StageError::fatal(DOING, reason));
        }
        let mut line = serde_json::to_vec(&join).map_err(|error| StageError::fatal(DOING, error))?;
        line.push(b'\n');
        appender.append(line, Sync::Data).await.map_err(failed)?;
        Ok(join)
    }

    async fn find(log: &RestrictedLog, at: Option<&RangeStart>) -> Result<Self, StageError> {
        let topics = [messages_persisted::NAME.into()];
        let held = Held::by(log, &topics).await?;
        let now = clock::unix_millis();
        let (offsets, (first, last)) = match at {
            None => (held.high, (now, now)),
            Some(RangeStart::Time(time)) => {
                let (offsets, at) = joined_at(log, &topics, *time, &held).await?;
                (offsets, (at.unix_millis().min(now), at.unix_millis()))
            }
            Some(at) => {
                let offsets = start_of(log, &topics, at, &held).await?;
                let times = times_at(log, &offsets, &held).await?;
                (offsets, times)
            }
        };
        Ok(Self { offsets: offsets.into_iter().collect(), first, last })
    }

    pub(super) fn offsets(&self) -> Offsets {
        self.offsets.iter().cloned().collect()
    }

    /// Whether the scan gives a message of this time.
    pub(super) fn scan_gives(&self, created_at: Timestamp) -> bool {
        created_at.unix_millis() < self.last.saturating_add(margin())
    }

    /// Whether both may have a message of this time.
    pub(super) fn both_may_have(&self, created_at: Timestamp) -> bool {
        self.scan_gives(created_at) && created_at.unix_millis() >= self.first.saturating_sub(margin())
    }
}

/// Where the log was at a time, and when it came there: later, where it no longer reaches back so far.
pub async fn joined_at(
    log: &RestrictedLog,
    topics: &[Topic],
    time: Timestamp,
    held: &Held,
) -> Result<(Offsets, Timestamp), StageError> {
    let offsets = start_of(log, topics, &RangeStart::Time(time), held).await?;
    let mut at = time.unix_millis();
    let mut trimmed = offsets.clone();
    trimmed.retain(|partition, offset| *offset > 0 && held.low.get(partition) == Some(offset));
    if !trimmed.is_empty() {
        at = at.max(times_at(log, &trimmed, held).await?.1);
    } else if offsets.values().all(|offset| *offset == 0) {
        // It may have been deleted and made anew: what was created before its first record was published into the one
        // before. Nothing later is taken of the scan: this log has it, and more of it comes while the scan is under way.
        at = at.max(times_at(log, &offsets, held).await?.0.saturating_sub(margin()));
    }
    Ok((offsets, Timestamp::from_unix_millis(at)))
}

/// When the log takes over at the latest for the scan to give nothing that was published behind a place of this time.
pub fn latest_before(end: Timestamp) -> Timestamp {
    Timestamp::from_unix_millis(end.unix_millis().saturating_sub(2 * margin()))
}

pub(super) fn margin() -> u64 {
    u64::try_from(MARGIN.as_millis()).unwrap_or(u64::MAX)
}

/// What the scan gave of the time in which both may have it.
pub(super) struct Seen {
    join: Join,
    by_chat: FxHashMap<ChatId, Runs>,
}

impl Seen {
    pub(super) async fn load(join: Join, journals: &[Journal]) -> Result<Self, StageError> {
        let mut seen = Self { join, by_chat: FxHashMap::default() };
        for journal in journals {
            let mut rows = journal.rows().await?;
            while let Some(row) = rows.next().await? {
                seen.add(&row.both);
            }
        }
        Ok(seen)
    }

    fn add(&mut self, keys: &Keys) {
        keys.add_to(|chat, add| add(self.by_chat.entry(chat.clone()).or_default()));
    }

    /// Whether the scan gave the message of this event. What is no event is not the scan's.
    pub(super) fn has(&self, record: &LogRecord) -> bool {
        let Some((chat, sequence, created_at)) = name_of(record) else { return false };
        if self.join.both_may_have(created_at) {
            return self.by_chat.get(&chat).is_some_and(|runs| runs.contains(sequence));
        }
        self.join.scan_gives(created_at)
    }
}

pub(super) fn name_of(record: &LogRecord) -> Option<(ChatId, u64, Timestamp)> {
    #[derive(Deserialize)]
    struct Named {
        payload: Message,
    }
    #[derive(Deserialize)]
    struct Message {
        chat_id: ChatId,
        sequence: u64,
        created_at: Timestamp,
    }
    let Named { payload } = serde_json::from_slice(&record.payload).ok()?;
    Some((payload.chat_id, payload.sequence, payload.created_at))
}

const DOING: &str = "note where the log takes over";

fn failed(error: courant_connectors::files::FileError) -> StageError {
    file_error(DOING, error)
}
