//! `search-index`: keeps messages so that they can be searched for.
//!
//! One document per message, in a Tantivy index of the pipeline's own ([`courant_connectors::search`]). A record that
//! passes is on disk and can be found. Records may come twice, in any order and from overlapping reads: the index ends up
//! the same, so a rebuild runs this stage over history and compares ([`Derived`]).
//!
//! A commit of the index costs some twenty syncs whatever it carries, so the stage asks for one lane and large batches
//! that wait half a second: a message can be found within a second, and under load a commit carries tens of thousands.
//! Rejected: holding records over several calls and committing now and then, which would be a second batching beside
//! the runtime's, with acks to keep.

use std::num::{NonZero, NonZeroU16, NonZeroU32};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use courant_connectors::search::{
    IndexOptions, IndexWriter, Left, MEMORY_PER_THREAD, MOST_THREADS, Message, NotIndexed, Offered,
    SearchError, Searches,
};
use courant_pipeline::config::BatchLimits;
use courant_pipeline::derived::{Derived, Entry};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Preferences, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::units::{Size, Span};
use courant_pipeline::{Batch, Class, Payload, Record, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::commands::EVENT;
use crate::derived::StageFolder;
use crate::stored_event::StoredEvent;

pub static SPEC: StageSpec = StageSpec::sink::<Config>("search-index", Takes::Only(&[EVENT]))
    .effect(Effect::IdempotentWrite)
    .summary(
        "keeps messages so that they can be searched for, in an index that can be built again from history",
    )
    .example("[[pipeline.stage]]\nkind = \"search-index\"\nparams = { memory = \"256 MiB\" }\n");

/// The metric labels of what is left out.
const UNKNOWN_EVENT: &str = "unknown-event";
const NOT_TEXT: &str = "not-text";

/// Where the file says nothing it runs in one lane, with a buffer and batches of 32768 records or 32 MiB that wait for
/// half a second: a commit costs the same whatever it carries.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Threads that index, up to 8; as many as there are cores, but no more than 4, if left out.
    #[schemars(range(min = 1, max = 8))]
    pub threads: Option<NonZeroU32>,
    /// Memory that all of them together may use before they write to disk, at least 15 MB each.
    pub memory: Size,
}

impl Default for Config {
    fn default() -> Self {
        Self { threads: None, memory: Size(128 << 20) }
    }
}

/// Half of what a pipeline may have under way, so that the next batch gathers while one is written.
const BATCH_RECORDS: NonZeroU32 = NonZeroU32::new(32_768).expect("not zero");
const BATCH_BYTES: Size = Size(32 << 20);
/// How long a message waits for others at the most: with the commit, it can be found within a second.
const BATCH_WAIT: Span = Span::millis(500);
/// Indexing shares the machine with everything else.
const USUAL_THREADS: u32 = 4;

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let options = self.options()?;
        let searches = context.services.get::<Searches>();
        let stage =
            SearchIndex { folder: StageFolder::of(context), options, searches, index: Arc::default() };
        let batch = BatchLimits { records: BATCH_RECORDS, bytes: BATCH_BYTES, wait: BATCH_WAIT };
        let preferred = Preferences { lanes: NonZeroU16::new(1), batch, buffer: Some(BATCH_RECORDS) };
        Ok(Built::stage(stage).prefers(preferred).derives(Arc::new(Comparison)))
    }
}

impl Config {
    fn options(&self) -> Result<IndexOptions, Vec<Problem>> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let usual = u32::try_from(cores).unwrap_or(1).min(USUAL_THREADS);
        let threads = self.threads.map_or(usual, NonZeroU32::get);
        if threads > MOST_THREADS {
            return Err(vec![Problem::new(
                "threads",
                format!("an index is written by at most {MOST_THREADS} threads"),
            )]);
        }
        let least = u64::from(threads) * MEMORY_PER_THREAD;
        if self.memory.0 < least {
            let message = format!("{threads} threads need at least {} MB", least / 1_000_000);
            return Err(vec![Problem::new("memory", message).help("give it more, or fewer `threads`")]);
        }
        Ok(IndexOptions { threads, memory: self.memory.0 })
    }
}

struct SearchIndex {
    folder: StageFolder,
    options: IndexOptions,
    /// Where those who answer clients look for it.
    searches: Option<Arc<Searches>>,
    /// There between opening and closing.
    index: Arc<Mutex<Option<Open>>>,
}

struct Open {
    writer: IndexWriter,
    /// Only of the live generation.
    _offered: Option<Offered>,
}

#[async_trait]
impl Stage for SearchIndex {
    async fn open(&self) -> Result<(), StageError> {
        let (folder, options) = (self.folder.open().await?, self.options);
        let writer = blocking("open the index", move || IndexWriter::open(&folder, options)).await?;
        let offer = |searches: &Arc<Searches>| searches.offer(Arc::clone(writer.reader()));
        let offered = self.searches.as_ref().filter(|_| self.folder.is_live()).map(offer);
        tracing::info!(folder = %writer.reader().folder().display(), messages = writer.reader().len(), "search index is open");
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = Some(Open { writer, _offered: offered });
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let told: Vec<Payload> = batch.records().map(|record| readable(&record.payload)).collect();
        let index = Arc::clone(&self.index);
        let left_out = blocking("write the index", move || {
            let (messages, left_out) = read(&told);
            let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
            let open = index.as_mut().expect("the runtime opens a stage before it gives it records");
            open.writer.write(&messages).map(|_| left_out)
        });
        let slots = batch.iter_mut().into_slice();
        for (at, reason) in left_out.await? {
            match reason {
                NotIndexed::Left(Left::NoMessage) => slots[at].drop_as(UNKNOWN_EVENT),
                NotIndexed::Left(Left::NotText) => slots[at].drop_as(NOT_TEXT),
                NotIndexed::Malformed(error) => slots[at].fail(StageError::reject("read the event", error)),
            }
        }
        Ok(())
    }

    async fn close(&self) -> Result<(), StageError> {
        let index = Arc::clone(&self.index);
        blocking("close the index", move || {
            drop(index.lock().unwrap_or_else(PoisonError::into_inner).take());
            Ok(())
        })
        .await
    }
}

/// What a batch tells of: messages, and the places of what is left out.
fn read(told: &[Payload]) -> (Vec<Message<'_>>, Vec<(usize, NotIndexed)>) {
    let (mut messages, mut left_out) = (Vec::with_capacity(told.len()), Vec::new());
    for (at, told) in told.iter().enumerate() {
        match message(told) {
            Ok(message) => messages.push(message),
            Err(reason) => left_out.push((at, reason)),
        }
    }
    (messages, left_out)
}

/// What [`message`] can look at.
fn readable(payload: &Payload) -> Payload {
    match payload {
        Payload::Value(_) if payload.as_value::<StoredEvent>().is_none() => Payload::Text(payload.to_json()),
        other => other.clone(),
    }
}

/// The message that a [`readable`] payload tells of.
fn message(told: &Payload) -> Result<Message<'_>, NotIndexed> {
    match (told.as_value::<StoredEvent>(), told) {
        (Some(event), _) => Message::of(&event.0),
        (None, Payload::Text(text)) => Message::of_event(text),
        (None, Payload::Value(_)) => Err(NotIndexed::Left(Left::NoMessage)),
    }
}

/// Runs work on a thread that may block. It goes on if nobody waits any more, and does no harm: it can be repeated.
async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, SearchError> + Send + 'static,
) -> Result<T, StageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| index_error(doing, error)),
        Err(error) => Err(StageError::fatal(doing, error)),
    }
}

/// A disk that is full may have room later; what is damaged stays damaged.
fn index_error(doing: &'static str, error: SearchError) -> StageError {
    let class = match error {
        SearchError::Io { .. } | SearchError::InUse { .. } => Class::Retry,
        _ => Class::Fatal,
    };
    StageError::new(class, doing, error)
}

/// What a rebuilt index is compared by.
struct Comparison;

impl Derived for Comparison {
    fn expected(&self, record: &Record) -> Result<Option<Entry>, StageError> {
        match message(&readable(&record.payload)) {
            Ok(message) => Ok(Some(entry(&message))),
            Err(NotIndexed::Left(_)) => Ok(None),
            Err(NotIndexed::Malformed(error)) => Err(StageError::reject("read the event", error)),
        }
    }

    fn walk(&self, folder: &std::path::Path, each: &mut dyn FnMut(Entry)) -> Result<(), StageError> {
        let walked = courant_connectors::search::walk(folder, |message| each(entry(message)));
        walked.map_err(|error| index_error("read the index", error))
    }
}

fn entry(message: &Message<'_>) -> Entry {
    Entry {
        key: format!("{}/{}", message.chat_id, message.sequence).into(),
        digest: message.digest(),
        version: message.version,
        at: message.created_at.unix_millis(),
    }
}

#[cfg(test)]
mod tests;
