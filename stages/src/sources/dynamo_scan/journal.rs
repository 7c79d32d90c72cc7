//! What a segment has handed out, page by page, on disk before anybody sees it.
//!
//! Stages keep how far they came by a record's place in its segment, so a record that is read again must have the same
//! place. The table does not stand still, and a page that is read again may hold more than before: places are therefore
//! noted with the keys they were given to, and pages that were under way are read again by key. What has come in between
//! is not theirs; the log has it.

use std::path::{Path, PathBuf};

use courant_connectors::files::json_lines::{LineAppender, LineReader, Start, Sync};
use courant_connectors::model::ChatId;
use courant_pipeline::StageError;
use serde::{Deserialize, Serialize};

use crate::host::file_error;
use crate::runs::Runs;

/// More than four pages of the store can need: a megabyte of items each, of which only the keys are noted, and six bytes
/// for one at the worst.
const LONGEST_ROW: usize = 32 << 20;

/// A message by its key.
pub(super) type Name = (ChatId, u64);

/// Keys in the order of a page, those of a chat together: `[["chat_1",[[1,40],[42,42]]]]`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Keys(Vec<(ChatId, Vec<(u64, u64)>)>);

impl Keys {
    pub(super) fn push(&mut self, chat: &str, sequence: u64) {
        if let Some((last, runs)) = self.0.last_mut()
            && last.as_str() == chat
        {
            match runs.last_mut() {
                Some((_, end)) if *end + 1 == sequence => *end = sequence,
                _ => runs.push((sequence, sequence)),
            }
        } else {
            self.0.push((chat.into(), vec![(sequence, sequence)]));
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.0.iter().flat_map(|(_, runs)| runs).map(|(first, last)| last - first + 1).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Name> {
        let names = |(chat, runs): &(ChatId, Vec<(u64, u64)>)| {
            let chat = chat.clone();
            let sequences = runs.clone().into_iter().flat_map(|(first, last)| first..=last);
            sequences.map(move |sequence| (chat.clone(), sequence))
        };
        self.0.iter().flat_map(names)
    }

    pub(super) fn add_to(&self, mut add: impl FnMut(&ChatId, &mut dyn FnMut(&mut Runs))) {
        for (chat, runs) in &self.0 {
            add(chat, &mut |seen| {
                for sequence in runs.iter().flat_map(|(first, last)| *first..=*last) {
                    seen.insert(sequence);
                }
            });
        }
    }
}

/// Some pages.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Row {
    /// Records of the segment before it.
    pub(super) first: u64,
    pub(super) keys: Keys,
    /// Those of the keys that the log may have, too.
    pub(super) both: Keys,
    /// Where the table is read on; none at the end of the segment.
    pub(super) after: Option<Name>,
}

/// The journal of one segment.
pub(super) struct Journal {
    path: PathBuf,
    appender: LineAppender,
}

impl Journal {
    pub(super) async fn open(folder: &Path, segment: u32) -> Result<Self, StageError> {
        let path = folder.join(format!("segment-{segment}.jsonl"));
        let appender = LineAppender::open(&path).await.map_err(failed)?;
        Ok(Self { path, appender })
    }

    /// Returns once it is on disk.
    pub(super) async fn append(&self, row: &Row) -> Result<(), StageError> {
        let mut line = serde_json::to_vec(row).map_err(|error| StageError::fatal(DOING, error))?;
        line.push(b'\n');
        self.appender.append(line, Sync::Data).await.map_err(failed)
    }

    pub(super) async fn rows(&self) -> Result<Rows, StageError> {
        let reader = LineReader::open(&self.path, Start::default(), LONGEST_ROW).await.map_err(failed)?;
        Ok(Rows(reader))
    }
}

/// Pages as they were noted, one after the other.
pub(super) struct Rows(LineReader);

impl Rows {
    pub(super) async fn next(&mut self) -> Result<Option<Row>, StageError> {
        loop {
            let Some(line) = self.0.lines(1).await.map_err(failed)?.pop() else { return Ok(None) };
            // A line that a crash cut off is of a page that nobody was given.
            if let Ok(row) = serde_json::from_slice(&line.text) {
                return Ok(Some(row));
            }
        }
    }
}

const DOING: &str = "note what was scanned";

fn failed(error: courant_connectors::files::FileError) -> StageError {
    file_error(DOING, error)
}
