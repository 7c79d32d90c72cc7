//! Reading partitions for oneself.

use std::time::Duration;

use courant_connectors::log::{Fetch, LogError, Offsets, TopicPartition, Watermarks};
use futures::FutureExt;
use tokio::time::{Instant, timeout};

use super::Bench;
use super::bench::{next, nothing_comes, record, take, text};
use crate::LIMIT;

pub async fn watermarks_say_what_a_partition_holds(bench: Bench) {
    let topic = bench.topic(3).await;
    let empty = Watermarks { low: 0, high: 0 };
    assert_eq!(bench.log.watermarks(&topic).await.unwrap(), [empty; 3]);
    let answers = bench.write(&topic, (0..30).map(|n| record(&n.to_string(), "")).collect()).await;
    let mut wanted = [empty; 3];
    for answer in answers {
        wanted[usize::try_from(answer.partition).unwrap()].high += 1;
    }
    assert_eq!(bench.log.watermarks(&topic).await.unwrap(), wanted);
}

pub async fn reading_starts_at_any_offset(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..20).await;
    for start in [0, 1, 13, 19] {
        let mut reader = bench.read(&topic, 0, start).await;
        let count = 20 - usize::try_from(start).unwrap();
        let read = take(&mut *reader, count).await;
        let offsets: Vec<u64> = read.iter().map(|(_, record)| record.offset).collect();
        assert_eq!(offsets, (start..20).collect::<Vec<_>>());
        assert_eq!(text(&read[0].1), start.to_string());
    }
}

pub async fn reading_waits_for_what_is_written_later(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..3).await;
    let mut reader = bench.read(&topic, 0, 3).await;
    nothing_comes(&mut *reader).await;
    bench.write_numbers(&topic, "key", 3..5).await;
    let read = take(&mut *reader, 2).await;
    assert_eq!([text(&read[0].1), text(&read[1].1)], ["3", "4"]);
}

pub async fn an_offset_outside_the_log_is_an_error(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..3).await;
    let partition = TopicPartition::new(&topic, 0);
    let error = match bench.log.read_from(Offsets::from([(partition.clone(), 4)])).await {
        Err(error) => error,
        // a log may also say so with the first fetch
        Ok(mut reader) => timeout(LIMIT, reader.fetch(1)).await.expect("an answer comes").unwrap_err(),
    };
    match error {
        LogError::OutOfRange { partition: named, offset: 4, low: 0, high: 3 } => assert_eq!(named, partition),
        other => panic!("beyond the end: {other:?}"),
    }
}

pub async fn a_partition_that_is_not_there_is_named(bench: Bench) {
    let topic = bench.topic(2).await;
    let missing = TopicPartition::new(&topic, 2);
    let error = bench.log.read_from(Offsets::from([(missing.clone(), 0)])).await.map(drop).unwrap_err();
    assert!(matches!(&error, LogError::NoSuchPartition(named) if *named == missing), "{error:?}");
    let error =
        bench.log.reset_group(&bench.name(), &Offsets::from([(missing.clone(), 0)])).await.unwrap_err();
    assert!(matches!(&error, LogError::NoSuchPartition(named) if *named == missing), "{error:?}");
}

pub async fn a_fetch_brings_no_more_than_asked(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..50).await;
    let mut reader = bench.read(&topic, 0, 0).await;
    let mut seen = 0;
    while seen < 50 {
        let Fetch::Records { records, .. } = next(&mut *reader, 7).await else { continue };
        assert!((1..=7).contains(&records.len()), "{} records", records.len());
        for record in records {
            assert_eq!(record.offset, seen);
            seen += 1;
        }
    }
}

/// Gives up fetches at their first moment and after a short while, again and again.
pub async fn a_dropped_fetch_loses_nothing(bench: Bench) {
    let topic = bench.topic(1).await;
    let mut reader = bench.read(&topic, 0, 0).await;
    let writing = async {
        for start in (0..300).step_by(10) {
            bench.write_numbers(&topic, "key", start..start + 10).await;
            tokio::task::yield_now().await;
        }
    };
    let reading = async {
        let mut offsets = Vec::new();
        let started = Instant::now();
        while offsets.len() < 300 {
            assert!(started.elapsed() < LIMIT, "{} of 300 records within {LIMIT:?}", offsets.len());
            let at_once = reader.fetch(3).now_or_never();
            let fetched = match at_once {
                Some(fetched) => Some(fetched),
                None => timeout(Duration::from_micros(500), reader.fetch(3)).await.ok(),
            };
            if let Some(Fetch::Records { records, .. }) = fetched.transpose().expect("a fetch works") {
                offsets.extend(records.into_iter().map(|record| record.offset));
            }
        }
        offsets
    };
    let ((), offsets) = tokio::join!(writing, reading);
    assert_eq!(offsets, (0..300).collect::<Vec<_>>());
}

pub async fn a_paused_partition_gives_nothing_until_it_is_resumed(bench: Bench) {
    let topic = bench.topic(2).await;
    let (first, second) = (TopicPartition::new(&topic, 0), TopicPartition::new(&topic, 1));
    let starts = Offsets::from([(first.clone(), 0), (second.clone(), 0)]);
    let mut reader = bench.log.read_from(starts).await.unwrap();
    let key_of = |wanted: u32| {
        let bench = &bench;
        let topic = &topic;
        async move {
            for number in 0.. {
                let key = format!("key {number}");
                if bench.write(topic, vec![record(&key, "0")]).await[0].partition == wanted {
                    return key;
                }
            }
            unreachable!("keys are spread")
        }
    };
    let (in_first, in_second) = (key_of(0).await, key_of(1).await);
    let marks = bench.log.watermarks(&topic).await.unwrap();
    let written = usize::try_from(marks[0].high + marks[1].high).unwrap();
    take(&mut *reader, written).await;

    reader.pause(std::slice::from_ref(&first)).await.unwrap();
    bench.write(&topic, vec![record(&in_first, "held back"), record(&in_second, "1")]).await;
    let read = take(&mut *reader, 1).await;
    assert_eq!((&read[0].0, text(&read[0].1)), (&second, "1"));
    nothing_comes(&mut *reader).await;
    reader.resume(std::slice::from_ref(&first)).await.unwrap();
    let read = take(&mut *reader, 1).await;
    assert_eq!((&read[0].0, text(&read[0].1)), (&first, "held back"));
}

pub async fn lag_counts_what_waits(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..10).await;
    let mut reader = bench.read(&topic, 0, 0).await;
    take(&mut *reader, 4).await;
    let partition = TopicPartition::new(&topic, 0);
    let reaches = |lag| vec![(partition.clone(), lag)];
    wait_for_lag(&mut *reader, &reaches(6)).await;
    reader.pause(std::slice::from_ref(&partition)).await.unwrap();
    bench.write_numbers(&topic, "key", 10..13).await;
    wait_for_lag(&mut *reader, &reaches(9)).await;
    reader.resume(std::slice::from_ref(&partition)).await.unwrap();
    take(&mut *reader, 9).await;
    wait_for_lag(&mut *reader, &reaches(0)).await;
}

/// What waits is learnt from time to time.
async fn wait_for_lag(reader: &mut dyn courant_connectors::log::Reader, wanted: &[(TopicPartition, u64)]) {
    let started = Instant::now();
    while reader.lag() != wanted {
        assert!(started.elapsed() < LIMIT, "the lag is {:?} and not {wanted:?}", reader.lag());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn times_never_fall_within_a_partition(bench: Bench) {
    let topic = bench.topic(1).await;
    for start in (0..50).step_by(10) {
        bench.write_numbers(&topic, "key", start..start + 10).await;
    }
    let content = bench.content(&topic).await.remove(&0).unwrap();
    assert_eq!(content.len(), 50);
    assert!(content.is_sorted_by_key(|record| record.at));
    let since = content[0].at.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(since > Duration::from_secs(1_500_000_000), "the first record is of {:?}", content[0].at);
}
