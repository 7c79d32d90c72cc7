//! Making topics.

use std::time::Duration;

use courant_connectors::log::{LogError, Retention, Topic, TopicCreated, TopicSpec, Watermarks};

use super::Bench;

fn spec(name: &str, partitions: u32) -> TopicSpec {
    TopicSpec { name: Topic::from(name), partitions, retention: Retention::default(), replication: 1 }
}

pub async fn a_topic_is_created_described_and_deleted(bench: Bench) {
    let spec = spec(&bench.name(), 5);
    assert_eq!(bench.log.describe_topic(&spec.name).await.unwrap(), None);
    let created = bench.log.create_topic(&spec).await.unwrap();
    assert_eq!(created, TopicCreated::New { warnings: Vec::new() });
    let described = bench.log.describe_topic(&spec.name).await.unwrap().expect("it is there");
    assert_eq!((&described.spec.name, described.spec.partitions), (&spec.name, 5));
    assert_eq!(described.spec.replication, 1);
    assert!(bench.log.topics().await.unwrap().contains(&spec.name));
    assert_eq!(bench.log.watermarks(&spec.name).await.unwrap(), [Watermarks { low: 0, high: 0 }; 5]);

    bench.log.delete_topic(&spec.name).await.unwrap();
    assert_eq!(bench.log.describe_topic(&spec.name).await.unwrap(), None);
    assert!(!bench.log.topics().await.unwrap().contains(&spec.name));
}

pub async fn creating_a_topic_again_changes_nothing(bench: Bench) {
    let topic = bench.topic(2).await;
    bench.write_numbers(&topic, "key", 0..3).await;
    assert_eq!(bench.log.create_topic(&spec(topic.as_str(), 7)).await.unwrap(), TopicCreated::Existing);
    assert_eq!(bench.log.describe_topic(&topic).await.unwrap().unwrap().spec.partitions, 2);
    assert_eq!(bench.content(&topic).await.values().flatten().count(), 3);
}

pub async fn a_deleted_topic_comes_back_empty(bench: Bench) {
    let topic = bench.topic(1).await;
    bench.write_numbers(&topic, "key", 0..3).await;
    bench.log.delete_topic(&topic).await.unwrap();
    let error = bench.log.watermarks(&topic).await.unwrap_err();
    assert!(matches!(&error, LogError::NoSuchTopic { topic: named } if *named == topic), "{error:?}");
    bench.log.create_topic(&spec(topic.as_str(), 1)).await.unwrap();
    assert_eq!(bench.log.watermarks(&topic).await.unwrap(), [Watermarks { low: 0, high: 0 }]);
}

pub async fn what_is_not_there_cannot_be_deleted(bench: Bench) {
    let missing = Topic::from(bench.name().as_str());
    let error = bench.log.delete_topic(&missing).await.unwrap_err();
    assert!(matches!(&error, LogError::NoSuchTopic { topic } if *topic == missing), "{error:?}");
}

pub async fn limits_on_what_is_kept_are_described(bench: Bench) {
    let retention = Retention { age: Some(Duration::from_secs(3600)), bytes: Some(1 << 20) };
    let limited = TopicSpec { retention, ..spec(&bench.name(), 1) };
    bench.log.create_topic(&limited).await.unwrap();
    let described = bench.log.describe_topic(&limited.name).await.unwrap().unwrap();
    assert_eq!(described.spec.retention, retention);
    assert!(!described.unknown.iter().any(|name| name.starts_with("retention")), "{:?}", described.unknown);
}

/// On a server with a single broker, as all of ours are.
pub async fn more_copies_than_brokers_are_warned_of(bench: Bench) {
    let wanting = TopicSpec { replication: 3, ..spec(&bench.name(), 1) };
    match bench.log.create_topic(&wanting).await.unwrap() {
        TopicCreated::New { warnings } => {
            assert!(warnings.len() == 1 && warnings[0].contains(wanting.name.as_str()), "{warnings:?}");
        }
        TopicCreated::Existing => panic!("nobody made it before"),
    }
    assert_eq!(bench.log.describe_topic(&wanting.name).await.unwrap().unwrap().spec.replication, 1);
}
