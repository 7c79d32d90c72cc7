//! `kafka-publish`: appends every record to a topic.
//!
//! A record that passes is safe in the log. Records of one key are appended in their order, also when one of them fails:
//! those behind it wait for it. One whose outcome is not known is appended again, since a log keeps what it was given and
//! its readers recognize an event by its id.

use async_trait::async_trait;
use bytes::Bytes;
use courant_connectors::log::{Header, LogError, NewRecord, Topic, WriteLog};
use courant_pipeline::spec::{
    BuildContext, Built, Effect, Level, Mode, Problem, StageConfig, StageSpec, Takes,
};
use courant_pipeline::{Batch, Record, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::backends::{Backends, access, log_error};

/// An effect outside: whoever reads the topic sees what is published twice, which a replay must not do to them.
pub static SPEC: StageSpec = StageSpec::sink::<Config>("kafka-publish", Takes::Any)
    .effect(Effect::ExternalEffect)
    .summary("appends every record to a topic of the log, with its key and headers")
    .example("[[pipeline.stage]]\nkind = \"kafka-publish\"\nparams = { topic = \"messages.persisted\" }\n");

/// Kafka's own limit.
const MAX_TOPIC_CHARS: usize = 249;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The topic. It has to be there: `courant topics create` makes those of the product. Records with the same key go
    /// to the same partition.
    pub topic: String,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        check_name(&self.topic)?;
        let declared = access(Level::Log, Mode::Write, &self.topic);
        let backends = Backends::of(context, std::slice::from_ref(&declared));
        let mut built = Built::stage(KafkaPublish { topic: Topic::from(self.topic.as_str()), backends });
        built.access.push(declared);
        Ok(built)
    }
}

fn check_name(topic: &str) -> Result<(), Vec<Problem>> {
    let wrong = |problem: Problem| Err(vec![problem]);
    if topic.is_empty() || topic.len() > MAX_TOPIC_CHARS || [".", ".."].contains(&topic) {
        let message = format!("a topic's name has 1 to {MAX_TOPIC_CHARS} characters and is not `.` or `..`");
        return wrong(Problem::new("topic", message));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    match topic.find(|c| !legal(c)) {
        Some(offset) => wrong(
            Problem::new("topic", format!("`{topic}` cannot be the name of a topic"))
                .at(offset)
                .help("use letters, digits, `.`, `_` and `-`"),
        ),
        None => Ok(()),
    }
}

struct KafkaPublish {
    topic: Topic,
    backends: Backends,
}

#[async_trait]
impl Stage for KafkaPublish {
    async fn open(&self) -> Result<(), StageError> {
        self.backends.log().map(drop)
    }

    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let log = self.backends.log()?;
        let records = batch.records().map(to_append).collect();
        let answers = log.produce(&self.topic, records).await;
        for (slot, answer) in batch.iter_mut().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(LogError::EarlierFailed) => slot.hold(),
                Err(error) => slot.fail(log_error("publish", error)),
            }
        }
        Ok(())
    }
}

fn to_append(record: &Record) -> NewRecord {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let headers =
        record.headers.iter().map(|(name, value)| Header { name: name.into(), value: bytes(value) });
    NewRecord {
        key: record.key.as_ref().map(|key| bytes(key.as_str())),
        payload: record.payload.to_json(),
        headers: headers.collect(),
    }
}

#[cfg(test)]
mod tests;
