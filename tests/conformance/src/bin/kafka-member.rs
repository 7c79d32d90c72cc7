//! A member of a group in a process of its own, for tests that kill it. Prints every partition it gets.
//! Usage: kafka-member BROKERS GROUP TOPIC SESSION_SECONDS

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::{Fetch, ReadLog, StartAt, Subscription, Topic};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [brokers, group, topic, session] = &arguments[..] else {
        anyhow::bail!("usage: kafka-member BROKERS GROUP TOPIC SESSION_SECONDS");
    };
    let session_timeout = Duration::from_secs(session.parse().context("SESSION_SECONDS is a number")?);
    let kafka = Kafka::open(KafkaConfig { session_timeout, ..KafkaConfig::at(brokers) }).await?;
    let topics = vec![Topic::from(topic.as_str())];
    let mut member =
        kafka.subscribe(Subscription { group: group.clone(), topics, start: StartAt::Oldest }).await?;
    loop {
        if let Fetch::Assigned(partitions) = member.fetch(1).await? {
            let mut stdout = std::io::stdout().lock();
            for assigned in partitions {
                writeln!(stdout, "{}", assigned.partition)?;
            }
            stdout.flush()?;
        }
    }
}
