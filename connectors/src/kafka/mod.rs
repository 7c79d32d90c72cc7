//! The log on Apache Kafka, through librdkafka.
//!
//! Appending is idempotent and answered when every replica in sync has the record (`produce`); reading is by
//! partition, committed by hand, and hands partitions over only when their holder is done (`member`). No call
//! waits longer than the configured time-outs, and none has to be made anew after the brokers were away:
//! librdkafka connects again by itself. Blocking calls of librdkafka run on blocking threads or on threads of
//! their own.
//!
//! rdkafka was chosen over clients written in Rust for its idempotent producer, its cooperative rebalancing
//! and the years it has run against real clusters; kafka-protocol crates leave all of that to their user.

mod admin;
mod ask;
mod config;
mod context;
mod delivery;
mod error;
mod member;
mod partitions;
mod produce;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::consumer::Consumer as _;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use config::{KafkaConfig, Protocol, Security};

use crate::log::{
    AdminLog, Appended, Consumer, LogError, NewRecord, Offsets, ReadLog, Reader, Result, StartAt,
    Subscription, Topic, TopicCreated, TopicDescription, TopicSpec, Watermarks, WriteLog,
};
use admin::Administration;
use ask::{Questions, list_of, native};
use config::{millis, unless_set};
use member::{Changes, Member, MemberContext};
use partitions::Partitions;
use produce::Producer;
use serve::{Service, hold};

/// How soon the end of the handle is noticed.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What a reader keeps of a partition before it stops fetching; per partition, since each has its own queue.
const READ_AHEAD_RECORDS: &str = "10000";
const READ_AHEAD_KILOBYTES: &str = "4096";

/// A Kafka cluster. Records that are on their way when it is dropped are still waited for in the background.
pub struct Kafka {
    config: KafkaConfig,
    client: ClientConfig,
    questions: Arc<Questions>,
    producer: Arc<Producer>,
    closing: Arc<AtomicBool>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Kafka {
    /// Connects, and fails with [`LogError::Unavailable`] if no broker answers.
    pub async fn open(config: KafkaConfig) -> Result<Self> {
        let client = config.client()?;
        let questions = Arc::new(Questions::new(client.clone(), config.request_timeout)?);
        let producer = Arc::new(Producer::new(&client, config.request_timeout)?);
        let closing = Arc::<AtomicBool>::default();
        let ended = serve_in_background(&questions, &producer, &closing)?;
        let kafka = Self { config, client, questions, producer, closing, ended: Some(ended) };
        kafka.questions.broker_count().await?;
        Ok(kafka)
    }

    /// Waits until what is on its way has arrived, at most for the request time-out.
    pub async fn close(mut self) -> Result<()> {
        self.closing.store(true, Ordering::Release);
        let Some(ended) = self.ended.take() else { return Ok(()) };
        let waited = timeout(self.config.request_timeout + LOOK_UP * 4, ended).await;
        // taking the clients apart waits for their threads
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
        match waited {
            Ok(_) => Ok(()),
            Err(_) => Err(LogError::UnknownOutcome("records were still on their way to kafka".to_owned())),
        }
    }

    /// What every reader is made with.
    fn reader_settings(&self, group: &str) -> ClientConfig {
        let heartbeat = (self.config.session_timeout / 4).min(Duration::from_secs(3));
        let mut settings = self.client.clone();
        settings
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", millis(self.config.session_timeout));
        unless_set(&mut settings, "heartbeat.interval.ms", &millis(heartbeat));
        // how far the partitions reach comes with them
        unless_set(&mut settings, "statistics.interval.ms", "1000");
        unless_set(&mut settings, "queued.min.messages", READ_AHEAD_RECORDS);
        unless_set(&mut settings, "queued.max.messages.kbytes", READ_AHEAD_KILOBYTES);
        // a second is the default, and would be the pace at which a small queue fills again
        unless_set(&mut settings, "fetch.queue.backoff.ms", "10");
        settings
    }

    fn new_client(&self, group: &str) -> Result<(member::Client, Arc<Partitions>, Arc<Changes>)> {
        let (partitions, changes) = (Arc::new(Partitions::new()), Arc::<Changes>::default());
        let context = MemberContext { partitions: Arc::clone(&partitions), changes: Arc::clone(&changes) };
        let client =
            self.reader_settings(group).create_with_context(context).map_err(error::from_setting_up)?;
        Ok((client, partitions, changes))
    }

    fn service(
        &self,
        group: String,
        partitions: &Arc<Partitions>,
        changes: Arc<Changes>,
        start: StartAt,
    ) -> Service {
        Service {
            partitions: Arc::clone(partitions),
            changes,
            group,
            start,
            request_timeout: self.config.request_timeout,
            handover_timeout: self.config.handover_timeout,
        }
    }

    /// The ends of the partitions, if every offset is within them.
    async fn ends_of(&self, offsets: &Offsets) -> Result<Vec<u64>> {
        let mut ends = Vec::with_capacity(offsets.len());
        let mut seen: Option<(Topic, Vec<Watermarks>)> = None;
        for (partition, offset) in offsets {
            if seen.as_ref().is_none_or(|(topic, _)| *topic != partition.topic) {
                seen = Some((partition.topic.clone(), self.questions.watermarks(&partition.topic).await?));
            }
            let marks =
                seen.as_ref().and_then(|(_, marks)| marks.get(usize::try_from(partition.partition).ok()?));
            let Some(&Watermarks { low, high }) = marks else {
                return Err(LogError::NoSuchPartition(partition.clone()));
            };
            if *offset < low || *offset > high {
                return Err(LogError::OutOfRange {
                    partition: partition.clone(),
                    offset: *offset,
                    low,
                    high,
                });
            }
            ends.push(high);
        }
        Ok(ends)
    }

    fn administration(&self) -> Administration<'_> {
        Administration {
            client: &self.client,
            questions: &self.questions,
            timeout: self.config.request_timeout,
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
    }
}

/// The thread that brings the brokers' answers to the calls that wait for them.
fn serve_in_background(
    questions: &Arc<Questions>,
    producer: &Arc<Producer>,
    closing: &Arc<AtomicBool>,
) -> Result<oneshot::Receiver<()>> {
    let (questions, producer, closing) = (Arc::clone(questions), Arc::clone(producer), Arc::clone(closing));
    let (end, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("kafka".to_owned()).spawn(move || {
        while !closing.load(Ordering::Acquire) {
            producer.serve(LOOK_UP);
            questions.serve();
        }
        producer.flush();
        drop((producer, questions, end));
    });
    thread.map_err(|error| LogError::Unavailable(format!("cannot start a thread for kafka: {error}")))?;
    Ok(ended)
}

#[async_trait]
impl ReadLog for Kafka {
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Consumer>> {
        for topic in &subscription.topics {
            self.questions.partitions(topic).await?;
        }
        let (client, partitions, changes) = self.new_client(&subscription.group)?;
        let topics: Vec<_> = subscription.topics.iter().map(Topic::as_str).collect();
        client.subscribe(&topics).map_err(error::from_setting_up)?;
        let service = self.service(subscription.group, &partitions, changes, subscription.start);
        let (questions, timeout) = (Arc::clone(&self.questions), self.config.request_timeout);
        let member =
            Member::start(client, partitions, questions, timeout, move |client| service.run(client))?;
        Ok(Box::new(member))
    }

    async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>> {
        let ends = self.ends_of(&offsets).await?;
        // librdkafka wants a name to assign partitions; no group of it is ever joined or committed to
        let name = format!("{}-reader", self.config.client_id);
        let (client, partitions, changes) = self.new_client(&name)?;
        let service = self.service(name, &partitions, changes, StartAt::Oldest);
        let (questions, timeout) = (Arc::clone(&self.questions), self.config.request_timeout);
        let held_by = Arc::clone(&partitions);
        let member = Member::start(client, partitions, questions, timeout, move |client| {
            let held: Option<Vec<_>> = offsets
                .iter()
                .zip(ends)
                .map(|((at, start), end)| Some((at.clone(), hold(client, &held_by, at, *start, end)?)))
                .collect();
            let list = list_of(offsets.iter().map(|(partition, offset)| (partition, native(*offset))));
            match (held, list.and_then(|list| client.assign(&list))) {
                (Some(held), Ok(())) => held_by.add(held, false),
                (_, assigned) => {
                    held_by
                        .report(LogError::Unavailable(format!("cannot take the partitions: {assigned:?}")));
                }
            }
            service.run(client);
        })?;
        Ok(Box::new(member))
    }

    async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>> {
        self.questions.watermarks(topic).await
    }

    async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets> {
        self.questions.offsets_at(topic, time).await
    }

    async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets> {
        self.questions.committed(group, topic).await
    }

    async fn reset_group(&self, group: &str, offsets: &Offsets) -> Result<()> {
        self.questions.reset_group(group, offsets).await
    }
}

#[async_trait]
impl WriteLog for Kafka {
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>> {
        if records.is_empty() {
            return Vec::new();
        }
        if let Err(error) = self.questions.require_topic(topic).await {
            return records.iter().map(|_| Err(same(&error))).collect();
        }
        let answers = self.producer.produce(topic, &records).await;
        if answers.iter().any(|answer| matches!(answer, Err(LogError::NoSuchTopic { .. }))) {
            self.questions.forget_topic(topic);
        }
        answers
    }
}

#[async_trait]
impl AdminLog for Kafka {
    async fn topics(&self) -> Result<Vec<Topic>> {
        self.questions.topics().await
    }

    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicCreated> {
        self.administration().create(spec).await
    }

    async fn describe_topic(&self, topic: &Topic) -> Result<Option<TopicDescription>> {
        self.administration().describe(topic).await
    }

    async fn delete_topic(&self, topic: &Topic) -> Result<()> {
        self.administration().delete(topic).await
    }
}

/// An error that befell all records of a call, once more.
fn same(error: &LogError) -> LogError {
    match error {
        LogError::NoSuchTopic { topic } => LogError::NoSuchTopic { topic: topic.clone() },
        LogError::NotAllowed { access, name } => LogError::NotAllowed { access, name: name.clone() },
        LogError::Invalid(reason) => LogError::Invalid(reason.clone()),
        LogError::Unavailable(reason) => LogError::Unavailable(reason.clone()),
        other => LogError::Unavailable(other.to_string()),
    }
}
