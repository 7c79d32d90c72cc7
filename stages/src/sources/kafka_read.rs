//! `kafka-read`: a range of the log, read without a group.
//!
//! For running history: from the oldest record, a moment or an offset, up to a fence or on and on. The pipeline's own
//! positions remember how far it came, so nobody else's reading is disturbed, and the same range can be read again.
//! Partitions are named as `kafka-consume` names them, with the same positions.
//!
//! Rejected: a group made for the occasion. It leaves traces in the broker, needs the right to make them, and cannot
//! begin at an offset without being reset first.

use async_trait::async_trait;
use courant_connectors::log::Topic;
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::{Source, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::kafka_consume::{event, topic_problems};
use crate::backends::{Backends, access};
use crate::commands::EVENT;
use crate::log_range::{Held, LOG_ORIGIN, LogRange, RangeEnd, RangeStart, end_of, start_of};
use crate::rate::{Pace, PerSecond};

pub static SPEC: StageSpec = StageSpec::source::<Config>("kafka-read", EVENT)
    .summary("reads a range of topics of the log for itself, without a group")
    .example(
        "[[pipeline.stage]]\nkind = \"kafka-read\"\nparams = { topics = [\"messages.persisted\"], from = { time = \"2026-01-30T00:00:00Z\" }, to = \"now\" }\n",
    );

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The topics to read.
    pub topics: Vec<String>,
    /// Where to begin, if the pipeline has not read before.
    #[serde(default)]
    pub from: RangeStart,
    /// Where to end.
    #[serde(default)]
    pub to: RangeEnd,
    /// Records per second at the most.
    #[serde(default)]
    pub rate: Option<PerSecond>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let problems = topic_problems(&self.topics);
        if !problems.is_empty() {
            return Err(problems);
        }
        let declared: Vec<_> =
            self.topics.iter().map(|topic| access(Level::Log, Mode::Read, topic)).collect();
        let mut built = Built::source(KafkaRead {
            topics: self.topics.iter().map(|topic| Topic::from(topic.as_str())).collect(),
            from: self.from,
            to: self.to,
            pace: Pace::new(self.rate),
            backends: Backends::of(context, &declared),
            range: None,
        });
        built.access.extend(declared);
        Ok(built)
    }
}

/// Positions of one range are good for every range of the same topics.
pub fn identity_of(topics: &[Topic]) -> String {
    let topics: Vec<_> = topics.iter().map(Topic::as_str).collect();
    format!("log:{}", topics.join(","))
}

struct KafkaRead {
    topics: Vec<Topic>,
    from: RangeStart,
    to: RangeEnd,
    pace: Pace,
    backends: Backends,
    range: Option<LogRange>,
}

impl KafkaRead {
    /// Where partitions begin that have no place yet. What others began with may be removed by now.
    fn start_of_others(&self, resume: &Positions) -> RangeStart {
        match &self.from {
            RangeStart::Offsets(named) => {
                let is_new = |name: &str| !resume.contains_key(&Partition::from(name));
                let new = named.iter().filter(|(name, _)| is_new(name));
                RangeStart::Offsets(new.map(|(name, at)| (name.clone(), *at)).collect())
            }
            other => other.clone(),
        }
    }
}

#[async_trait]
impl Source for KafkaRead {
    fn identity(&self) -> String {
        identity_of(&self.topics)
    }

    fn origin(&self) -> String {
        LOG_ORIGIN.to_owned()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Runtime
    }

    async fn open(&mut self, resume: &Positions) -> Result<(), StageError> {
        let log = self.backends.log()?;
        let held = Held::by(&log, &self.topics).await?;
        let start = start_of(&log, &self.topics, &self.start_of_others(resume), &held).await?;
        let end = end_of(&self.to, &held)?;
        self.range = Some(LogRange::open(&log, start, end, resume).await?);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let Some(range) = &mut self.range else {
            return Err(StageError::fatal("read the log", "the source is not open"));
        };
        let max = self.pace.wait(max).await;
        let Some((partition, records)) = range.next(max).await? else { return Ok(Read::End) };
        self.pace.took(records.len());
        let mut batch = ReadBatch::new(partition, records.len());
        for record in records {
            let resume_at = record.offset + 1;
            batch.push(event(record), resume_at);
        }
        Ok(Read::Batch(batch))
    }

    fn lag(&self) -> Option<u64> {
        self.range.as_ref()?.lag()
    }

    async fn close(&mut self) -> Result<(), StageError> {
        self.range = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
