//! Appending records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use courant_connectors::log::{
    Header, LogError, LogRecord, MAX_RECORD_BYTES, NewRecord, Offsets, Topic, TopicPartition,
};

use super::Bench;
use super::bench::{record, take, text, write};

pub async fn records_of_a_key_come_back_in_order(bench: Bench) {
    let topic = bench.topic(4).await;
    let keys = ["anna", "ben", "cleo", "dora", "emil"];
    let all = (0..40).flat_map(|number| keys.map(|key| record(key, &number.to_string())));
    let mut all: Vec<NewRecord> = all.collect();
    // in one call and in calls that follow one another
    let rest = all.split_off(75);
    bench.write(&topic, all).await;
    for part in rest.chunks(25) {
        bench.write(&topic, part.to_vec()).await;
    }
    let content = bench.content(&topic).await;
    let mut by_key: HashMap<&[u8], Vec<&str>> = HashMap::new();
    for record in content.values().flatten() {
        by_key.entry(record.key.as_deref().unwrap()).or_default().push(text(record));
    }
    let numbers: Vec<String> = (0..40).map(|number: u32| number.to_string()).collect();
    for key in keys {
        assert_eq!(by_key[key.as_bytes()], numbers, "the records of {key}");
    }
}

pub async fn answers_say_where_records_are(bench: Bench) {
    let topic = bench.topic(3).await;
    let records: Vec<_> = (0..60).map(|n| record(&format!("key {}", n % 7), &n.to_string())).collect();
    let answers = bench.write(&topic, records.clone()).await;
    let content = bench.content(&topic).await;
    for (sent, answer) in records.iter().zip(&answers) {
        let found = &content[&answer.partition][usize::try_from(answer.offset).unwrap()];
        assert_eq!((found.offset, &found.payload), (answer.offset, &sent.payload));
    }
    for (partition, records) in &content {
        let offsets: Vec<u64> = records.iter().map(|record| record.offset).collect();
        let dense: Vec<u64> = (0..u64::try_from(records.len()).unwrap()).collect();
        assert_eq!(offsets, dense, "the offsets of partition {partition}");
    }
}

pub async fn headers_come_back_as_they_were(bench: Bench) {
    let topic = bench.topic(1).await;
    let header =
        |name: &str, value: &'static [u8]| Header { name: name.into(), value: Bytes::from_static(value) };
    let headers = vec![
        header("origin", b"socket-7"),
        header("empty", b""),
        header("größe/尺寸/🦀", "ünïcode".as_bytes()),
        header("twice", b"1"),
        header("twice", b"2"),
        header("binary", &[0, 255, 10, 0]),
    ];
    let with = NewRecord { headers: headers.clone(), ..record("key", "payload") };
    bench.write(&topic, vec![with, record("key", "without")]).await;
    let content = bench.content(&topic).await;
    assert_eq!(content[&0][0].headers, headers);
    assert_eq!(content[&0][1].headers, []);
}

pub async fn keys_and_payloads_may_be_absent_empty_or_binary(bench: Bench) {
    let topic = bench.topic(1).await;
    let all_bytes: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let cases = [
        (None, Bytes::from_static(b"no key")),
        (Some(Bytes::new()), Bytes::from_static(b"empty key")),
        (Some(Bytes::from_static(b"empty payload")), Bytes::new()),
        (None, Bytes::new()),
        (Some(all_bytes.clone()), all_bytes),
    ];
    let records = cases.iter().cloned().map(|(key, payload)| NewRecord { key, payload, headers: Vec::new() });
    bench.write(&topic, records.collect()).await;
    let read: Vec<_> = bench.content(&topic).await.remove(&0).unwrap();
    let read: Vec<_> = read.into_iter().map(|record| (record.key, record.payload)).collect();
    assert_eq!(read, cases);
}

pub async fn the_largest_record_fits_and_one_byte_more_does_not(bench: Bench) {
    let topic = bench.topic(1).await;
    let header = Header { name: "name".into(), value: Bytes::from_static(b"value") };
    let around = NewRecord { headers: vec![header], ..record("big", "") };
    let room = MAX_RECORD_BYTES - around.size();
    let of_size = |bytes| NewRecord { payload: vec![7; bytes].into(), ..around.clone() };

    let call = vec![of_size(room), of_size(room + 1), record("big", "after"), record("small", "other")];
    let answers = bench.log.produce(&topic, call).await;
    assert_eq!(answers.len(), 4);
    assert_eq!(answers[0].as_ref().unwrap().offset, 0);
    match &answers[1] {
        Err(LogError::TooLarge { bytes, limit }) => {
            assert_eq!((*bytes, *limit), (MAX_RECORD_BYTES + 1, MAX_RECORD_BYTES));
        }
        other => panic!("one byte too many: {other:?}"),
    }
    assert!(matches!(answers[2], Err(LogError::EarlierFailed)), "after a failed record: {:?}", answers[2]);
    assert_eq!(answers[3].as_ref().unwrap().offset, 1);

    let content = bench.content(&topic).await.remove(&0).unwrap();
    assert_eq!(content.len(), 2);
    assert_eq!(content[0].payload.len(), room);
    assert_eq!(text(&content[1]), "other");
}

pub async fn a_key_stays_in_its_partition(bench: Bench) {
    let topic = bench.topic(8).await;
    let keys: Vec<String> = (0..40).map(|n| format!("chat-{n}")).collect();
    let records = || keys.iter().map(|key| record(key, "")).collect();
    let first = bench.write(&topic, records()).await;
    // another client of the same log must agree
    let other = bench.server.log().await;
    let second = write(&other, &topic, records()).await;
    let partitions = |answers: &[courant_connectors::log::Appended]| -> Vec<u32> {
        answers.iter().map(|answer| answer.partition).collect()
    };
    assert_eq!(partitions(&first), partitions(&second));
    let mut used = partitions(&first);
    used.sort_unstable();
    used.dedup();
    assert!(used.len() > 3, "40 keys are in {} of 8 partitions", used.len());
}

pub async fn ten_thousand_records_stay_in_order(bench: Bench) {
    let topic = bench.topic(2).await;
    let records = (0..10_000).map(|n| record(if n % 2 == 0 { "even" } else { "odd" }, &n.to_string()));
    bench.write(&topic, records.collect()).await;
    let content = bench.content(&topic).await;
    let mut by_key: BTreeMap<&[u8], Vec<u32>> = BTreeMap::new();
    for record in content.values().flatten() {
        by_key.entry(record.key.as_deref().unwrap()).or_default().push(text(record).parse().unwrap());
    }
    for (key, first) in [(&b"even"[..], 0), (b"odd", 1)] {
        let wanted: Vec<u32> = (first..10_000).step_by(2).collect();
        let differs = by_key[key].iter().zip(&wanted).find(|(read, wanted)| read != wanted);
        assert_eq!((by_key[key].len(), differs), (5000, None), "read, wanted");
    }
}

pub async fn a_call_without_records_has_no_answers(bench: Bench) {
    let topic = bench.topic(1).await;
    assert!(bench.log.produce(&topic, Vec::new()).await.is_empty());
}

pub async fn a_topic_that_is_not_there_is_named(bench: Bench) {
    let missing = Topic::from(bench.name().as_str());
    let is_named = |error: &LogError| matches!(error, LogError::NoSuchTopic { topic } if *topic == missing);
    let answers = bench.log.produce(&missing, vec![record("a", "1"), record("b", "2")]).await;
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(is_named)), "produce: {answers:?}");
    let error = bench.log.watermarks(&missing).await.unwrap_err();
    assert!(is_named(&error), "watermarks: {error}");
    let error = bench.log.committed("nobody", &missing).await.unwrap_err();
    assert!(is_named(&error), "committed: {error}");
    let from = Offsets::from([(TopicPartition::new(&missing, 0), 0)]);
    let error = bench.log.read_from(from).await.map(drop).unwrap_err();
    assert!(is_named(&error), "read_from: {error}");
    let subscription = courant_connectors::log::Subscription {
        group: bench.name(),
        topics: vec![missing.clone()],
        start: courant_connectors::log::StartAt::Oldest,
    };
    let error = bench.log.subscribe(subscription).await.map(drop).unwrap_err();
    assert!(is_named(&error), "subscribe: {error}");
}

pub async fn calls_side_by_side_lose_nothing(bench: Bench) {
    let topic = bench.topic(4).await;
    let calls = (0..20).map(|caller| {
        let (log, topic) = (Arc::clone(&bench.log), topic.clone());
        async move {
            for number in 0..20 {
                let key = format!("caller {caller}");
                write(
                    &log,
                    &topic,
                    vec![record(&key, &format!("{number}a")), record(&key, &format!("{number}b"))],
                )
                .await;
            }
        }
    });
    futures::future::join_all(calls).await;
    let content = bench.content(&topic).await;
    let wanted: Vec<String> =
        (0..20).flat_map(|number| [format!("{number}a"), format!("{number}b")]).collect();
    for caller in 0..20 {
        let key = format!("caller {caller}");
        let of_caller = |record: &&LogRecord| record.key.as_deref() == Some(key.as_bytes());
        let found: Vec<&str> = content.values().flatten().filter(of_caller).map(text).collect();
        assert_eq!(found, wanted, "the records of {key}");
    }
    let mut reader = bench.read(&topic, 0, 0).await;
    let expected = content.get(&0).map_or(0, Vec::len);
    assert_eq!(take(&mut *reader, expected).await.len(), expected);
}
