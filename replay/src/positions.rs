//! Where a pipeline goes on that reads topics as a member of a group.
//!
//! The group remembers how far it came. When what it has not read was removed from the log, its pipeline stops rather than
//! skip it unasked; when a pipeline should read again, or leave out, somebody has to say so. Both are a [`reset`]. It is
//! refused while anybody reads with the group, in any process, since a member would commit over it: the log is asked, and
//! not only this process.
//!
//! Rejected: a new name for the group. It leaves the old one behind in the log, and every process of it has to be
//! given the new one at the same time.

use std::fmt;
use std::str::FromStr;

use courant_connectors::log::{LogError, Offsets, ReadLog, Topic, TopicPartition};
use courant_connectors::model::Timestamp;
use courant_pipeline::config::Topology;
use courant_stages::sources::kafka_consume;
use serde::{Deserialize, Serialize};

/// Where to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum To {
    /// With everything that the log still holds.
    Oldest,
    /// With what is published from now on.
    Latest,
    /// With what was published at this moment or later.
    Moment(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not where a log can be read from; write oldest, latest, or a moment like 2026-01-30T14:30:00.000Z"
)]
pub struct NotAPlace(String);

impl FromStr for To {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Self, NotAPlace> {
        match text {
            "oldest" => Ok(Self::Oldest),
            "latest" => Ok(Self::Latest),
            moment => moment.parse().map(Self::Moment).map_err(|_| NotAPlace(text.to_owned())),
        }
    }
}

/// A group, and where it is to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    pub pipeline: String,
    pub group: String,
    pub topics: Vec<Topic>,
    pub to: To,
}

#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    #[error("the file has no pipeline `{pipeline}`; it has: {}", known.join(", "))]
    NoSuchPipeline { pipeline: String, known: Vec<String> },
    #[error(
        "pipeline `{pipeline}` reads no topics, its source is `{source_kind}`; \
         `courant positions forget {pipeline}` starts it over"
    )]
    NoGroup { pipeline: String, source_kind: &'static str },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A partition whose group was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    pub partition: TopicPartition,
    /// None if the group had not read it.
    pub before: Option<u64>,
    pub now: u64,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
        write!(f, "{:<32} {before} -> {}", self.partition.to_string(), self.now)
    }
}

impl Reset {
    /// Of the group that a pipeline reads with.
    pub fn of(topologies: &[Topology], pipeline: &str, to: To) -> Result<Self, ResetError> {
        let Some(topology) = topologies.iter().find(|topology| *topology.name == *pipeline) else {
            let known = topologies.iter().map(|topology| topology.name.to_string()).collect();
            return Err(ResetError::NoSuchPipeline { pipeline: pipeline.to_owned(), known });
        };
        let Some(subscription) = kafka_consume::subscription(topology) else {
            let source_kind = topology.source().spec.kind;
            return Err(ResetError::NoGroup { pipeline: pipeline.to_owned(), source_kind });
        };
        let (group, topics) = (subscription.group, subscription.topics);
        Ok(Self { pipeline: pipeline.to_owned(), group, topics, to })
    }
}

/// Sets every partition of the group's topics, or none.
pub async fn reset(log: &dyn ReadLog, reset: &Reset) -> Result<Vec<Moved>, ResetError> {
    let mut goal = Offsets::new();
    let mut before = Offsets::new();
    for topic in &reset.topics {
        goal.extend(places(log, topic, reset.to).await?);
        before.extend(log.committed(&reset.group, topic).await?);
    }
    log.reset_group(&reset.group, &goal).await?;
    let moved = goal.into_iter().map(|(partition, now)| {
        let before = before.get(&partition).copied();
        Moved { partition, before, now }
    });
    Ok(moved.collect())
}

async fn places(log: &dyn ReadLog, topic: &Topic, to: To) -> Result<Offsets, LogError> {
    if let To::Moment(moment) = to {
        return log.offsets_at(topic, moment.into()).await;
    }
    let marks = log.watermarks(topic).await?;
    let places = (0..).zip(marks).map(|(partition, marks)| {
        let offset = if to == To::Oldest { marks.low } else { marks.high };
        (TopicPartition::new(topic, partition), offset)
    });
    Ok(places.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_of_the_ends_or_a_moment() {
        assert_eq!(("oldest".parse(), "latest".parse()), (Ok(To::Oldest), Ok(To::Latest)));
        let moment = Timestamp::from_unix_millis(1_769_783_400_000);
        assert_eq!(moment.to_string().parse(), Ok(To::Moment(moment)));
        let wrong = "yesterday".parse::<To>().unwrap_err().to_string();
        assert!(wrong.contains("'yesterday'") && wrong.contains("oldest, latest"), "{wrong}");
    }

    #[test]
    fn what_goes_over_the_admin_socket_comes_back() {
        let reset = Reset {
            pipeline: "fanout".to_owned(),
            group: "fanout".to_owned(),
            topics: vec!["messages.persisted".into()],
            to: To::Moment(Timestamp::from_unix_millis(5)),
        };
        let sent = serde_json::to_value(&reset).unwrap();
        assert_eq!(serde_json::from_value::<Reset>(sent).unwrap(), reset);
    }
}
