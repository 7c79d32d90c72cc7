//! `kafka-consume`: events of the log, read as a member of a consumer group.
//!
//! The group remembers how far it came, so a commit of the runtime is a commit of the group, and a pipeline that starts
//! again goes on where everything before it had ended. When partitions move to another member, those that leave are kept
//! until what was read from them is committed; only then may the other begin, and nothing is read twice. Partitions that
//! were taken away without asking are forgotten: their records go on to their end, since telling somebody twice does no
//! harm, but nothing is committed for them any more.
//!
//! While the runtime does not read, records stay in the log and the membership is kept alive by the connector. Rejected:
//! pausing partitions and buffering here, which would be a second queue in front of the pipeline's own.

use async_trait::async_trait;
use courant_connectors::log::{
    Assigned, Consumer, Fetch, Header, LogError, LogRecord, Offsets, ReadLog as _, Revocation, StartAt,
    Subscription, Topic, TopicPartition,
};
use courant_connectors::model::commands::{ORIGIN, PREVIOUS_SEQUENCE};
use courant_pipeline::config::Topology;
use courant_pipeline::spec::{BuildContext, Built, Level, Mode, Problem, StageConfig, StageSpec};
use courant_pipeline::stage::{Partition, PositionKeeping, Positions, Read, ReadBatch};
use courant_pipeline::{Headers, Record, Source, StageError};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, log_error};
use crate::commands::EVENT;
use crate::log_range::LOG_ORIGIN;

pub static SPEC: StageSpec = StageSpec::source::<Config>("kafka-consume", EVENT)
    .summary("reads events from topics of the log, and shares their partitions with others of its group")
    .example("[[pipeline.stage]]\nkind = \"kafka-consume\"\nparams = { topics = [\"messages.persisted\"], group = \"fanout\" }\n");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The topics to read. `courant topics create` makes those of the product.
    pub topics: Vec<String>,
    /// The consumer group, which remembers how far it has read. Pipelines of one group, in any process, share the
    /// partitions among them. The pipeline's name if left out.
    #[serde(default)]
    pub group: Option<String>,
    /// Where to begin in partitions that the group has never read.
    #[serde(default)]
    pub start: Start,
}

/// Where a new group begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With everything that the log still holds.
    #[default]
    Oldest,
    /// With what is published from now on.
    Latest,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let declared: Vec<_> =
            self.topics.iter().map(|topic| access(Level::Log, Mode::Read, topic)).collect();
        let backends = Backends::of(context, &declared);
        let pipeline = context.pipeline.to_owned();
        let subscription = self.subscription(&pipeline);
        let mut built = Built::source(KafkaConsume { pipeline, subscription, backends, member: None });
        built.access.extend(declared);
        Ok(built)
    }
}

/// How a pipeline joins its group; none if its source is of another kind.
pub fn subscription(topology: &Topology) -> Option<Subscription> {
    let source = topology.source();
    if source.spec.kind != SPEC.kind {
        return None;
    }
    let config: Config = serde_json::from_value(source.params.clone()).ok()?;
    Some(config.subscription(&topology.name))
}

impl Config {
    fn subscription(self, pipeline: &str) -> Subscription {
        Subscription {
            group: self.group.unwrap_or_else(|| pipeline.to_owned()),
            topics: self.topics.iter().map(|topic| Topic::from(topic.as_str())).collect(),
            start: match self.start {
                Start::Oldest => StartAt::Oldest,
                Start::Latest => StartAt::Latest,
            },
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = topic_problems(&self.topics);
        if self.group.as_ref().is_some_and(String::is_empty) {
            problems.push(
                Problem::new("group", "a group has a name").help("leave it out to use the pipeline's name"),
            );
        }
        problems
    }
}

/// What is wrong with a list of topics to read.
pub(super) fn topic_problems(topics: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if topics.is_empty() {
        problems.push(Problem::new("topics", "there is no topic to read"));
    }
    for (index, topic) in topics.iter().enumerate() {
        let key = format!("topics.{index}");
        if topic.is_empty() {
            problems.push(Problem::new(key, "a topic has a name"));
        } else if topics[..index].contains(topic) {
            problems.push(Problem::new(key, format!("`{topic}` is there twice")));
        }
    }
    problems
}

struct KafkaConsume {
    pipeline: String,
    subscription: Subscription,
    backends: Backends,
    member: Option<Member>,
}

#[async_trait]
impl Source for KafkaConsume {
    fn identity(&self) -> String {
        let topics: Vec<_> = self.subscription.topics.iter().map(Topic::as_str).collect();
        format!("log:{}:{}", self.subscription.group, topics.join(","))
    }

    fn origin(&self) -> String {
        LOG_ORIGIN.to_owned()
    }

    fn keeps_positions(&self) -> PositionKeeping {
        PositionKeeping::Source
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        let log = self.backends.log()?;
        let consumer = log.subscribe(self.subscription.clone()).await;
        let consumer = consumer.map_err(|error| log_error("join the consumer group", error))?;
        self.member = Some(Member::new(consumer));
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        let Some(member) = &mut self.member else {
            return Err(StageError::fatal("read the log", "the source is not open"));
        };
        member.read(max).await.map_err(|error| read_error(error, &self.pipeline))
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        match &mut self.member {
            Some(member) => member.commit(positions).await,
            None => Ok(()),
        }
    }

    fn lag(&self) -> Option<u64> {
        let member = self.member.as_ref()?;
        Some(member.consumer.lag().iter().map(|(_, lag)| lag).sum())
    }

    async fn close(&mut self) -> Result<(), StageError> {
        match self.member.take() {
            Some(member) => {
                member.consumer.close().await.map_err(|error| log_error("leave the group", error))
            }
            None => Ok(()),
        }
    }
}

/// A member of the group and what it holds.
struct Member {
    consumer: Box<dyn Consumer>,
    held: FxHashMap<TopicPartition, Held>,
    /// Partitions that another member waits for.
    leaving: Vec<Revocation>,
    /// Partitions that are not ours any more, which the runtime does not know yet.
    gone: Vec<Partition>,
}

/// A partition of this member.
struct Held {
    name: Partition,
    /// The offset after the last record that was handed out.
    read_to: u64,
    /// Everything before it is done with, as far as the group knows.
    committed: u64,
}

impl Member {
    fn new(consumer: Box<dyn Consumer>) -> Self {
        Self { consumer, held: FxHashMap::default(), leaving: Vec::new(), gone: Vec::new() }
    }

    /// Cancel-safe: between two fetches nothing is awaited.
    async fn read(&mut self, max: usize) -> Result<Read, LogError> {
        loop {
            if !self.gone.is_empty() {
                return Ok(Read::Gone(std::mem::take(&mut self.gone)));
            }
            match self.consumer.fetch(max).await? {
                Fetch::Records { from, records } => return Ok(Read::Batch(self.batch(&from, records))),
                Fetch::Assigned(partitions) => {
                    for partition in partitions {
                        self.hold(partition);
                    }
                }
                Fetch::Revoked(revocation) => {
                    tracing::debug!(partitions = ?revocation.partitions, "partitions are leaving");
                    self.leaving.push(revocation);
                    self.let_go();
                }
                Fetch::Lost(partitions) => {
                    tracing::warn!(?partitions, "lost partitions before everything read from them had ended");
                    for partition in &partitions {
                        self.lose(partition);
                    }
                    self.let_go();
                }
            }
        }
    }

    fn hold(&mut self, Assigned { partition, start }: Assigned) {
        tracing::debug!(%partition, start, "reads a partition");
        let name = Partition::from(partition.to_string().as_str());
        self.held.insert(partition, Held { name, read_to: start, committed: start });
    }

    fn batch(&mut self, from: &TopicPartition, records: Vec<LogRecord>) -> ReadBatch {
        if !self.held.contains_key(from) {
            let start = records.first().map_or(0, |record| record.offset);
            self.hold(Assigned { partition: from.clone(), start });
        }
        let held = self.held.get_mut(from).expect("it was there or has just been added");
        let mut batch = ReadBatch::new(held.name.clone(), records.len());
        for record in records {
            held.read_to = record.offset + 1;
            batch.push(event(record), held.read_to);
        }
        batch
    }

    async fn commit(&mut self, positions: &Positions) -> Result<(), StageError> {
        let held = self.held.iter();
        let mut offsets: Offsets = held
            .filter_map(|(at, held)| positions.get(&held.name).map(|position| (at.clone(), *position)))
            .collect();
        if offsets.len() < positions.len() {
            tracing::debug!(?positions, "some positions are of partitions that others read now");
        }
        while !offsets.is_empty() {
            match self.consumer.commit(&offsets).await {
                Ok(()) => break,
                // Nobody loses anything by it: the member that has it now begins before this.
                Err(LogError::NotAssigned(lost)) if offsets.remove(&lost).is_some() => {
                    tracing::debug!(partition = %lost, "another member has the partition that was to be committed");
                    self.lose(&lost);
                }
                Err(error) => return Err(log_error("commit to the log", error)),
            }
        }
        for (at, offset) in offsets {
            if let Some(held) = self.held.get_mut(&at) {
                held.committed = offset;
            }
        }
        self.let_go();
        Ok(())
    }

    fn lose(&mut self, partition: &TopicPartition) {
        self.gone.extend(self.held.remove(partition).map(|held| held.name));
    }

    /// Hands over what is done with. The connector bounds how long that may take.
    fn let_go(&mut self) {
        let Self { held, leaving, .. } = self;
        leaving.retain(|revocation| {
            let is_done =
                |at: &TopicPartition| held.get(at).is_none_or(|held| held.committed >= held.read_to);
            let done = revocation.partitions.iter().all(is_done);
            if done {
                held.retain(|at, _| !revocation.partitions.contains(at));
            }
            !done
        });
    }
}

/// The record of an event, whoever reads it.
pub(super) fn event(record: LogRecord) -> Record {
    let mut event = Record::new(record.payload);
    if let Some(key) = &record.key {
        event = event.with_key(String::from_utf8_lossy(key));
    }
    for header in &record.headers {
        set(&mut event.headers, header);
    }
    event
}

fn set(headers: &mut Headers, header: &Header) {
    let value = String::from_utf8_lossy(&header.value);
    // Nearly every record has the first of these: their names need not be copied.
    match [ORIGIN, PREVIOUS_SEQUENCE].into_iter().find(|known| *known == header.name) {
        Some(known) => headers.set(known, &*value),
        None => headers.set(header.name.to_string(), &*value),
    }
}

fn read_error(error: LogError, pipeline: &str) -> StageError {
    match error {
        LogError::OutOfRange { .. } => StageError::fatal(
            "read the log",
            format!(
                "{error}: what the group had not read is removed; \
                 `courant positions reset {pipeline} --to oldest` goes on with what is left"
            ),
        ),
        error => log_error("read the log", error),
    }
}

#[cfg(test)]
mod tests;
