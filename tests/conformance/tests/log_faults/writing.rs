//! Appending and asking while brokers fail.

use std::sync::Arc;
use std::time::Duration;

use courant_conformance::LIMIT;
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::{LogError, ReadLog, WriteLog};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Reply};
use tokio::time::{Instant, timeout};

use crate::cluster::{Faulty, SHORT, multi_threaded, numbered};

#[test]
fn passing_errors_of_brokers_lose_reorder_and_double_nothing() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| {
            config.request_timeout = LIMIT;
            // Brokers refuse a batch that overtook another by its sequence number, which the mock does not look at.
            config.settings.insert("max.in.flight.requests.per.connection".to_owned(), "1".to_owned());
        })
        .await;
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
            let answers = faulty.kafka.produce(&faulty.topic, numbered(start..start + 50)).await;
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
        let answers = faulty.kafka.produce(&faulty.topic, numbered(0..500)).await;
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

/// What it still has may fail, and nothing that comes later in the same call may get ahead of it.
#[test]
fn a_call_that_meets_a_broken_producer_sends_nothing_and_the_next_one_all() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| config.request_timeout = LIMIT).await;
        assert!(faulty.write(0..1).await.iter().all(Result::is_ok));
        // To an idempotent producer this says that its sequence is lost for good.
        faulty.answer(Api::Produce, &[Reply::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
        let answers = faulty.write(1..2).await;
        assert!(matches!(answers[..], [Err(LogError::UnknownOutcome(_))]), "{answers:?}");
        let answers = faulty.write(1..4).await;
        let is_refused = matches!(
            answers[..],
            [Err(LogError::Unavailable(_)), Err(LogError::EarlierFailed), Err(LogError::EarlierFailed)]
        );
        assert!(is_refused, "{answers:?}");
        assert!(faulty.write(1..4).await.iter().all(Result::is_ok), "with a producer of its own");
        assert_eq!(faulty.numbers().await, [0, 1, 2, 3]);
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
fn closing_waits_for_what_is_on_its_way() {
    multi_threaded(async {
        let faulty = Faulty::with(1, |config| config.request_timeout = LIMIT).await;
        assert!(faulty.write(0..1).await.iter().all(Result::is_ok));
        faulty.down();
        let given_up = faulty.kafka.produce(&faulty.topic, numbered(1..20));
        assert!(timeout(Duration::from_millis(50), given_up).await.is_err(), "nobody answers");
        let kafka = Arc::into_inner(faulty.kafka).expect("nobody else has it");
        let closing = tokio::spawn(kafka.close());
        faulty.cluster.with(|cluster| cluster.broker_up(-1)).expect("brokers come up");
        closing.await.expect("closing does not panic").expect("all of it arrives");
        let other = Kafka::open(faulty.cluster.config()).await.expect("the mock cluster answers");
        assert_eq!(other.watermarks(&faulty.topic).await.expect("watermarks are answered")[0].high, 20);
    });
}
