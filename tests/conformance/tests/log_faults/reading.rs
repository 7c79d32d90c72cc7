//! Reading and committing while brokers and members fail.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use courant_conformance::LIMIT;
use courant_connectors::log::{Fetch, LogError, ReadLog, TopicPartition};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Reply};
use tokio::time::{Instant, timeout};

use crate::cluster::{Faulty, SHORT, assigned, fetch, multi_threaded, records};

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
        member.close().await.expect("there is nobody to wait for");
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
fn a_start_at_the_end_stays_where_it_is_until_it_is_committed() {
    multi_threaded(async {
        let faulty = Faulty::new(1).await;
        assert!(faulty.write(0..3).await.iter().all(Result::is_ok));
        faulty.answer(Api::OffsetCommit, &[Reply::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 3]);
        let mut member = faulty.join_at_end("group").await;
        let error = fetch(&mut *member).await.unwrap_err();
        assert!(error.to_string().contains("cannot commit where to begin"), "{error:?}");
        assert!(faulty.write(3..5).await.iter().all(Result::is_ok));
        assert_eq!(assigned(&mut *member).await[&TopicPartition::new(&faulty.topic, 0)], 3);
        assert_eq!(faulty.kafka.committed("group", &faulty.topic).await.unwrap(), faulty.at(3));
        let (mut read, expected) = (Vec::new(), [(3, 3), (4, 4)]);
        while read.len() < expected.len() {
            read.extend(records(&mut *member).await);
        }
        assert_eq!(read, expected);
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
