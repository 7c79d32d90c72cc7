//! The log on Kafka while brokers fail: nothing hangs, errors say what happened, and everything goes on without a
//! restart. Brokers are librdkafka's mock cluster, one for each test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
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
use tokio::time::{Instant, timeout};

/// Short, so that giving up can be seen; long enough for a busy machine to answer in.
const SHORT: Duration = Duration::from_secs(2);

struct Faulty {
    cluster: MockKafka,
    kafka: Arc<Kafka>,
    topic: Topic,
}

impl Faulty {
    async fn new(partitions: u32) -> Self {
        Self::with(partitions, |_| {}).await
    }

    async fn with(partitions: u32, change: impl FnOnce(&mut KafkaConfig)) -> Self {
        let cluster = MockKafka::start(1);
        let topic = Topic::from("events");
        cluster.create(&topic, partitions);
        let mut config = KafkaConfig { request_timeout: SHORT, ..cluster.config() };
        change(&mut config);
        let kafka = Arc::new(Kafka::open(config).await.expect("the mock cluster answers"));
        Self { cluster, kafka, topic }
    }

    fn answer(&self, api: Api, replies: &'static [Reply]) {
        self.cluster.with(move |cluster| cluster.request_errors(api, replies));
    }

    fn down(&self) {
        self.cluster.with(|cluster| cluster.broker_down(-1)).expect("brokers go down");
    }

    fn up(&self) {
        self.cluster.with(|cluster| cluster.broker_up(-1)).expect("brokers come up");
    }

    fn round_trip(&self, delay: Duration) {
        self.cluster
            .with(move |cluster| cluster.broker_round_trip_time(-1, delay))
            .expect("brokers slow down");
    }

    async fn write(&self, numbers: std::ops::Range<u32>) -> Vec<Result<Appended, LogError>> {
        let records = numbers.map(|number| NewRecord {
            key: Some(Bytes::from_static(b"key")),
            payload: number.to_string().into(),
            headers: Vec::new(),
        });
        let limit = LIMIT.min(SHORT * 5);
        timeout(limit, self.kafka.produce(&self.topic, records.collect()))
            .await
            .expect("produce answers in time")
    }

    /// All numbers of partition 0, in order.
    async fn numbers(&self) -> Vec<u32> {
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

    async fn join(&self, group: &str) -> Box<dyn Consumer> {
        join(&self.kafka, group, &self.topic).await
    }

    fn at(&self, offset: u64) -> Offsets {
        Offsets::from([(TopicPartition::new(&self.topic, 0), offset)])
    }
}

async fn join(kafka: &Kafka, group: &str, topic: &Topic) -> Box<dyn Consumer> {
    let topics = vec![topic.clone()];
    let subscription = Subscription { group: group.to_owned(), topics, start: StartAt::Oldest };
    kafka.subscribe(subscription).await.expect("a group is joined")
}

async fn fetch<R: Reader + ?Sized>(reader: &mut R) -> Result<Fetch, LogError> {
    timeout(LIMIT, reader.fetch(100)).await.expect("a fetch brings something in time")
}

/// The next records with their offsets, past everything else that comes.
async fn records<R: Reader + ?Sized>(reader: &mut R) -> Vec<(u64, u32)> {
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

async fn assigned(member: &mut dyn Consumer) -> BTreeMap<TopicPartition, u64> {
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

fn multi_threaded<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async { timeout(LIMIT * 2, test).await.expect("the test hangs") });
    runtime.shutdown_background();
}

#[test]
fn passing_errors_of_brokers_lose_reorder_and_double_nothing() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| config.request_timeout = LIMIT).await;
        for start in (0..500).step_by(50) {
            faulty.answer(
                Api::Produce,
                &[
                    Reply::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
                    Reply::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
                    Reply::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
                    Reply::RD_KAFKA_RESP_ERR__TRANSPORT,
                ],
            );
            let records = (start..start + 50).map(|number: u32| NewRecord {
                key: Some(Bytes::from_static(b"key")),
                payload: number.to_string().into(),
                headers: Vec::new(),
            });
            let answers = faulty.kafka.produce(&faulty.topic, records.collect()).await;
            for (offset, answer) in (u64::from(start)..).zip(answers) {
                assert_eq!(answer.expect("passing errors are retried").offset, offset);
            }
        }
        assert_eq!(faulty.numbers().await, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn a_full_queue_makes_callers_wait() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| {
            config.request_timeout = LIMIT;
            config.settings.insert("queue.buffering.max.messages".to_owned(), "20".to_owned());
        })
        .await;
        faulty.round_trip(Duration::from_millis(10));
        let records = (0..500).map(|number: u32| NewRecord {
            key: Some(Bytes::from_static(b"key")),
            payload: number.to_string().into(),
            headers: Vec::new(),
        });
        let answers = faulty.kafka.produce(&faulty.topic, records.collect()).await;
        assert!(answers.iter().all(Result::is_ok), "{:?}", answers.iter().find(|answer| answer.is_err()));
        assert_eq!(faulty.numbers().await, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn a_slow_broker_is_waited_for_once_per_batch() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| config.request_timeout = LIMIT).await;
        faulty.round_trip(Duration::from_millis(200));
        let started = Instant::now();
        assert!(faulty.write(0..200).await.iter().all(Result::is_ok));
        assert!(
            started.elapsed() < Duration::from_millis(200) * 50,
            "200 records took {:?}",
            started.elapsed()
        );
        faulty.round_trip(Duration::ZERO);
        assert_eq!(faulty.numbers().await, (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn answers_that_come_too_late_are_unknown_and_retries_keep_the_order() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        assert!(faulty.write(0..3).await.iter().all(Result::is_ok));
        faulty.down();
        let started = Instant::now();
        let answers = faulty.write(3..6).await;
        assert!(
            answers.iter().all(|answer| matches!(answer, Err(LogError::UnknownOutcome(_)))),
            "{answers:?}"
        );
        assert!(started.elapsed() < SHORT * 3, "it took {:?}", started.elapsed());
        // what is still on its way is not sent once more with every retry
        for _ in 0..2 {
            let answers = faulty.write(3..6).await;
            assert!(
                answers.iter().all(|answer| matches!(answer, Err(LogError::Unavailable(_)))
                    || matches!(answer, Err(LogError::EarlierFailed))),
                "{answers:?}"
            );
        }
        faulty.up();
        let started = Instant::now();
        while !faulty.write(3..6).await.iter().all(Result::is_ok) {
            assert!(started.elapsed() < LIMIT, "nothing is appended after the brokers are back");
        }
        assert_eq!(faulty.numbers().await, [0, 1, 2, 3, 4, 5, 3, 4, 5]);
    });
}

#[test]
fn questions_to_a_dead_cluster_fail_in_time_and_work_when_it_is_back() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        faulty.down();
        let started = Instant::now();
        let error = faulty.kafka.watermarks(&faulty.topic).await.unwrap_err();
        assert!(matches!(error, LogError::Unavailable(_)), "{error:?}");
        let error = faulty.kafka.committed("group", &faulty.topic).await.unwrap_err();
        assert!(matches!(error, LogError::Unavailable(_)), "{error:?}");
        let config = KafkaConfig { request_timeout: SHORT, ..faulty.cluster.config() };
        let error = Kafka::open(config).await.map(drop).unwrap_err();
        assert!(matches!(error, LogError::Unavailable(_)), "{error:?}");
        assert!(started.elapsed() < SHORT * 6, "three questions took {:?}", started.elapsed());
        faulty.up();
        let started = Instant::now();
        while let Err(error) = faulty.kafka.watermarks(&faulty.topic).await {
            assert!(started.elapsed() < LIMIT, "{error}");
        }
    });
}

#[test]
fn a_reader_is_told_of_a_dead_cluster_and_goes_on_when_it_is_back() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        assert!(faulty.write(0..3).await.iter().all(Result::is_ok));
        let mut member = faulty.join("group").await;
        assert_eq!(records(&mut *member).await.len(), 3);
        faulty.down();
        let error = loop {
            match fetch(&mut *member).await {
                Err(error) => break error,
                Ok(Fetch::Lost(_) | Fetch::Assigned(_) | Fetch::Revoked(_)) => {}
                Ok(other) => panic!("nothing can come: {other:?}"),
            }
        };
        assert!(matches!(error, LogError::Unavailable(_)), "{error:?}");
        faulty.up();
        let started = Instant::now();
        while !faulty.write(3..4).await.iter().all(Result::is_ok) {
            assert!(started.elapsed() < LIMIT, "nothing is appended after the brokers are back");
        }
        let again = loop {
            // those before may come again: they were never committed
            if let Some(found) = records(&mut *member).await.into_iter().find(|(_, number)| *number == 3) {
                break found;
            }
        };
        assert_eq!(again, (3, 3));
        member.commit(&faulty.at(4)).await.expect("a commit works again");
        assert_eq!(faulty.kafka.committed("group", &faulty.topic).await.unwrap(), faulty.at(4));
    });
}

#[test]
fn leaving_while_the_brokers_are_away_does_not_hang() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        let mut member = faulty.join("group").await;
        assigned(&mut *member).await;
        faulty.down();
        let started = Instant::now();
        let left = member.close().await;
        assert!(matches!(left, Ok(()) | Err(LogError::Unavailable(_))), "{left:?}");
        assert!(started.elapsed() < SHORT * 3, "leaving took {:?}", started.elapsed());
        let kafka = Arc::into_inner(faulty.kafka).expect("nobody else has it");
        kafka.close().await.expect("nothing is on its way");
        assert!(started.elapsed() < SHORT * 5, "closing took {:?}", started.elapsed());
    });
}

#[test]
fn passing_errors_of_the_coordinator_do_not_lose_a_commit() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| {
            config.request_timeout = LIMIT;
            // a member that finds no coordinator sends no signs of life either
            config.session_timeout = LIMIT;
        })
        .await;
        assert!(faulty.write(0..5).await.iter().all(Result::is_ok));
        let mut member = faulty.join("group").await;
        records(&mut *member).await;
        faulty.answer(
            Api::OffsetCommit,
            &[
                Reply::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
                Reply::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS,
                Reply::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
                Reply::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
                Reply::RD_KAFKA_RESP_ERR__TRANSPORT,
            ],
        );
        member.commit(&faulty.at(4)).await.expect("passing errors are retried");
        assert_eq!(faulty.kafka.committed("group", &faulty.topic).await.unwrap(), faulty.at(4));

        faulty.answer(Api::OffsetCommit, &[Reply::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED]);
        let error = member.commit(&faulty.at(5)).await.unwrap_err();
        assert!(matches!(error, LogError::NotAllowed { .. }), "{error:?}");
        member.commit(&faulty.at(5)).await.expect("what was refused can be committed later");
        assert_eq!(faulty.kafka.committed("group", &faulty.topic).await.unwrap(), faulty.at(5));
    });
}

#[test]
fn where_to_start_is_asked_until_it_is_answered() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        assert!(faulty.write(0..5).await.iter().all(Result::is_ok));
        let mut member = faulty.join("group").await;
        records(&mut *member).await;
        member.commit(&faulty.at(3)).await.unwrap();
        member.close().await.unwrap();
        // an unanswered question must not be taken for a group that never committed
        faulty.answer(Api::OffsetFetch, &[Reply::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 3]);
        faulty.answer(Api::ListOffsets, &[Reply::RD_KAFKA_RESP_ERR_UNKNOWN; 2]);
        let mut member = faulty.join("group").await;
        assert_eq!(assigned(&mut *member).await[&TopicPartition::new(&faulty.topic, 0)], 3);
        assert_eq!(records(&mut *member).await, [(3, 3), (4, 4)]);
    });
}

#[test]
fn a_group_that_points_outside_of_the_log_is_told_so() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        assert!(faulty.write(0..5).await.iter().all(Result::is_ok));
        faulty.kafka.reset_group("group", &faulty.at(100)).await.unwrap();
        let mut member = faulty.join("group").await;
        let error = loop {
            match fetch(&mut *member).await {
                Ok(Fetch::Assigned(_)) => {}
                Ok(other) => panic!("nothing can be read: {other:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, LogError::OutOfRange { offset: 100, low: 0, high: 5, .. }), "{error:?}");
    });
}

#[test]
fn a_member_that_was_thrown_out_learns_it_and_comes_back() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| config.session_timeout = Duration::from_secs(6)).await;
        assert!(faulty.write(0..5).await.iter().all(Result::is_ok));
        let mut member = faulty.join("group").await;
        assert_eq!(records(&mut *member).await.len(), 5);
        faulty.answer(Api::Heartbeat, &[Reply::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
        let lost = loop {
            match fetch(&mut *member).await {
                Ok(Fetch::Lost(lost)) => break lost,
                Ok(Fetch::Revoked(_)) => panic!("another member may read already"),
                _ => {}
            }
        };
        assert_eq!(lost, [TopicPartition::new(&faulty.topic, 0)]);
        let error = member.commit(&faulty.at(5)).await.unwrap_err();
        assert!(matches!(&error, LogError::NotAssigned(_)), "{error:?}");
        assert_eq!(assigned(&mut *member).await[&lost[0]], 0);
        assert_eq!(records(&mut *member).await.len(), 5);
        member.commit(&faulty.at(5)).await.expect("it is a member again");
    });
}

#[test]
fn a_holder_that_takes_too_long_loses_its_partition() {
    multi_threaded(async {
        let faulty = Faulty::with(2, |config| config.handover_timeout = Duration::from_millis(500)).await;
        let mut holder = faulty.join("group").await;
        assert_eq!(assigned(&mut *holder).await.len(), 2);
        let mut second = faulty.join("group").await;
        let waiting = tokio::spawn(async move { assigned(&mut *second).await });
        let mut kept = None;
        let lost = loop {
            match fetch(&mut *holder).await {
                // it is never dropped while the test runs
                Ok(Fetch::Revoked(revocation)) => kept = Some(revocation),
                Ok(Fetch::Lost(lost)) => break lost,
                _ => {}
            }
        };
        assert_eq!(kept.expect("it was asked first").partitions, lost);
        let moved = timeout(LIMIT, waiting).await.expect("the partition moves").unwrap();
        assert_eq!(moved.into_keys().collect::<Vec<_>>(), lost);
    });
}

#[test]
fn a_killed_member_has_its_partitions_taken_over() {
    multi_threaded(async {
        let faulty = Faulty::with(2, |config| config.session_timeout = Duration::from_secs(3)).await;
        let mut killed = Command::new(env!("CARGO_BIN_EXE_kafka-member"))
            .args([&faulty.cluster.config().brokers, "group", faulty.topic.as_str(), "3"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the member starts");
        let stdout = BufReader::new(killed.stdout.take().expect("it is piped"));
        let got = tokio::task::spawn_blocking(move || {
            stdout.lines().take(2).map(Result::unwrap).collect::<Vec<_>>()
        });
        assert_eq!(got.await.unwrap().len(), 2, "it has both partitions");
        killed.kill().expect("a child can be killed");
        killed.wait().expect("a child can be waited for");

        let mut heir = faulty.join("group").await;
        let mut held = BTreeMap::new();
        while held.len() < 2 {
            held.extend(assigned(&mut *heir).await);
        }
        assert!(faulty.write(0..5).await.iter().all(Result::is_ok));
        assert!(!records(&mut *heir).await.is_empty());
    });
}
