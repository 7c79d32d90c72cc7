//! What a case works with.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::log::{
    Appended, Consumer, Fetch, Log, LogError, LogRecord, NewRecord, Offsets, Reader, Retention, StartAt,
    Subscription, Topic, TopicPartition, TopicSpec,
};
use courant_connectors::store::Remedy;
use tokio::time::{Instant, timeout};

use crate::LIMIT;

/// A log to be tried.
#[async_trait]
pub trait LogServer: Send + Sync + 'static {
    /// A client of its own; all clients see the same log.
    async fn log(&self) -> Arc<dyn Log>;

    /// Topics are not made by every server the same way.
    async fn create_topic(&self, spec: &TopicSpec) {
        self.log().await.create_topic(spec).await.expect("a topic is created");
    }
}

pub struct Bench {
    pub server: Arc<dyn LogServer>,
    pub log: Arc<dyn Log>,
    case: &'static str,
    names: AtomicU32,
}

/// No case takes this long, even on a busy machine: one that does hangs.
const CASE_LIMIT: Duration = Duration::from_secs(180);

/// How long nothing has to happen to be taken for never. Too short only hides a failure, it makes none.
pub(super) const QUIET: Duration = Duration::from_millis(400);

/// Runs a case in a runtime of its own.
pub fn run<F: Future<Output = ()>>(
    server: Arc<impl LogServer>,
    case: &'static str,
    body: impl FnOnce(Bench) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        let log = server.log().await;
        let bench = Bench { server, log, case, names: AtomicU32::new(0) };
        timeout(CASE_LIMIT, body(bench)).await.unwrap_or_else(|_| panic!("{case} hangs"));
    });
    // what a client does on blocking threads after the case is nobody's concern
    runtime.shutdown_background();
}

impl Bench {
    /// A name that no other case and no other run has.
    pub fn name(&self) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}-{:08x}", self.case, rand::random::<u32>())
    }

    pub async fn topic(&self, partitions: u32) -> Topic {
        let name = Topic::from(self.name().as_str());
        let spec = TopicSpec { name, partitions, retention: Retention::default(), replication: 1 };
        self.server.create_topic(&spec).await;
        spec.name
    }

    /// Appends records that must not fail.
    #[track_caller]
    pub fn write(&self, topic: &Topic, records: Vec<NewRecord>) -> impl Future<Output = Vec<Appended>> {
        write(&self.log, topic, records)
    }

    /// Appends `payloads` under one key.
    pub async fn write_numbers(
        &self,
        topic: &Topic,
        key: &str,
        numbers: std::ops::Range<u32>,
    ) -> Vec<Appended> {
        self.write(topic, numbers.map(|number| record(key, &number.to_string())).collect()).await
    }

    pub async fn join(&self, group: &str, topic: &Topic) -> Box<dyn Consumer> {
        join(&self.log, group, topic, StartAt::Oldest).await
    }

    pub async fn read(&self, topic: &Topic, partition: u32, offset: u64) -> Box<dyn Reader> {
        let from = Offsets::from([(TopicPartition::new(topic, partition), offset)]);
        self.log.read_from(from).await.expect("a reader starts")
    }

    /// Everything the topic holds, by partition.
    pub async fn content(&self, topic: &Topic) -> BTreeMap<u32, Vec<LogRecord>> {
        let marks = self.log.watermarks(topic).await.expect("watermarks are answered");
        let starts = (0..).zip(&marks).map(|(n, marks)| (TopicPartition::new(topic, n), marks.low)).collect();
        let count: u64 = marks.iter().map(|marks| marks.high - marks.low).sum();
        let mut reader = self.log.read_from(starts).await.expect("a reader starts");
        let mut content = BTreeMap::new();
        for (from, record) in take(&mut *reader, usize::try_from(count).unwrap()).await {
            content.entry(from.partition).or_insert_with(Vec::new).push(record);
        }
        content
    }
}

pub(super) async fn write(log: &Arc<dyn Log>, topic: &Topic, records: Vec<NewRecord>) -> Vec<Appended> {
    let count = records.len();
    let answers = log.produce(topic, records).await;
    assert_eq!(answers.len(), count, "one answer per record");
    answers.into_iter().map(|answer| answer.expect("a record is appended")).collect()
}

pub(super) async fn join(
    log: &Arc<dyn Log>,
    group: &str,
    topic: &Topic,
    start: StartAt,
) -> Box<dyn Consumer> {
    let subscription = Subscription { group: group.to_owned(), topics: vec![topic.clone()], start };
    log.subscribe(subscription).await.expect("a group is joined")
}

pub(super) fn record(key: &str, payload: &str) -> NewRecord {
    NewRecord {
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        headers: Vec::new(),
    }
}

pub(super) fn text(record: &LogRecord) -> &str {
    std::str::from_utf8(&record.payload).expect("the payload is text")
}

/// The next thing a reader brings.
#[track_caller]
pub(super) fn next<R: Reader + ?Sized>(
    reader: &mut R,
    max: usize,
) -> impl Future<Output = Fetch> + use<'_, R> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(LIMIT, reader.fetch(max)).await {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(error)) => panic!("a fetch failed at {caller}: {error}"),
            Err(_) => panic!("nothing came within {LIMIT:?} at {caller}"),
        }
    }
}

/// The next `count` records; changes of the assignment in between are agreed to.
#[track_caller]
pub(super) fn take<R: Reader + ?Sized>(
    reader: &mut R,
    count: usize,
) -> impl Future<Output = Vec<(TopicPartition, LogRecord)>> + use<'_, R> {
    let caller = std::panic::Location::caller();
    async move {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let wanted = count - taken.len();
            match timeout(LIMIT, reader.fetch(wanted)).await {
                Ok(Ok(Fetch::Records { from, records })) => {
                    assert!(
                        !records.is_empty() && records.len() <= wanted,
                        "{} records at {caller}",
                        records.len()
                    );
                    taken.extend(records.into_iter().map(|record| (from.clone(), record)));
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => panic!("a fetch failed after {} records at {caller}: {error}", taken.len()),
                Err(_) => panic!("{} of {count} records within {LIMIT:?} at {caller}", taken.len()),
            }
        }
        taken
    }
}

/// That a reader brings no record. Changes of the assignment are agreed to.
#[track_caller]
pub(super) fn nothing_comes<R: Reader + ?Sized>(reader: &mut R) -> impl Future<Output = ()> + use<'_, R> {
    let caller = std::panic::Location::caller();
    async move {
        let records = async {
            loop {
                if let Fetch::Records { records, .. } = reader.fetch(1).await.expect("a fetch works") {
                    return records;
                }
            }
        };
        if let Ok(records) = timeout(QUIET, records).await {
            panic!("unexpected records at {caller}: {records:?}");
        }
    }
}

/// Fetches until partitions are assigned.
pub(super) async fn assigned<R: Reader + ?Sized>(reader: &mut R) -> Vec<courant_connectors::log::Assigned> {
    loop {
        if let Fetch::Assigned(partitions) = next(reader, 1).await
            && !partitions.is_empty()
        {
            return partitions;
        }
    }
}

/// Commits, again if the log says that it may work later, as while partitions move.
pub(super) async fn commit(member: &mut dyn Consumer, offsets: &Offsets) -> Result<(), LogError> {
    let started = Instant::now();
    loop {
        match member.commit(offsets).await {
            Err(error) if error.remedy() == Remedy::Retry && started.elapsed() < LIMIT => {}
            done => return done,
        }
    }
}
