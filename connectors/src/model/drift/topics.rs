//! Topics compared with their specs.

use std::time::Duration;

use super::{Comparison, Difference};
use crate::log::{TopicDescription, TopicSpec};

/// What is different about a topic; `None` is one that is not there.
pub fn of_topic(wanted: &TopicSpec, described: Option<&TopicDescription>) -> Vec<Difference> {
    let mut comparison = Comparison::new(format!("topic '{}'", wanted.name));
    let Some(TopicDescription { spec, unknown, .. }) = described else {
        comparison.differs("the topic", "missing", "there");
        return comparison.found;
    };
    let is_known = |attribute| !unknown.contains(&attribute);
    comparison.compare("number of partitions", &spec.partitions, &wanted.partitions, u32::to_string);
    if is_known("retention.age") {
        comparison.compare("retention", &spec.retention.age, &wanted.retention.age, |age| age_words(*age));
    }
    if is_known("retention.bytes") {
        comparison.compare("retention by size", &spec.retention.bytes, &wanted.retention.bytes, |bytes| {
            bytes.map_or_else(|| "without limit".into(), |bytes| format!("{bytes} bytes per partition"))
        });
    }
    if is_known("replication") {
        comparison.compare("number of copies", &spec.replication, &wanted.replication, u16::to_string);
    }
    comparison.found
}

fn age_words(age: Option<Duration>) -> String {
    age.map_or_else(|| "without limit".into(), |age| humantime::format_duration(age).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Retention;
    use crate::model::topics;

    fn said(change: impl FnOnce(&mut TopicDescription)) -> Vec<String> {
        let wanted = topics::chats_created::spec();
        let mut description = TopicDescription { spec: wanted.clone(), unknown: Vec::new(), bytes: None };
        change(&mut description);
        of_topic(&wanted, Some(&description)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_topic_as_in_the_model_has_no_difference() {
        assert_eq!(said(|_| {}), [""; 0]);
    }

    #[test]
    fn a_missing_topic_is_one_difference() {
        let found = of_topic(&topics::chats_created::spec(), None);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["topic 'chats.created': the topic is missing, and should be there"]);
    }

    #[test]
    fn partitions_and_copies_are_counted() {
        let said = said(|topic| {
            topic.spec.partitions = 6;
            topic.spec.replication = 1;
        });
        assert_eq!(
            said,
            [
                "topic 'chats.created': number of partitions is 6, and should be 12",
                "topic 'chats.created': number of copies is 1, and should be 3",
            ]
        );
    }

    #[test]
    fn retention_is_compared_by_age_and_size() {
        let limited = said(|topic| topic.spec.retention = Retention { age: None, bytes: Some(1000) });
        assert_eq!(
            limited,
            [
                "topic 'chats.created': retention is without limit, and should be 7days",
                "topic 'chats.created': retention by size is 1000 bytes per partition, and should be without limit",
            ]
        );
    }

    #[test]
    fn what_the_log_does_not_tell_is_no_difference() {
        let said = said(|topic| {
            topic.spec.retention = Retention { age: None, bytes: Some(1) };
            topic.spec.replication = 1;
            topic.unknown = vec!["retention.age", "retention.bytes", "replication"];
        });
        assert_eq!(said, [""; 0]);
    }
}
