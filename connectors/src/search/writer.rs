//! The one writer of an index.
//!
//! A call takes a batch, writes what is new in it and commits once. It returns when the commit is on disk and readers see
//! it. What went wrong changed nothing: the writer is thrown away with what it had not committed, and the next call begins
//! with what is on disk. A commit costs some twenty syncs, so batches should be large; a batch that brings nothing new
//! costs none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tantivy::indexer::{IndexWriterOptions, LogMergePolicy, UserOperation};
use tantivy::schema::IndexRecordOption;
use tantivy::{DocSet as _, Index, Searcher, TERMINATED, TantivyDocument, Term};

use super::SearchError;
use super::ask::SearchIndex;
use super::folder;
use super::marks::Marks;
use super::message::Message;
use super::schema::{DIGEST, Fields, VERSION};

/// What Tantivy asks for at the least.
pub const MEMORY_PER_THREAD: u64 = 15_000_000;
/// More do not make one index any faster.
pub const MOST_THREADS: u32 = 8;
/// Documents handed to an indexing thread at a time. A small batch stays in one thread, and so becomes one segment.
pub(super) const HAND_OVER: usize = 128;
/// Merging competes with indexing for the disk; more at a time only makes both slower.
const MERGES_AT_ONCE: usize = 2;

/// How an index is written.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Threads that index, up to [`MOST_THREADS`].
    pub threads: u32,
    /// Bytes that all of them together may hold before they write, at least [`MEMORY_PER_THREAD`] each.
    pub memory: u64,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Messages that were not there, or only as an older image.
    pub new: usize,
    /// Messages that were there, the same or newer.
    pub known: usize,
}

/// Writes an index. There is one at a time per folder, in all processes; the system takes the lock of a process that died
/// away with it. Dropping it gives up merges that are under way, which the next one begins anew: nobody should wait for
/// them to stop a process. Calls block.
pub struct IndexWriter {
    folder: PathBuf,
    index: Index,
    fields: Fields,
    options: IndexOptions,
    reader: Arc<SearchIndex>,
    marks: Marks,
    /// None after a failure, until the next call.
    writer: Option<tantivy::IndexWriter>,
}

impl IndexWriter {
    /// Opens the index of a folder, or makes an empty one.
    pub fn open(folder: &Path, options: IndexOptions) -> Result<Self, SearchError> {
        let (index, fields) = folder::open_or_create(folder)?;
        let reader = Arc::new(SearchIndex::new(&index, fields, folder)?);
        let folder = folder.to_owned();
        let mut this = Self { folder, index, fields, options, reader, marks: Marks::default(), writer: None };
        this.writer = Some(this.begin()?);
        Ok(this)
    }

    /// What was committed, for asking. Goes on to work when the writer is gone, with what was last committed.
    pub fn reader(&self) -> &Arc<SearchIndex> {
        &self.reader
    }

    /// Writes messages. When it returns, all of them are on disk and can be found.
    pub fn write(&mut self, messages: &[Message<'_>]) -> Result<Written, SearchError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.begin()?,
        };
        // Only a writer that did its work is kept: one that failed may hold half a batch.
        let (written, writer) = self.add(writer, messages).map_err(|error| self.failed("write to", error))?;
        self.writer = Some(writer);
        self.marks.committed();
        Ok(written)
    }

    fn begin(&self) -> Result<tantivy::IndexWriter, SearchError> {
        let writer = begin(&self.index, self.options).map_err(|error| self.failed("open", error))?;
        // What failed before this may have come as far as the disk: what is compared with must be what is there.
        self.reader.reload().map_err(|error| self.failed("open", error))?;
        Ok(writer)
    }

    fn failed(&self, doing: &'static str, error: tantivy::TantivyError) -> SearchError {
        SearchError::of(doing, &self.folder, error)
    }

    fn add(
        &mut self,
        mut writer: tantivy::IndexWriter,
        messages: &[Message<'_>],
    ) -> tantivy::Result<(Written, tantivy::IndexWriter)> {
        let searcher = self.reader.searcher();
        let mut operations = Vec::with_capacity(HAND_OVER + 1);
        let mut written = Written::default();
        for message in newest_images(messages) {
            let digest = message.digest();
            match self.standing(&searcher, message, digest)? {
                Standing::Known => continue,
                Standing::Absent => {}
                Standing::Older => operations.push(UserOperation::Delete(self.key_of(message))),
            }
            operations.push(UserOperation::Add(self.fields.document(message, digest)));
            written.new += 1;
            if operations.len() >= HAND_OVER {
                hand_over(&writer, &mut operations)?;
            }
        }
        written.known = messages.len() - written.new;
        if written.new > 0 {
            hand_over(&writer, &mut operations)?;
            writer.commit()?;
            self.reader.reload()?;
        }
        Ok((written, writer))
    }

    /// How what is committed compares with a message.
    fn standing(
        &mut self,
        searcher: &Searcher,
        message: &Message<'_>,
        digest: u64,
    ) -> tantivy::Result<Standing> {
        let known = (searcher, &self.fields);
        if !self.marks.may_be_there(&message.chat_id, message.sequence, known)? {
            return Ok(Standing::Absent);
        }
        let term = self.key_of(message);
        for segment in searcher.segment_readers() {
            let inverted = segment.inverted_index(term.field())?;
            let Some(mut postings) = inverted.read_postings(&term, IndexRecordOption::Basic)? else {
                continue;
            };
            let columns = segment.fast_fields();
            let (versions, digests) = (columns.u64(VERSION)?, columns.u64(DIGEST)?);
            while postings.doc() != TERMINATED {
                let doc = postings.doc();
                if !segment.is_deleted(doc) {
                    let is_newer = versions.first(doc).is_some_and(|version| version > message.version);
                    let is_same = digests.first(doc) == Some(digest);
                    return Ok(if is_newer || is_same { Standing::Known } else { Standing::Older });
                }
                postings.advance();
            }
        }
        Ok(Standing::Absent)
    }

    fn key_of(&self, message: &Message<'_>) -> Term {
        self.fields.key_term(&message.chat_id, message.sequence)
    }
}

/// What the index holds of a message.
enum Standing {
    Absent,
    /// An older image, which is replaced.
    Older,
    /// The same, or a newer image.
    Known,
}

/// Tantivy's own writer.
pub(super) fn begin(index: &Index, options: IndexOptions) -> tantivy::Result<tantivy::IndexWriter> {
    let threads = options.threads.clamp(1, MOST_THREADS);
    let memory = (options.memory / u64::from(threads)).max(MEMORY_PER_THREAD);
    let options = IndexWriterOptions::builder()
        .num_worker_threads(threads as usize)
        .memory_budget_per_thread(usize::try_from(memory).unwrap_or(usize::MAX))
        .num_merge_threads(MERGES_AT_ONCE)
        .build();
    let writer = index.writer_with_options(options)?;
    writer.set_merge_policy(Box::new(LogMergePolicy::default()));
    Ok(writer)
}

pub(super) fn hand_over(
    writer: &tantivy::IndexWriter,
    operations: &mut Vec<UserOperation<TantivyDocument>>,
) -> tantivy::Result<()> {
    writer.run(std::mem::take(operations)).map(drop)
}

/// Of each message of a batch its newest image: of two of the same version the later one. In order of first appearance.
fn newest_images<'b, 'm>(messages: &'b [Message<'m>]) -> Vec<&'b Message<'m>> {
    let mut newest: Vec<&Message<'_>> = Vec::with_capacity(messages.len());
    let mut places: FxHashMap<(&str, u64), usize> = FxHashMap::default();
    places.reserve(messages.len());
    for message in messages {
        let place = *places.entry((&*message.chat_id, message.sequence)).or_insert(newest.len());
        match newest.get_mut(place) {
            None => newest.push(message),
            Some(other) if message.version >= other.version => *other = message,
            Some(_) => {}
        }
    }
    newest
}

#[cfg(test)]
mod tests;
