//! A log behind a grant.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use super::grant::{Access, Grant};
use crate::log::{
    AdminLog, Appended, Consumer, Log, LogError, NewRecord, Offsets, ReadLog, Reader, Result, Subscription,
    Topic, TopicCreated, TopicDescription, TopicSpec, Watermarks, WriteLog,
};

/// The same log, which refuses what is not granted before anything is sent. Clones share it.
#[derive(Clone)]
pub struct RestrictedLog {
    log: Arc<dyn Log>,
    grant: Arc<Grant>,
}

impl RestrictedLog {
    pub fn new(log: Arc<dyn Log>, grant: Arc<Grant>) -> Self {
        Self { log, grant }
    }

    fn check(&self, topic: &Topic, access: Access) -> Result<()> {
        if self.grant.allows_topic(topic.as_str(), access) {
            return Ok(());
        }
        Err(LogError::NotAllowed { access: access.verb(), name: topic.to_string() })
    }

    fn check_offsets(&self, offsets: &Offsets) -> Result<()> {
        offsets.keys().try_for_each(|partition| self.check(&partition.topic, Access::Read))
    }
}

/// No grant is for making, describing or removing topics.
fn no_admin<T>(what: &str) -> Result<T> {
    Err(LogError::NotAllowed { access: "administer", name: what.to_owned() })
}

#[async_trait]
impl ReadLog for RestrictedLog {
    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Consumer>> {
        subscription.topics.iter().try_for_each(|topic| self.check(topic, Access::Read))?;
        self.log.subscribe(subscription).await
    }

    async fn read_from(&self, offsets: Offsets) -> Result<Box<dyn Reader>> {
        self.check_offsets(&offsets)?;
        self.log.read_from(offsets).await
    }

    async fn watermarks(&self, topic: &Topic) -> Result<Vec<Watermarks>> {
        self.check(topic, Access::Read)?;
        self.log.watermarks(topic).await
    }

    async fn offsets_at(&self, topic: &Topic, time: SystemTime) -> Result<Offsets> {
        self.check(topic, Access::Read)?;
        self.log.offsets_at(topic, time).await
    }

    async fn committed(&self, group: &str, topic: &Topic) -> Result<Offsets> {
        self.check(topic, Access::Read)?;
        self.log.committed(group, topic).await
    }

    async fn reset_group(&self, group: &str, offsets: &Offsets) -> Result<()> {
        self.check_offsets(offsets)?;
        self.log.reset_group(group, offsets).await
    }
}

#[async_trait]
impl WriteLog for RestrictedLog {
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>> {
        if self.grant.allows_topic(topic.as_str(), Access::Write) {
            return self.log.produce(topic, records).await;
        }
        let refusal = |_| Err(LogError::NotAllowed { access: Access::Write.verb(), name: topic.to_string() });
        records.iter().map(refusal).collect()
    }
}

#[async_trait]
impl AdminLog for RestrictedLog {
    async fn topics(&self) -> Result<Vec<Topic>> {
        no_admin("topics")
    }

    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicCreated> {
        no_admin(spec.name.as_str())
    }

    async fn describe_topic(&self, topic: &Topic) -> Result<Option<TopicDescription>> {
        no_admin(topic.as_str())
    }

    async fn delete_topic(&self, topic: &Topic) -> Result<()> {
        no_admin(topic.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{StartAt, TopicPartition};
    use crate::model::topics;

    /// Every question that is let through reaches it and fails in a way of its own.
    struct Reached;

    fn reached<T>() -> Result<T> {
        Err(LogError::Unavailable("reached".into()))
    }

    #[async_trait]
    impl ReadLog for Reached {
        async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Consumer>> {
            reached()
        }
        async fn read_from(&self, _: Offsets) -> Result<Box<dyn Reader>> {
            reached()
        }
        async fn watermarks(&self, _: &Topic) -> Result<Vec<Watermarks>> {
            reached()
        }
        async fn offsets_at(&self, _: &Topic, _: SystemTime) -> Result<Offsets> {
            reached()
        }
        async fn committed(&self, _: &str, _: &Topic) -> Result<Offsets> {
            reached()
        }
        async fn reset_group(&self, _: &str, _: &Offsets) -> Result<()> {
            reached()
        }
    }

    #[async_trait]
    impl WriteLog for Reached {
        async fn produce(&self, _: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended>> {
            records.iter().map(|_| reached()).collect()
        }
    }

    #[async_trait]
    impl AdminLog for Reached {
        async fn topics(&self) -> Result<Vec<Topic>> {
            reached()
        }
        async fn create_topic(&self, _: &TopicSpec) -> Result<TopicCreated> {
            reached()
        }
        async fn describe_topic(&self, _: &Topic) -> Result<Option<TopicDescription>> {
            reached()
        }
        async fn delete_topic(&self, _: &Topic) -> Result<()> {
            reached()
        }
    }

    const TOPIC: &str = topics::messages_persisted::NAME;

    /// Everything a log can be asked about one topic, beside the access it takes.
    async fn ask_everything(log: &dyn Log) -> Vec<(&'static str, Result<()>)> {
        let topic = Topic::from(TOPIC);
        let offsets = Offsets::from([(TopicPartition::new(&topic, 0), 0)]);
        let subscription =
            Subscription { group: "g".to_owned(), topics: vec![topic.clone()], start: StartAt::Oldest };
        let mut answers = vec![
            ("read", log.subscribe(subscription).await.map(drop)),
            ("read", log.read_from(offsets.clone()).await.map(drop)),
            ("read", log.watermarks(&topic).await.map(drop)),
            ("read", log.offsets_at(&topic, SystemTime::UNIX_EPOCH).await.map(drop)),
            ("read", log.committed("g", &topic).await.map(drop)),
            ("read", log.reset_group("g", &offsets).await),
            ("administer", log.topics().await.map(drop)),
            ("administer", log.create_topic(&topics::messages_persisted::spec()).await.map(drop)),
            ("administer", log.describe_topic(&topic).await.map(drop)),
            ("administer", log.delete_topic(&topic).await),
        ];
        let produced = log.produce(&topic, vec![NewRecord::default(), NewRecord::default()]).await;
        assert_eq!(produced.len(), 2, "one answer per record, refused or not");
        answers.extend(produced.into_iter().map(|answer| ("write", answer.map(drop))));
        answers
    }

    #[tokio::test]
    async fn each_access_allows_its_own_and_nothing_else() {
        let grants = [
            ("read", Grant::nothing().topic(TOPIC, Access::Read)),
            ("write", Grant::nothing().topic(TOPIC, Access::Write)),
            ("nothing", Grant::nothing().topic("other", Access::Read).table(TOPIC, Access::Write)),
        ];
        for (granted, grant) in grants {
            let log = RestrictedLog::new(Arc::new(Reached), Arc::new(grant));
            for (index, (takes, answer)) in ask_everything(&log).await.into_iter().enumerate() {
                match answer.unwrap_err() {
                    LogError::Unavailable(_) => assert_eq!(takes, granted, "question {index}"),
                    LogError::NotAllowed { access, .. } => {
                        assert_eq!(access, takes, "question {index}");
                        assert_ne!(takes, granted, "question {index}");
                    }
                    error => panic!("question {index}: {error}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn one_topic_outside_the_grant_refuses_the_whole() {
        let grant = Grant::nothing().topic(TOPIC, Access::Read);
        let log = RestrictedLog::new(Arc::new(Reached), Arc::new(grant));
        let topics = vec![Topic::from(TOPIC), Topic::from("other")];
        let subscription = Subscription { group: "g".to_owned(), topics, start: StartAt::Oldest };
        let error = log.subscribe(subscription).await.map(drop).unwrap_err();
        assert_eq!(error.to_string(), "this handle may not read 'other'");
    }
}
