//! A cluster that fails when told to, and what the tests do with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use courant_conformance::LIMIT;
use courant_conformance::servers::MockKafka;
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::{
    Appended, Consumer, Fetch, LogError, NewRecord, Offsets, ReadLog, Reader, StartAt, Subscription, Topic,
    TopicPartition, WriteLog,
};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Reply};
use tokio::time::timeout;

/// Short, so that giving up can be seen; long enough for a busy machine to answer in.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// A cluster of one broker with one topic.
pub(crate) struct Faulty {
    pub(crate) cluster: MockKafka,
    pub(crate) kafka: Arc<Kafka>,
    pub(crate) topic: Topic,
}

impl Faulty {
    pub(crate) async fn new(partitions: u32) -> Self {
        Self::with(partitions, |_| {}).await
    }

    pub(crate) async fn with(partitions: u32, change: impl FnOnce(&mut KafkaConfig)) -> Self {
        let cluster = MockKafka::start(1);
        let topic = Topic::from("events");
        cluster.create(&topic, partitions);
        let mut config = KafkaConfig { request_timeout: SHORT, ..cluster.config() };
        change(&mut config);
        let kafka = Arc::new(Kafka::open(config).await.expect("the mock cluster answers"));
        Self { cluster, kafka, topic }
    }

    pub(crate) fn answer(&self, api: Api, replies: &'static [Reply]) {
        self.cluster.with(move |cluster| cluster.request_errors(api, replies));
    }

    pub(crate) fn down(&self) {
        self.cluster.with(|cluster| cluster.broker_down(-1)).expect("brokers go down");
    }

    pub(crate) fn up(&self) {
        self.cluster.with(|cluster| cluster.broker_up(-1)).expect("brokers come up");
    }

    pub(crate) fn round_trip(&self, delay: Duration) {
        self.cluster
            .with(move |cluster| cluster.broker_round_trip_time(-1, delay))
            .expect("brokers slow down");
    }

    pub(crate) async fn write(&self, numbers: std::ops::Range<u32>) -> Vec<Result<Appended, LogError>> {
        let limit = LIMIT.min(SHORT * 5);
        timeout(limit, self.kafka.produce(&self.topic, numbered(numbers)))
            .await
            .expect("produce answers in time")
    }

    /// All numbers of partition 0, in order.
    pub(crate) async fn numbers(&self) -> Vec<u32> {
        let high = self.kafka.watermarks(&self.topic).await.expect("watermarks are answered")[0].high;
        let partition = TopicPartition::new(&self.topic, 0);
        let mut reader =
            self.kafka.read_from(Offsets::from([(partition, 0)])).await.expect("a reader starts");
        let mut numbers = Vec::new();
        while (numbers.len() as u64) < high {
            numbers.extend(records(&mut *reader).await.into_iter().map(|(_, number)| number));
        }
        numbers
    }

    pub(crate) async fn join(&self, group: &str) -> Box<dyn Consumer> {
        join(&self.kafka, group, &self.topic, StartAt::Oldest).await
    }

    pub(crate) async fn join_at_end(&self, group: &str) -> Box<dyn Consumer> {
        join(&self.kafka, group, &self.topic, StartAt::Latest).await
    }

    pub(crate) fn at(&self, offset: u64) -> Offsets {
        Offsets::from([(TopicPartition::new(&self.topic, 0), offset)])
    }
}

/// Records of one key.
pub(crate) fn numbered(numbers: std::ops::Range<u32>) -> Vec<NewRecord> {
    let record = |number: u32| NewRecord {
        key: Some(Bytes::from_static(b"key")),
        payload: number.to_string().into(),
        headers: Vec::new(),
    };
    numbers.map(record).collect()
}

async fn join(kafka: &Kafka, group: &str, topic: &Topic, start: StartAt) -> Box<dyn Consumer> {
    let topics = vec![topic.clone()];
    let subscription = Subscription { group: group.to_owned(), topics, start };
    kafka.subscribe(subscription).await.expect("a group is joined")
}

pub(crate) async fn fetch<R: Reader + ?Sized>(reader: &mut R) -> Result<Fetch, LogError> {
    timeout(LIMIT, reader.fetch(100)).await.expect("a fetch brings something in time")
}

/// The next records with their offsets, past everything else that comes.
pub(crate) async fn records<R: Reader + ?Sized>(reader: &mut R) -> Vec<(u64, u32)> {
    loop {
        match fetch(reader).await {
            Ok(Fetch::Records { records, .. }) => {
                let number = |payload: &Bytes| std::str::from_utf8(payload).ok()?.parse().ok();
                let numbered = records.iter().map(|record| Some((record.offset, number(&record.payload)?)));
                return numbered.collect::<Option<_>>().expect("every payload is a number");
            }
            Ok(_) | Err(LogError::Unavailable(_)) => {}
            Err(other) => panic!("a fetch failed: {other}"),
        }
    }
}

pub(crate) async fn assigned(member: &mut dyn Consumer) -> BTreeMap<TopicPartition, u64> {
    loop {
        match fetch(member).await {
            Ok(Fetch::Assigned(new)) => {
                return new.into_iter().map(|got| (got.partition, got.start)).collect();
            }
            Ok(_) | Err(LogError::Unavailable(_)) => {}
            Err(other) => panic!("a fetch failed: {other}"),
        }
    }
}

pub(crate) fn multi_threaded<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async { timeout(LIMIT * 2, test).await.expect("the test hangs") });
    runtime.shutdown_background();
}
