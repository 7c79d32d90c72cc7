//! Questions to the cluster that change nothing in it.
//!
//! librdkafka answers them by blocking, so each is asked on a blocking thread and gives up after the request
//! time-out. One client without a group asks them all; what belongs to a group is asked by a client of that
//! group that lives for one question and never joins.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::context::Quiet;
use super::error::{from_asking, from_setting_up};
use crate::log::{LogError, Offsets, Result, Topic, TopicPartition, Watermarks};

/// News of a topic reach all brokers of a cluster within some milliseconds.
const ASK_AGAIN_FOR_A_TOPIC: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// As librdkafka counts partitions.
pub(super) fn native_partition(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

pub(super) struct Questions {
    client: ClientConfig,
    consumer: Arc<BaseConsumer<Quiet>>,
    timeout: Duration,
    /// Topics that were there when last asked, so that a record to one costs no question.
    known: Mutex<HashSet<Topic>>,
}

/// A topic as the brokers describe it.
pub(super) struct TopicShape {
    pub(super) partitions: u32,
    pub(super) replication: u16,
    /// Whether every partition has a leader.
    pub(super) ready: bool,
}

impl Questions {
    pub(super) fn new(client: ClientConfig, timeout: Duration) -> Result<Self> {
        let consumer = client.create_with_context(Quiet).map_err(from_setting_up)?;
        Ok(Self { client, consumer: Arc::new(consumer), timeout, known: Mutex::default() })
    }

    /// Hands what the client noticed by itself to its context; to be called now and then.
    pub(super) fn serve(&self) {
        // no record can come: this client reads no partition
        let _ = self.consumer.poll(Duration::from_millis(1));
    }

    pub(super) async fn broker_count(&self) -> Result<usize> {
        self.ask("list the brokers", |consumer, timeout| {
            Ok(consumer.fetch_metadata(None, timeout)?.brokers().len())
        })
        .await
    }

    pub(super) async fn topics(&self) -> Result<Vec<Topic>> {
        let mut topics = self
            .ask("list the topics", |consumer, timeout| {
                let metadata = consumer.fetch_metadata(None, timeout)?;
                // two underscores mark what the brokers keep for themselves
                let names = metadata.topics().iter().map(MetadataTopic::name);
                Ok(names.filter(|name| !name.starts_with("__")).map(Topic::from).collect::<Vec<_>>())
            })
            .await?;
        topics.sort();
        Ok(topics)
    }

    /// None if there is no such topic.
    pub(super) async fn topic(&self, topic: &Topic) -> Result<Option<TopicShape>> {
        let name = topic.clone();
        let shape = self
            .ask(&format!("look at topic '{topic}'"), move |consumer, timeout| {
                shape_of(consumer, &name, timeout)
            })
            .await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if shape.is_some() {
            known.insert(topic.clone())
        } else {
            known.remove(topic)
        };
        Ok(shape)
    }

    /// The topic's partitions, of which there are some. That there is no such topic stops pipelines, so it is
    /// asked again: a broker that has not heard of a new topic yet says the same.
    pub(super) async fn partitions(&self, topic: &Topic) -> Result<u32> {
        for pause in ASK_AGAIN_FOR_A_TOPIC {
            if let Some(shape) = self.topic(topic).await? {
                return Ok(shape.partitions);
            }
            tokio::time::sleep(pause).await;
        }
        match self.topic(topic).await? {
            Some(shape) => Ok(shape.partitions),
            None => Err(LogError::NoSuchTopic { topic: topic.clone() }),
        }
    }

    /// Asks only if the topic was not seen before.
    pub(super) async fn require_topic(&self, topic: &Topic) -> Result<()> {
        if self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(topic) {
            return Ok(());
        }
        self.partitions(topic).await.map(drop)
    }

    pub(super) fn forget_topic(&self, topic: &Topic) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }

    pub(super) async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>> {
        let partitions = self.partitions(topic).await?;
        let all: Vec<_> = (0..partitions).map(|partition| TopicPartition::new(topic, partition)).collect();
        self.ask(&format!("ask what topic '{topic}' holds"), move |consumer, timeout| {
            watermarks_of(consumer, &all, timeout)
        })
        .await
    }

    pub(super) async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets> {
        let ends = self.watermarks(topic).await?;
        let partitions: Vec<_> = (0..).zip(&ends).map(|(n, _)| TopicPartition::new(topic, n)).collect();
        let at = Offset::Offset(millis_at_or_after(time));
        let found = self
            .ask(&format!("find a time in topic '{topic}'"), move |consumer, timeout| {
                let list = list_of(partitions.iter().map(|partition| (partition, at)))?;
                Ok(offsets_in(&consumer.offsets_for_times(list, timeout)?))
            })
            .await?;
        let found_or_end = |(n, marks): (u32, &Watermarks)| {
            let partition = TopicPartition::new(topic, n);
            let offset = found.get(&partition).copied().unwrap_or(marks.high);
            (partition, offset)
        };
        Ok((0..).zip(&ends).map(found_or_end).collect())
    }

    pub(super) async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets> {
        let partitions = self.partitions(topic).await?;
        let topic = topic.clone();
        self.ask_of_group(group, "ask how far group", move |consumer, timeout| {
            let all: Vec<_> =
                (0..partitions).map(|partition| TopicPartition::new(&topic, partition)).collect();
            let list = list_of(all.iter().map(|partition| (partition, Offset::Invalid)))?;
            Ok(offsets_in(&consumer.committed_offsets(list, timeout)?))
        })
        .await
    }

    pub(super) async fn reset_group(&self, group: &str, offsets: &Offsets) -> Result<()> {
        let topics: HashSet<_> = offsets.keys().map(|partition| &partition.topic).collect();
        for topic in topics {
            let partitions = self.partitions(topic).await?;
            if let Some(missing) = offsets.keys().find(|at| at.topic == *topic && at.partition >= partitions)
            {
                return Err(LogError::NoSuchPartition(missing.clone()));
            }
        }
        if offsets.is_empty() {
            return Ok(());
        }
        let name = group.to_owned();
        let look = format!("look at group '{group}'");
        if self.ask(&look, move |consumer, timeout| Ok(has_members(consumer, &name, timeout))).await? {
            return Err(in_use(group));
        }
        let offsets = offsets.clone();
        self.ask_of_group(group, "reset group", move |consumer, _| {
            let list = list_of(offsets.iter().map(|(partition, offset)| (partition, native(*offset))))?;
            consumer.commit(&list, CommitMode::Sync)
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        doing: &str,
        question: impl FnOnce(&BaseConsumer<Quiet>, Duration) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T> {
        let (consumer, timeout) = (Arc::clone(&self.consumer), self.timeout);
        let answer = tokio::task::spawn_blocking(move || question(&consumer, timeout)).await;
        answered(answer)?.map_err(|error| from_asking(&error, doing))
    }

    async fn ask_of_group<T: Send + 'static>(
        &self,
        group: &str,
        doing: &str,
        question: impl FnOnce(&BaseConsumer<Quiet>, Duration) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T> {
        let mut client = self.client.clone();
        client.set("group.id", group).set("enable.auto.commit", "false");
        let timeout = self.timeout;
        let answer = tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer<Quiet> = client.create_with_context(Quiet)?;
            question(&consumer, timeout)
        })
        .await;
        answered(answer)?.map_err(|error| match error.rdkafka_error_code() {
            // only somebody outside of a group asks here
            Some(Code::NonEmptyGroup | Code::UnknownMemberId | Code::IllegalGeneration) => in_use(group),
            _ => from_asking(&error, &format!("{doing} '{group}'")),
        })
    }
}

fn in_use(group: &str) -> LogError {
    LogError::Invalid(format!(
        "group '{group}' has members; stop the pipelines that read with it, then reset it"
    ))
}

fn answered<T>(answer: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    answer.map_err(|_| LogError::Unavailable("the process is shutting down".to_owned()))
}

fn shape_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &Topic,
    timeout: Duration,
) -> KafkaResult<Option<TopicShape>> {
    let metadata = consumer.fetch_metadata(Some(topic.as_str()), timeout)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic.as_str()) else {
        return Ok(None);
    };
    match found.error() {
        None | Some(RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE) => {}
        Some(
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION,
        ) => return Ok(None),
        Some(error) => return Err(KafkaError::MetadataFetch(error.into())),
    }
    let partitions = found.partitions();
    if partitions.is_empty() {
        return Err(KafkaError::MetadataFetch(Code::LeaderNotAvailable));
    }
    let replicas = partitions.iter().map(|partition| partition.replicas().len()).min();
    Ok(Some(TopicShape {
        partitions: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
        replication: replicas.and_then(|count| u16::try_from(count).ok()).unwrap_or(u16::MAX),
        ready: partitions.iter().all(|partition| partition.leader() >= 0),
    }))
}

/// In the order of `partitions`. Two requests per broker, however many partitions there are.
pub(super) fn watermarks_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> KafkaResult<Vec<Watermarks>> {
    let ask = |end: Offset| {
        let list = list_of(partitions.iter().map(|partition| (partition, end)))?;
        // with these in the place of a time, the brokers answer with the ends of the partitions
        KafkaResult::Ok(offsets_in(&consumer.offsets_for_times(list, timeout)?))
    };
    let (lows, highs) = (ask(Offset::Beginning)?, ask(Offset::End)?);
    let marks = partitions.iter().map(|partition| {
        let low = lows.get(partition).copied();
        let high = highs.get(partition).copied();
        low.zip(high).map(|(low, high)| Watermarks { low, high })
    });
    marks.collect::<Option<_>>().ok_or(KafkaError::OffsetFetch(Code::LeaderNotAvailable))
}

/// Not every cluster tells who is in a group; those that do not refuse the reset itself.
fn has_members<C: ConsumerContext>(consumer: &BaseConsumer<C>, group: &str, timeout: Duration) -> bool {
    let Ok(list) = consumer.fetch_group_list(Some(group), timeout) else { return false };
    list.groups().iter().any(|found| found.name() == group && !found.members().is_empty())
}

pub(super) fn list_of<'a>(
    offsets: impl Iterator<Item = (&'a TopicPartition, Offset)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(partition.topic.as_str(), native_partition(partition.partition), offset)?;
    }
    Ok(list)
}

/// Those of the list that have an offset.
pub(super) fn offsets_in(list: &TopicPartitionList) -> Offsets {
    let with_offset = list.elements().into_iter().filter_map(|element| {
        let Offset::Offset(offset) = element.offset() else { return None };
        element.error().ok()?;
        Some((partition_of(element.topic(), element.partition()), u64::try_from(offset).ok()?))
    });
    with_offset.collect()
}

pub(super) fn partition_of(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition { topic: Topic::from(topic), partition: u32::try_from(partition).unwrap_or(u32::MAX) }
}

pub(super) fn native(offset: u64) -> Offset {
    Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX))
}

/// Records carry whole milliseconds: one of 5 ms is not at or after 5.5 ms.
fn millis_at_or_after(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_what_records_can_carry() {
        let at = |nanos| millis_at_or_after(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos));
        assert_eq!([at(0), at(1), at(5_000_000), at(5_000_001)], [0, 1, 5, 6]);
        assert_eq!(millis_at_or_after(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
    }

    #[test]
    fn partitions_without_an_offset_are_absent() {
        let topic = Topic::from("t");
        let partitions = [TopicPartition::new(&topic, 0), TopicPartition::new(&topic, 1)];
        let list =
            list_of([(&partitions[0], Offset::Invalid), (&partitions[1], native(7))].into_iter()).unwrap();
        assert_eq!(offsets_in(&list), Offsets::from([(partitions[1].clone(), 7)]));
    }
}
