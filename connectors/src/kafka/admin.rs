//! Making topics and looking at how they are made.
//!
//! A client for administration is made for each call and dropped after it: such calls are rare, and
//! librdkafka collects what an idle client notices until somebody asks for it, which nobody would.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use super::ask::Questions;
use super::context::Quiet;
use super::error::{from_asking, from_setting_up};
use crate::log::{LogError, Result, Retention, Topic, TopicCreated, TopicDescription, TopicSpec};

/// Between two looks at whether the brokers agree on a topic: metadata spreads within some milliseconds.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(super) struct Administration<'a> {
    pub(super) client: &'a ClientConfig,
    pub(super) questions: &'a Questions,
    pub(super) timeout: Duration,
}

impl Administration<'_> {
    pub(super) async fn create(&self, spec: &TopicSpec) -> Result<TopicCreated> {
        let (replication, warnings) = self.replication_for(spec).await?;
        let age = retention_text(spec.retention.age.map(|age| age.as_millis()));
        let bytes = retention_text(spec.retention.bytes.map(u128::from));
        let partitions = i32::try_from(spec.partitions).unwrap_or(i32::MAX);
        let new = NewTopic::new(spec.name.as_str(), partitions, TopicReplication::Fixed(replication))
            .set("retention.ms", &age)
            .set("retention.bytes", &bytes)
            // when it was appended, by one clock, and not when somebody says it was made
            .set("message.timestamp.type", "LogAppendTime");
        let results = self.admin()?.create_topics([&new], &self.options()).await;
        match results.map(|mut results| results.pop()) {
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err((_, Code::TopicAlreadyExists)))) => return Ok(TopicCreated::Existing),
            Ok(Some(Err((_, code)))) => return Err(refused(code, &format!("create topic '{}'", spec.name))),
            Ok(None) => return Err(LogError::Unavailable(format!("no answer for topic '{}'", spec.name))),
            Err(error) => return Err(from_asking(&error, &format!("create topic '{}'", spec.name))),
        }
        self.wait_until(&spec.name, |shape| {
            shape.is_some_and(|shape| shape.ready && shape.partitions == spec.partitions)
        })
        .await?;
        Ok(TopicCreated::New { warnings })
    }

    /// A single broker is a machine for development, where one copy is all there can be: said, not refused.
    /// Fewer brokers than copies in a cluster is a mistake.
    async fn replication_for(&self, spec: &TopicSpec) -> Result<(i32, Vec<String>)> {
        let brokers = self.questions.broker_count().await?;
        if usize::from(spec.replication) <= brokers {
            return Ok((i32::from(spec.replication), Vec::new()));
        }
        let (wanted, name) = (spec.replication, &spec.name);
        if brokers > 1 {
            return Err(LogError::Invalid(format!(
                "topic '{name}' wants {wanted} copies and the cluster has {brokers} brokers; ask for no more"
            )));
        }
        Ok((1, vec![format!("topic '{name}' has 1 copy and not {wanted}: the cluster has a single broker")]))
    }

    pub(super) async fn describe(&self, topic: &Topic) -> Result<Option<TopicDescription>> {
        let Some(shape) = self.questions.topic(topic).await? else { return Ok(None) };
        let (retention, unknown) = self.retention_of(topic).await?;
        let spec = TopicSpec {
            name: topic.clone(),
            partitions: shape.partitions,
            retention,
            replication: shape.replication,
        };
        // how many bytes it has on disk, librdkafka has no question for
        Ok(Some(TopicDescription { spec, unknown, bytes: None }))
    }

    async fn retention_of(&self, topic: &Topic) -> Result<(Retention, Vec<&'static str>)> {
        let admin = self.admin()?;
        let answer =
            admin.describe_configs(&[ResourceSpecifier::Topic(topic.as_str())], &self.options()).await;
        let config = match answer.map(|mut resources| resources.pop()) {
            Ok(Some(Ok(config))) => Some(config),
            Ok(Some(Err(Code::UnsupportedVersion | Code::UnsupportedFeature)) | None) => None,
            Ok(Some(Err(code))) => return Err(refused(code, &format!("describe topic '{topic}'"))),
            Err(error) if error.rdkafka_error_code() == Some(Code::UnsupportedFeature) => None,
            Err(error) => return Err(from_asking(&error, &format!("describe topic '{topic}'"))),
        };
        let value_of = |name: &str| config.as_ref()?.get(name)?.value.as_ref()?.parse::<i64>().ok();
        let (age, bytes) = (value_of("retention.ms"), value_of("retention.bytes"));
        let mut unknown = Vec::new();
        if age.is_none() {
            unknown.push("retention.age");
        }
        if bytes.is_none() {
            unknown.push("retention.bytes");
        }
        // a negative number stands for no limit
        let limit = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        Ok((Retention { age: limit(age).map(Duration::from_millis), bytes: limit(bytes) }, unknown))
    }

    pub(super) async fn delete(&self, topic: &Topic) -> Result<()> {
        self.questions.partitions(topic).await?;
        let doing = format!("delete topic '{topic}'");
        let results = self.admin()?.delete_topics(&[topic.as_str()], &self.options()).await;
        match results.map(|mut results| results.pop()) {
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err((_, Code::UnknownTopicOrPartition)))) => {
                return Err(LogError::NoSuchTopic { topic: topic.clone() });
            }
            Ok(Some(Err((_, code)))) => return Err(refused(code, &doing)),
            Ok(None) => return Err(LogError::Unavailable(format!("cannot {doing}: no answer"))),
            Err(error) => return Err(from_asking(&error, &doing)),
        }
        self.wait_until(topic, |shape| shape.is_none()).await
    }

    async fn wait_until(
        &self,
        topic: &Topic,
        reached: impl Fn(Option<super::ask::TopicShape>) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        while !reached(self.questions.topic(topic).await?) {
            if Instant::now() > deadline {
                return Err(LogError::UnknownOutcome(format!(
                    "the brokers do not agree on topic '{topic}' yet"
                )));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    /// Dropping one waits for its thread, which looks up ten times a second: not on a worker.
    fn admin(&self) -> Result<DroppedElsewhere> {
        let admin = self.client.create_with_context(Quiet).map_err(from_setting_up)?;
        Ok(DroppedElsewhere(Some(admin)))
    }

    fn options(&self) -> AdminOptions {
        AdminOptions::new().request_timeout(Some(self.timeout)).operation_timeout(Some(self.timeout))
    }
}

struct DroppedElsewhere(Option<AdminClient<Quiet>>);

impl std::ops::Deref for DroppedElsewhere {
    type Target = AdminClient<Quiet>;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for DroppedElsewhere {
    fn drop(&mut self) {
        let admin = self.0.take();
        // a runtime that ends drops what it ran outside of itself
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(admin));
        }
    }
}

fn refused(code: Code, doing: &str) -> LogError {
    match code {
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            LogError::NotAllowed { access: "administer", name: doing.to_owned() }
        }
        Code::InvalidTopic
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidConfig
        | Code::PolicyViolation
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature => LogError::Invalid(format!("cannot {doing}: {code}")),
        _ => LogError::Unavailable(format!("cannot {doing}: {code}")),
    }
}

fn retention_text(limit: Option<u128>) -> String {
    // without a number the broker would take its own limit, usually seven days
    limit.map_or_else(|| "-1".to_owned(), |limit| limit.min(i64::MAX as u128).to_string())
}
