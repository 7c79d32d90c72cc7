//! `courant topics`: the model's topics on the configured log.

use std::path::Path;

use anyhow::bail;
use courant_connectors::connections::LogConnection;
use courant_connectors::log::{Log, Topic, TopicCreated, TopicDescription, TopicSpec};
use courant_connectors::model::{drift, topics};
use courant_pipeline::units::Span;
use serde_json::{Value, json};

use super::inventory::{self, Findings, Outcome, check_is_there, check_names, counted, report_creation};
use super::say;
use crate::args::{Topics, WantedTopics};

pub(super) async fn run(file: &Path, command: Topics) -> anyhow::Result<()> {
    let connections = inventory::connections(file)?;
    let wanted = match &command {
        Topics::Create(wanted) | Topics::Drift { wanted, .. } => specs(wanted)?,
        Topics::Describe { .. } => Vec::new(),
    };
    if let (Topics::Describe { .. } | Topics::Drift { .. }, LogConnection::Embedded(embedded)) =
        (&command, &connections.log)
    {
        check_is_there(embedded, "topics")?;
    }
    let (log, engine) = connections.open_log().await?;
    let done = match command {
        Topics::Create(_) => create(&*log, &wanted).await,
        Topics::Describe { topic, json } => describe(&*log, topic, json).await,
        Topics::Drift { json, .. } => drift(&*log, &wanted, json).await,
    };
    inventory::close(engine).await;
    done
}

/// The model's topics as this installation wants them.
fn specs(wanted: &WantedTopics) -> anyhow::Result<Vec<TopicSpec>> {
    let known = topics::all().map(|topic| topic.name.to_string());
    check_names("topic", &wanted.only, &known)?;
    let mut specs = topics::all().to_vec();
    specs.retain(|spec| wanted.only.is_empty() || wanted.only.iter().any(|name| spec.name.as_str() == name));
    for spec in &mut specs {
        spec.partitions = wanted.partitions.map_or(spec.partitions, Into::into);
        spec.replication = wanted.replication.map_or(spec.replication, Into::into);
    }
    Ok(specs)
}

async fn create(log: &dyn Log, wanted: &[TopicSpec]) -> anyhow::Result<()> {
    for spec in wanted {
        let outcome = match log.create_topic(spec).await? {
            TopicCreated::New { warnings } => Outcome::Created { warnings },
            TopicCreated::Existing => Outcome::Exists,
        };
        report_creation(spec.name.as_str(), &outcome)?;
    }
    Ok(())
}

async fn drift(log: &dyn Log, wanted: &[TopicSpec], json: bool) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    for spec in wanted {
        let described = log.describe_topic(&spec.name).await?;
        let unknown = described.as_ref().map(|described| &*described.unknown);
        let differences = drift::of_topic(spec, described.as_ref());
        findings.add(format!("topic '{}'", spec.name), differences, unknown);
    }
    findings.report(&counted(wanted.len(), "topic"), json)
}

async fn describe(log: &dyn Log, topic: Option<String>, json: bool) -> anyhow::Result<()> {
    let named = topic.is_some();
    let names = topic.map_or_else(
        || topics::all().map(|topic| topic.name).to_vec(),
        |one| vec![Topic::from(one.as_str())],
    );
    let mut found = Vec::new();
    for name in names {
        match log.describe_topic(&name).await? {
            Some(description) => found.push(description),
            None if named => {
                let there: Vec<_> = log.topics().await?.iter().map(Topic::to_string).collect();
                bail!("there is no topic `{name}`; there are: {}", there.join(", "));
            }
            None => {}
        }
    }
    if json {
        let topics: Vec<Value> = found.iter().map(as_json).collect();
        return say(&serde_json::to_string_pretty(&topics)?);
    }
    if found.is_empty() {
        return say("none of the model's topics is there; `courant topics create` makes them");
    }
    say(&found.iter().map(as_text).collect::<Vec<_>>().join("\n"))
}

fn as_json(topic: &TopicDescription) -> Value {
    let TopicDescription { spec, unknown, bytes } = topic;
    json!({
        "name": spec.name,
        "partitions": spec.partitions,
        "retention_seconds": spec.retention.age.map(|age| age.as_secs()),
        "retention_bytes": spec.retention.bytes,
        "replication": spec.replication,
        "unknown": unknown,
        "bytes": bytes,
    })
}

fn as_text(topic: &TopicDescription) -> String {
    let TopicDescription { spec, unknown, bytes } = topic;
    let known = |attribute: &str, text: Option<String>| {
        if unknown.contains(&attribute) {
            return "the server does not tell".to_owned();
        }
        text.unwrap_or_else(|| "without limit".to_owned())
    };
    let age = known("retention.age", spec.retention.age.map(|age| Span(age).to_string()));
    let by_size = spec.retention.bytes.map(|bytes| format!("{bytes} bytes per partition"));
    let lines = [
        ("partitions", spec.partitions.to_string()),
        ("kept for", age),
        ("kept up to", known("retention.bytes", by_size)),
        ("copies", spec.replication.to_string()),
        (
            "size",
            bytes.map_or_else(|| "the server does not tell".to_owned(), |bytes| format!("{bytes} bytes")),
        ),
    ];
    let lines = lines.map(|(label, value)| format!("  {label:<10} {value}\n"));
    format!("{}\n{}", spec.name, lines.concat())
}
