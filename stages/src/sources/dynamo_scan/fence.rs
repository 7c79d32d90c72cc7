//! The table as it was when the log came to a place: for comparing what was made from history up to there.
//!
//! A table moves on while it is read. What was created more than [`MARGIN`] before the place's time was published before
//! it; of everything younger the log itself says whether it was. So what has to be remembered is what the log tells of
//! twice the margin. A message that was never published is part of the table, once it is older than the margin.

use std::collections::BTreeMap;

use courant_connectors::capability::RestrictedLog;
use courant_connectors::model::tables::messages::StoredMessage;
use courant_connectors::model::topics::messages_persisted;
use courant_connectors::model::{ChatId, Timestamp};
use courant_pipeline::StageError;
use courant_pipeline::stage::Positions;
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;

use super::join::{margin, name_of};
use crate::log_range::{Held, LogRange, RangeStart, offsets_of, start_of};
use crate::runs::Runs;

/// Records of the log that are looked at together.
const AT_ONCE: usize = 4096;

/// A place in the log and its time.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// Before these offsets, by partition. Nothing of partitions that are not named.
    pub offsets: BTreeMap<String, u64>,
    /// When the log was there.
    pub at: Timestamp,
}

pub(super) struct Fence {
    /// What is older was published before the place.
    sure_before: u64,
    published: FxHashMap<ChatId, Runs>,
}

impl Fence {
    pub(super) async fn open(log: &RestrictedLog, until: &Until) -> Result<Self, StageError> {
        let topics = [messages_persisted::NAME.into()];
        let held = Held::by(log, &topics).await?;
        let sure_before = until.at.unix_millis().saturating_sub(margin());
        let from = RangeStart::Time(Timestamp::from_unix_millis(sure_before.saturating_sub(margin())));
        let start = start_of(log, &topics, &from, &held).await?;
        let end = offsets_of(&until.offsets, &held.low)?;
        let mut range = LogRange::open(log, start, Some(end), &Positions::new()).await?;
        let mut published: FxHashMap<ChatId, Runs> = FxHashMap::default();
        while let Some((_, records)) = range.next(AT_ONCE).await? {
            for (chat, sequence, _) in records.iter().filter_map(name_of) {
                published.entry(chat).or_default().insert(sequence);
            }
        }
        Ok(Self { sure_before, published })
    }

    /// Whether the message was there.
    pub(super) fn has(&self, message: &StoredMessage) -> bool {
        message.created_at().unix_millis() < self.sure_before
            || self.published.get(message.chat_id()).is_some_and(|runs| runs.contains(message.sequence()))
    }
}
