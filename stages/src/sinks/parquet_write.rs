//! `parquet-write`: a table of Parquet files for DuckDB, pandas, Spark and whoever else reads them.
//!
//! The table is `<data>/derived/<pipeline>/current/<stage>/current/*.parquet`. A batch becomes visible as a whole, after
//! it is on disk, and only then are its records acknowledged; which records it holds is kept in the same step
//! ([`crate::applied`]), so a record that is read again after a crash is not written again. A record that does not fit
//! its columns is refused alone. With a `key` the newest row of each key is the only one that readers see: earlier rows
//! are removed in the step that adds theirs, not at some later merge. Small files are merged as they come.
//!
//! Letters that are run again have no position: without a key a crash in the middle of a redrive writes them twice.

mod columns;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use courant_connectors::files::FileError;
use courant_connectors::files::parquet::{Row, Table, walk};
use courant_pipeline::config::BatchLimits;
use courant_pipeline::derived::{Derived, Entry};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Preferences, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::units::{Size, Span};
use courant_pipeline::{Batch, Record, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::applied::Applied;
use crate::derived::StageFolder;
use crate::host::file_error;
use crate::shared::Shared;
use columns::{ColumnConfig, Columns};

pub static SPEC: StageSpec = StageSpec::sink::<Config>("parquet-write", Takes::Any)
    .effect(Effect::IdempotentWrite)
    .summary("writes records as rows of Parquet files, each once, for DuckDB, pandas and the like")
    .example(
        "[[pipeline.stage]]\nkind = \"parquet-write\"\nbatch = { records = 50000, bytes = \"64 MiB\", wait = \"1m\" }\n\
         [pipeline.stage.params]\nkey = [\"message_id\"]\ncolumns = [\n  { name = \"message_id\", type = \"string\" },\n  \
         { name = \"sent_at\", type = \"timestamp\", from = \".created_at\" },\n  \
         { name = \"length\", type = \"int64\", from = \".content | length\", optional = true },\n]\n",
    );

/// Files of a few megabytes, and rows that can be seen within half a minute. Fewer records than a source reads ahead,
/// or a full batch would never come.
const GATHERS: BatchLimits = BatchLimits {
    records: NonZeroU32::new(32_768).expect("not zero"),
    bytes: Size(64 << 20),
    wait: Span::secs(30),
};

/// The metric label of what was written before a crash.
const ALREADY_WRITTEN: &str = "already-written";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The table's columns. One that is added later must be `optional`; rows from before then lack it.
    pub columns: Vec<ColumnConfig>,
    /// Columns of which there is one row each: a later row replaces the earlier one. Every row is added if left out.
    /// Needed for a rebuild that is compared. Takes eight bytes of memory a row.
    #[serde(default)]
    pub key: Vec<String>,
    /// With a key: the `int64` or `timestamp` column that says which of two rows is the newer. The one that came later if
    /// left out.
    #[serde(default)]
    pub version: Option<String>,
    /// The `timestamp` column that says when what a row is about happened. A rebuild leaves out of its comparison what is
    /// newer than its beginning.
    #[serde(default)]
    pub time: Option<String>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let has_key = !self.key.is_empty();
        let columns =
            Arc::new(Columns::new(self.columns, &self.key, self.version.as_deref(), self.time.as_deref())?);
        let writer = std::sync::Mutex::new(None);
        let stage = ParquetWrite { columns: Arc::clone(&columns), folder: StageFolder::of(context), writer };
        let built = Built::stage(stage)
            .prefers(Preferences { batch: GATHERS, ..Preferences::default() })
            .in_one_lane();
        Ok(if has_key { built.derives(Arc::new(ParquetTable(columns))) } else { built })
    }
}

/// Every table that is open in this process.
static OPEN: Shared<Writer> = Shared::new();

struct ParquetWrite {
    columns: Arc<Columns>,
    folder: StageFolder,
    /// There while it is open.
    writer: std::sync::Mutex<Option<Arc<Writer>>>,
}

/// A table and which records are in it. Batches take turns.
struct Writer(Arc<Mutex<Open>>);

struct Open {
    table: Table,
    /// None after a write that failed: it may have happened all the same, which only the disk knows.
    applied: Option<Applied>,
}

#[async_trait]
impl Stage for ParquetWrite {
    async fn open(&self) -> Result<(), StageError> {
        let folder = self.folder.open().await?;
        let schema = Arc::clone(self.columns.schema());
        let opened = OPEN.get(&folder, async || {
            let (folder, schema) = (folder.clone(), Arc::clone(&schema));
            let open = blocking(move || Open::new(&folder, schema)).await?;
            Ok(Writer(Arc::new(Mutex::new(open))))
        });
        let writer = opened.await?;
        if *writer.0.lock().await.table.schema() != schema {
            let reason = "the pipeline still runs with other columns; they are used once it has ended";
            return Err(StageError::retry("open the table", reason));
        }
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        Ok(())
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(writer) = writer else {
            return Err(StageError::fatal("write the table", "the stage is not open"));
        };
        let mut open = Arc::clone(&writer.0).lock_owned().await;
        let mut applied = open.applied()?;
        let made: Vec<_> = batch.iter_mut().map(|slot| self.columns.row(slot.record_mut())).collect();
        let is_new = |(row, origin): (&Result<Row, _>, Option<_>)| {
            row.is_ok() && origin.is_none_or(|origin| applied.take(&origin))
        };
        let new: Vec<bool> = made.iter().zip(batch.origins()).map(is_new).collect();
        let mut rows = Vec::with_capacity(made.len());
        for ((slot, row), new) in batch.iter_mut().zip(made).zip(new) {
            match row {
                Err(error) => slot.fail(error),
                Ok(row) if new => rows.push(row),
                Ok(_) => slot.drop_as(ALREADY_WRITTEN),
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        blocking(move || open.write(rows, applied)).await
    }

    async fn close(&self) -> Result<(), StageError> {
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}

impl Open {
    fn new(
        folder: &Path,
        schema: Arc<courant_connectors::files::parquet::Schema>,
    ) -> Result<Self, StageError> {
        let table = Table::open(folder, schema).map_err(|error| file_error("open the table", error))?;
        let applied = Some(read_note(&table)?);
        Ok(Self { table, applied })
    }

    /// What is in the table, looked up again if that is not sure.
    fn applied(&mut self) -> Result<Applied, StageError> {
        if let Some(applied) = &self.applied {
            return Ok(applied.clone());
        }
        self.table.reload().map_err(|error| file_error("look at the table", error))?;
        Ok(self.applied.insert(read_note(&self.table)?).clone())
    }

    fn write(&mut self, rows: Vec<Row>, applied: Applied) -> Result<(), StageError> {
        self.applied = None;
        let note =
            serde_json::to_vec(&applied).map_err(|error| StageError::fatal("write the table", error))?;
        self.table.write(rows, note).map_err(|error| file_error("write the table", error))?;
        self.applied = Some(applied);
        // the rows are there: merging can wait for the next batch
        if let Err(error) = self.table.tidy() {
            self.applied = None;
            tracing::warn!(%error, "small files of a table could not be merged");
        }
        Ok(())
    }
}

fn read_note(table: &Table) -> Result<Applied, StageError> {
    if table.note().is_empty() {
        return Ok(Applied::default());
    }
    serde_json::from_slice(table.note())
        .map_err(|error| StageError::fatal("read how far the table was written", error))
}

/// Runs file work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StageError> + Send + 'static,
) -> Result<T, StageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|stopped| Err(StageError::retry("write the table", stopped)))
}

/// The table as a rebuild compares it.
struct ParquetTable(Arc<Columns>);

impl Derived for ParquetTable {
    fn expected(&self, record: &Record) -> Result<Option<Entry>, StageError> {
        let row = self.0.row(&mut record.clone())?;
        Ok(Some(self.0.entry(&row)))
    }

    fn walk(&self, folder: &Path, each: &mut dyn FnMut(Entry)) -> Result<(), StageError> {
        let walked = walk(folder, self.0.schema(), &mut |row| each(self.0.entry(&row)));
        walked.map_err(|error: FileError| file_error("read the table", error))
    }
}

#[cfg(test)]
mod tests;
