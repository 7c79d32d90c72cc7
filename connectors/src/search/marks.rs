//! How far each chat is indexed, so that a message that cannot be there yet is not looked for.
//!
//! Nearly every message is the next one of its chat. Looking for each in every segment before it is written would cost
//! more than writing it; comparing its sequence with the greatest of its chat costs nothing. What is not greater may be
//! there, and is looked for. A mark that is too great is harmless, one that is too small would let a message in twice: so
//! marks are read from the index where a chat is met first, and are never forgotten between writing and committing.

use rustc_hash::FxHashMap;
use tantivy::schema::IndexRecordOption;
use tantivy::{DocSet as _, Searcher, TERMINATED};

use super::schema::{Fields, SEQUENCE};

/// Marks that are kept, about 10 MB of them; then all are forgotten, and read again as they are needed.
const MOST_MARKS: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Marks(FxHashMap<Box<str>, u64>);

impl Marks {
    /// Notes a message, and says whether it may be in the index already.
    pub(super) fn may_be_there(
        &mut self,
        chat_id: &str,
        sequence: u64,
        (searcher, fields): (&Searcher, &Fields),
    ) -> tantivy::Result<bool> {
        if let Some(highest) = self.0.get_mut(chat_id) {
            let may = sequence <= *highest;
            *highest = sequence.max(*highest);
            return Ok(may);
        }
        let highest = highest_in(searcher, fields, chat_id)?;
        let may = highest.is_some_and(|highest| sequence <= highest);
        self.0.insert(chat_id.into(), highest.map_or(sequence, |highest| sequence.max(highest)));
        Ok(may)
    }

    /// Called when everything that was noted is in the index.
    pub(super) fn committed(&mut self) {
        if self.0.len() > MOST_MARKS {
            self.0.clear();
        }
    }
}

/// The greatest sequence of a chat, or of another with the same hash.
fn highest_in(searcher: &Searcher, fields: &Fields, chat_id: &str) -> tantivy::Result<Option<u64>> {
    let term = fields.chat_term(chat_id);
    let mut highest = None;
    for segment in searcher.segment_readers() {
        let inverted = segment.inverted_index(term.field())?;
        let Some(mut postings) = inverted.read_postings(&term, IndexRecordOption::Basic)? else { continue };
        let sequences = segment.fast_fields().u64(SEQUENCE)?;
        while postings.doc() != TERMINATED {
            highest = highest.max(sequences.first(postings.doc()));
            postings.advance();
        }
    }
    Ok(highest)
}
