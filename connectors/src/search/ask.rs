//! Asking an index: the newest messages that fit, page by page.
//!
//! Newest first and not best first: in a chat people look for what was said lately, and a page can be continued without
//! counting what comes before it. Segments are asked from the newest to the oldest, and one that is older than what
//! was found already is passed over, so a search for a word that everybody uses ends early.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tantivy::columnar::Column;
use tantivy::query::Scorer;
use tantivy::{
    COLLECT_BLOCK_BUFFER_LEN, DocAddress, DocId, DocSet as _, Index, IndexReader, ReloadPolicy, Searcher,
    SegmentReader, TantivyDocument,
};
use tokio::time::Instant;

use super::SearchError;
use super::expand::{Expanded, NotExpanded, expand};
use super::highlight::highlight;
use super::message::Message;
use super::query::Query;
use super::schema::{CHAT, CREATED_AT, Fields, Numbers, SEQUENCE, VERSION};
use crate::model::{ChatId, Timestamp};

/// A search.
#[derive(Debug, Clone)]
pub struct Ask {
    pub query: Query,
    /// The chats to look in: all that the caller is in, or one of them.
    pub chats: Vec<ChatId>,
    /// Only messages that were written before this moment.
    pub before: Option<Timestamp>,
    /// Goes on after the page that ended with it.
    pub after: Option<Cursor>,
    pub limit: usize,
    /// How long it may take.
    pub patience: Duration,
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    pub message: Message<'static>,
    /// The part of the message that shows why, as HTML: escaped, and with `<mark>` around the words.
    pub snippet: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Newest first.
    pub hits: Vec<Hit>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// The place of a message among all that can be found. Every message has one, which lasts as long as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    created_at: u64,
    sequence: u64,
    chat: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.created_at, self.sequence, self.chat)
    }
}

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16));
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Ok(created_at)), Some(Ok(sequence)), Some(Ok(chat)), None) => {
                Ok(Self { created_at, sequence, chat })
            }
            _ => Err(NotACursor),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is not the `next` of a page")]
pub struct NotACursor;

/// An index that can be asked. Sees what was committed when it was last told to look.
pub struct SearchIndex {
    folder: PathBuf,
    fields: Fields,
    reader: IndexReader,
}

impl SearchIndex {
    pub(super) fn new(index: &Index, fields: Fields, folder: &Path) -> Result<Self, SearchError> {
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into();
        let reader = reader.map_err(|error| SearchError::of("open", folder, error))?;
        Ok(Self { folder: folder.to_owned(), fields, reader })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many messages it holds.
    pub fn len(&self) -> u64 {
        self.searcher().num_docs()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn searcher(&self) -> Searcher {
        self.reader.searcher()
    }

    pub(super) fn reload(&self) -> tantivy::Result<()> {
        self.reader.reload()
    }

    /// Makes a search. Blocks, for no longer than it may take plus one look into a segment.
    pub fn ask(&self, ask: &Ask) -> Result<Page, SearchError> {
        let failed = |error| SearchError::of("search", &self.folder, error);
        if ask.chats.is_empty() || ask.limit == 0 {
            return Ok(Page::default());
        }
        let searcher = self.searcher();
        let chats = ask.chats.iter().map(ChatId::as_str);
        let expanded = expand(&ask.query, chats, &searcher, &self.fields).map_err(|error| match error {
            NotExpanded::Refused(error) => error,
            NotExpanded::Failed(error) => failed(error),
        })?;
        let mut newest = Newest::new(ask);
        for segment in by_age(&searcher).map_err(failed)? {
            newest.look_into(&expanded, &segment).map_err(failed)?;
            if newest.gave_up {
                return Err(SearchError::TooSlow);
            }
        }
        self.page(ask, &searcher, newest.found()).map_err(failed)
    }

    fn page(&self, ask: &Ask, searcher: &Searcher, mut found: Vec<Found>) -> tantivy::Result<Page> {
        let has_more = found.len() > ask.limit;
        found.truncate(ask.limit);
        let next = found.last().filter(|_| has_more).map(|last| last.at);
        let chats: FxHashSet<&str> = ask.chats.iter().map(ChatId::as_str).collect();
        let mut hits = Vec::with_capacity(found.len());
        for Found { at, document } in found {
            let columns = searcher.segment_reader(document.segment_ord).fast_fields();
            let version = columns.u64(VERSION)?.first(document.doc_id).unwrap_or_default();
            let numbers = Numbers { sequence: at.sequence, created_at: at.created_at, version };
            let stored: TantivyDocument = searcher.doc(document)?;
            // Documents were found by a hash of their chat: another chat with the same one ends here.
            if let Some(message) = self.fields.message(&stored, numbers)
                && chats.contains(&*message.chat_id)
            {
                hits.push(Hit { snippet: highlight(&ask.query, &message.content), message });
            }
        }
        Ok(Page { hits, next })
    }
}

/// A segment, and what is needed of it to find the newest.
struct Segment<'s> {
    number: u32,
    reader: &'s SegmentReader,
    times: Column<u64>,
    sequences: Column<u64>,
    chats: Column<u64>,
}

/// The segments of an index, from the one with the newest message on.
fn by_age(searcher: &Searcher) -> tantivy::Result<Vec<Segment<'_>>> {
    let mut segments = Vec::new();
    for (number, reader) in (0..).zip(searcher.segment_readers()) {
        let columns = reader.fast_fields();
        let (times, sequences, chats) =
            (columns.u64(CREATED_AT)?, columns.u64(SEQUENCE)?, columns.u64(CHAT)?);
        segments.push(Segment { number, reader, times, sequences, chats });
    }
    segments.sort_by_key(|segment| Reverse(segment.times.max_value()));
    Ok(segments)
}

/// A document that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    at: Cursor,
    document: DocAddress,
}

/// Keeps the newest documents, one more than are wanted, to know whether there are more.
struct Newest {
    /// The oldest of them on top.
    kept: BinaryHeap<Reverse<Found>>,
    keep: usize,
    /// Only what is older than both.
    before: u64,
    after: Option<Cursor>,
    until: Instant,
    gave_up: bool,
}

/// Blocks of documents between two looks at the clock.
const BLOCKS_AT_A_TIME: usize = 64;

impl Newest {
    fn new(ask: &Ask) -> Self {
        Self {
            kept: BinaryHeap::with_capacity(ask.limit + 2),
            keep: ask.limit + 1,
            before: ask.before.map_or(u64::MAX, Timestamp::unix_millis),
            after: ask.after,
            until: Instant::now() + ask.patience,
            gave_up: false,
        }
    }

    fn look_into(&mut self, expanded: &Expanded, segment: &Segment<'_>) -> tantivy::Result<()> {
        let is_older = |oldest: &Reverse<Found>| segment.times.max_value() < oldest.0.at.created_at;
        if self.kept.len() == self.keep && self.kept.peek().is_some_and(is_older) {
            return Ok(());
        }
        let mut documents = expanded.wanted.scorer(segment.reader, 1.0)?;
        let unwanted = expanded.unwanted.iter().map(|weight| weight.scorer(segment.reader, 1.0));
        let mut unwanted = unwanted.collect::<tantivy::Result<Vec<_>>>()?;
        let mut block = [0; COLLECT_BLOCK_BUFFER_LEN];
        for number in 1.. {
            let filled = documents.fill_buffer(&mut block);
            for &document in &block[..filled] {
                let is_unwanted = unwanted.iter_mut().any(|unwanted| holds(&mut **unwanted, document));
                if !is_unwanted && !segment.reader.is_deleted(document) {
                    self.offer(segment, document);
                }
            }
            if filled < block.len() {
                break;
            }
            if number % BLOCKS_AT_A_TIME == 0 && Instant::now() >= self.until {
                break;
            }
        }
        self.gave_up = Instant::now() >= self.until;
        Ok(())
    }

    fn offer(&mut self, segment: &Segment<'_>, doc_id: DocId) {
        let value = |column: &Column<u64>| column.first(doc_id).unwrap_or_default();
        let created_at = value(&segment.times);
        let is_full = self.kept.len() == self.keep;
        let oldest = self.kept.peek().filter(|_| is_full).map(|oldest| oldest.0.at);
        // The time alone decides nearly always, and spares two look-ups.
        if created_at >= self.before || oldest.is_some_and(|oldest| created_at < oldest.created_at) {
            return;
        }
        let at = Cursor { created_at, sequence: value(&segment.sequences), chat: value(&segment.chats) };
        if self.after.is_some_and(|after| at >= after) || oldest.is_some_and(|oldest| at <= oldest) {
            return;
        }
        if is_full {
            self.kept.pop();
        }
        self.kept.push(Reverse(Found { at, document: DocAddress::new(segment.number, doc_id) }));
    }

    /// Newest first.
    fn found(self) -> Vec<Found> {
        self.kept.into_sorted_vec().into_iter().map(|found| found.0).collect()
    }
}

/// Whether a list has a document. Documents are asked for in order.
fn holds(list: &mut dyn Scorer, document: DocId) -> bool {
    let at = if list.doc() < document { list.seek(document) } else { list.doc() };
    at == document
}

#[cfg(test)]
mod tests;
