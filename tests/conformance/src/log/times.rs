//! Finding offsets by time.

use std::time::{Duration, SystemTime};

use courant_connectors::log::{Offsets, TopicPartition};

use super::Bench;
use super::bench::text;

pub async fn offsets_are_found_by_time(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..3).await;
    // later records are of a later time: another millisecond must have begun
    tokio::time::sleep(Duration::from_millis(20)).await;
    bench.write_numbers(&topic, "key", 3..6).await;
    let content = bench.content(&topic).await.remove(&0).unwrap();
    let found = |offset| Offsets::from([(TopicPartition::new(&topic, 0), offset)]);
    assert_eq!(text(&content[3]), "3");
    assert_eq!(bench.log.offsets_at(&topic, content[3].at).await.unwrap(), found(3));
    assert_eq!(
        bench.log.offsets_at(&topic, content[3].at - Duration::from_millis(5)).await.unwrap(),
        found(3)
    );
    assert_eq!(bench.log.offsets_at(&topic, SystemTime::UNIX_EPOCH).await.unwrap(), found(0));
}

pub async fn a_time_after_everything_is_the_end(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..6).await;
    let last = bench.content(&topic).await.remove(&0).unwrap().pop().unwrap();
    let end = Offsets::from([(TopicPartition::new(&topic, 0), 6)]);
    assert_eq!(bench.log.offsets_at(&topic, last.at + Duration::from_secs(3600)).await.unwrap(), end);
}
