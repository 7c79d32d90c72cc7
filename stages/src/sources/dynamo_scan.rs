//! `dynamo-scan`: everything that a table holds, as the events that told of it.
//!
//! For building something anew when the log does not reach back far enough: the store is the truth and has everything.
//! The table is read in segments side by side, each resumed where it was settled. Each message becomes the event that
//! `messages.persisted` carries, so the same stages follow. With `then`, the log takes over where the scan ends, and a
//! message that both have is given once ([`join`] says how).
//!
//! Order holds within a chat for what the scan gives, and for what the log gives after it; a message that is stored out
//! of turn while its chat is being read comes by the log, after later ones.
//!
//! Rejected: following the table's change stream in place of the log. It reaches back a day, has no fence to stop at,
//! and the pipeline that goes on afterwards reads the log.

mod fence;
mod join;
mod journal;
mod segment;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages;
use courant_connectors::model::topics::messages_persisted;
use courant_connectors::store::Segment as Part;
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::{Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::task::JoinSet;

pub use self::fence::Until;
pub use self::join::{joined_at, latest_before};

use self::fence::Fence;
use self::join::{Join, Seen};
use self::journal::Journal;
use self::segment::{Behind, Page, Segment};
use super::kafka_consume::event;
use crate::backends::{Backends, access};
use crate::commands::EVENT;
use crate::derived::StageFolder;
use crate::log_range::{Held, LOG_ORIGIN, LogRange, RangeEnd, RangeStart, end_of};
use crate::rate::{Pace, PerSecond};

pub static SPEC: StageSpec = StageSpec::source::<Config>("dynamo-scan", EVENT)
    .summary("reads a whole table of the store in segments, and goes on with the log if it is told to")
    .example(
        "[[pipeline.stage]]\nkind = \"dynamo-scan\"\nparams = { table = \"messages\", then = \"live\" }\n",
    );

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The table to read.
    #[serde(default)]
    pub table: Table,
    /// How many parts the table is read in, side by side. More are faster, and take more from those who use the store.
    #[serde(default = "default_segments")]
    pub segments: NonZeroU32,
    /// How far the log is read after the table; nothing of it if left out.
    #[serde(default)]
    pub then: Option<RangeEnd>,
    /// Where the log takes over: what is older comes from the table, what is newer from the log. With `then`; from the
    /// moment at which the scan begins if left out.
    #[serde(default)]
    pub join: Option<RangeStart>,
    /// When the log was where `then` ends, if that is in the past: the table gives nothing that was published later, and
    /// where that cannot be told it is an error. With `join`, twenty minutes before it or more.
    #[serde(default)]
    pub published_before: Option<Timestamp>,
    /// The table as it was when the log was at a place: what was published later is left out. For comparing. Not with
    /// `then`.
    #[serde(default)]
    pub until: Option<Until>,
    /// Records per second at the most.
    #[serde(default)]
    pub rate: Option<PerSecond>,
}

/// A table whose items the log tells of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// As events of `messages.persisted`.
    #[default]
    Messages,
}

/// How many parts a table is read in unless told otherwise. Each waits for the disk now and then, while others are read.
pub const SEGMENTS: NonZeroU32 = NonZeroU32::new(8).expect("not zero");

fn default_segments() -> NonZeroU32 {
    SEGMENTS
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        if self.join.is_some() && self.then.is_none() {
            let problem = Problem::new("join", "the log takes over only with `then`");
            return Err(vec![problem.help("add `then = \"live\"`, or leave `join` out")]);
        }
        if self.published_before.is_some() && self.join.is_none() {
            let problem = Problem::new("published_before", "the log has to take over before that");
            return Err(vec![problem.help("add a `join` in the past, or leave `published_before` out")]);
        }
        if self.until.is_some() && self.then.is_some() {
            return Err(vec![Problem::new("until", "the scan cannot end at a place and go on behind it")]);
        }
        let mut declared = vec![
            access(Level::Store, Mode::Scan, &messages::SCHEMA.name),
            access(Level::Store, Mode::Read, &messages::SCHEMA.name),
        ];
        if self.then.is_some() || self.until.is_some() {
            declared.push(access(Level::Log, Mode::Read, messages_persisted::NAME));
        }
        let mut built = Built::source(DynamoScan {
            pace: Pace::new(self.rate),
            config: self,
            folder: StageFolder::of(context),
            backends: Backends::of(context, &declared),
            resume: Positions::new(),
            phase: Phase::Closed,
        });
        built.access.extend(declared);
        Ok(built)
    }
}

struct DynamoScan {
    config: Config,
    pace: Pace,
    folder: StageFolder,
    backends: Backends,
    resume: Positions,
    phase: Phase,
}

enum Phase {
    Closed,
    Scanning(Scanning),
    /// The log, and what of it the scan gave.
    Following(LogRange, Seen),
    Ended,
}

/// Segments on their way: waiting, being read, or read to their end.
struct Scanning {
    join: Option<Arc<Join>>,
    waiting: VecDeque<(Segment, Behind)>,
    reading: JoinSet<(Segment, Behind, Result<Option<Page>, StageError>)>,
    ready: VecDeque<Page>,
    done: Vec<Journal>,
}

#[async_trait]
impl Source for DynamoScan {
    fn identity(&self) -> String {
        format!("scan:{}/{}", messages::SCHEMA.name, self.config.segments)
    }

    /// As of the log that it goes on with; segments have names that no partition has.
    fn origin(&self) -> String {
        LOG_ORIGIN.to_owned()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        self.resume.clone_from(resume);
        let folder = self.folder.open().await?;
        let join = match &self.config.then {
            Some(_) => {
                let log = self.backends.log()?;
                let (at, before) = (self.config.join.as_ref(), self.config.published_before);
                Some(Arc::new(Join::open(&folder, &log, at, before).await?))
            }
            None => None,
        };
        let fence = match &self.config.until {
            Some(until) => Some(Arc::new(Fence::open(&self.backends.log()?, until).await?)),
            None => None,
        };
        self.phase = Phase::Scanning(self.begin(&folder, join, fence).await?);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let max = self.pace.wait(max).await;
        loop {
            match &mut self.phase {
                Phase::Closed => {
                    return Err(StageError::fatal("scan the store", "the source is not open"));
                }
                Phase::Scanning(scanning) => {
                    if let Some(batch) = scanning.next(max).await? {
                        self.pace.took(batch.len());
                        return Ok(Read::Batch(batch));
                    }
                    self.phase = self.follow().await?;
                }
                Phase::Following(range, seen) => {
                    let Some((partition, mut records)) = range.next(max).await? else {
                        self.phase = Phase::Ended;
                        continue;
                    };
                    records.retain(|record| !seen.has(record));
                    if records.is_empty() {
                        continue;
                    }
                    let mut batch = ReadBatch::new(partition, records.len());
                    for record in records {
                        let resume_at = record.offset + 1;
                        batch.push(event(record), resume_at);
                    }
                    self.pace.took(batch.len());
                    return Ok(Read::Batch(batch));
                }
                Phase::Ended => return Ok(Read::End),
            }
        }
    }

    fn lag(&self) -> Option<u64> {
        match &self.phase {
            Phase::Following(range, _) => range.lag(),
            _ => None,
        }
    }

    async fn close(&mut self) -> Result<(), StageError> {
        self.phase = Phase::Closed;
        Ok(())
    }
}

impl DynamoScan {
    async fn begin(
        &mut self,
        folder: &Path,
        join: Option<Arc<Join>>,
        fence: Option<Arc<Fence>>,
    ) -> Result<Scanning, StageError> {
        let of = self.config.segments.get();
        let mut waiting = VecDeque::new();
        for index in 0..of {
            let (part, store) = (Part { index, of }, self.backends.store()?);
            let (segment, behind) = Segment::open(folder, part, store, &self.resume).await?;
            waiting.push_back((segment.limited(join.clone(), fence.clone()), behind));
        }
        let (reading, ready) = (JoinSet::new(), VecDeque::new());
        Ok(Scanning { join, waiting, reading, ready, done: Vec::new() })
    }

    /// After the last segment: the log, if it is to be read.
    async fn follow(&mut self) -> Result<Phase, StageError> {
        let Phase::Scanning(scanning) = &mut self.phase else { return Ok(Phase::Ended) };
        let (Some(then), Some(join)) = (&self.config.then, &scanning.join) else { return Ok(Phase::Ended) };
        let log = self.backends.log()?;

        let seen = Seen::load((**join).clone(), &scanning.done).await?;
        let held = Held::by(&log, &[messages_persisted::NAME.into()]).await?;
        let range = LogRange::open(&log, join.offsets(), end_of(then, &held)?, &self.resume).await?;
        Ok(Phase::Following(range, seen))
    }
}

impl Scanning {
    /// The next records of any segment; none when all have ended. Cancel-safe: pages are read by tasks.
    async fn next(&mut self, max: usize) -> Result<Option<ReadBatch>, StageError> {
        loop {
            // A page waits for each segment at the most.
            while let Some((mut segment, mut behind)) = self.waiting.pop_front() {
                self.reading.spawn(async move {
                    let page = segment.next(&mut behind).await;
                    (segment, behind, page)
                });
            }
            if let Some(page) = self.ready.front_mut() {
                let count = max.min(page.records.len());
                let mut batch = ReadBatch::new(page.partition.clone(), count);
                for (place, record) in page.records.drain(..count) {
                    batch.push(record, place);
                }
                if page.records.is_empty() {
                    self.ready.pop_front();
                }
                return Ok(Some(batch));
            }
            match self.reading.join_next().await {
                Some(Ok(read)) => self.take(read)?,
                Some(Err(error)) => return Err(StageError::fatal("scan the store", error)),
                None => return Ok(None),
            }
        }
    }

    fn take(
        &mut self,
        (segment, behind, page): (Segment, Behind, Result<Option<Page>, StageError>),
    ) -> Result<(), StageError> {
        match page {
            Ok(Some(page)) => {
                if !page.records.is_empty() {
                    self.ready.push_back(page);
                }
                self.waiting.push_back((segment, behind));
                Ok(())
            }
            Ok(None) => {
                self.done.push(segment.into_journal());
                Ok(())
            }
            Err(error) => {
                // Where it was is as it was: the next try reads the same page.
                self.waiting.push_back((segment, behind));
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
