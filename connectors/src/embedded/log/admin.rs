//! Making, describing and deleting topics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::super::Engine;
use super::super::committer::{CommitError, Job};
use super::super::group::Group;
use super::super::shared::Shared;
use super::topic::{StoredTopic, TopicEntry};
use super::{read_error, settle};
use crate::log::{AdminLog, LogError, Result, Topic, TopicCreated, TopicDescription, TopicSpec};

/// In the catalog's keyspace; followed by the topic's name.
const TOPIC: &str = "topic/";
/// Each has its ends in memory, so there is a limit.
const MAX_PARTITIONS: u32 = 10_000;

#[async_trait]
impl AdminLog for Engine {
    async fn topics(&self) -> Result<Vec<Topic>> {
        let mut names: Vec<Topic> = self.shared.topics().keys().cloned().collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicCreated> {
        if spec.partitions == 0 || spec.partitions > MAX_PARTITIONS {
            return Err(LogError::Invalid(format!(
                "a topic has 1 to {MAX_PARTITIONS} partitions, and not {}",
                spec.partitions
            )));
        }
        let (reply, answer) = oneshot::channel();
        let job =
            CreateTopic { shared: Arc::clone(&self.shared), spec: spec.clone(), outcome: Ok(None), reply };
        self.done(Box::new(job), answer).await
    }

    async fn describe_topic(&self, topic: &Topic) -> Result<Option<TopicDescription>> {
        let Some(topic) = self.shared.topics().get(topic).cloned() else { return Ok(None) };
        let spec = TopicSpec { replication: 1, ..topic.spec.clone() };
        // one copy is all there can be, so it is no drift either
        let unknown = vec!["replication"];
        Ok(Some(TopicDescription { spec, unknown, bytes: Some(topic.chunks.disk_space()) }))
    }

    async fn delete_topic(&self, topic: &Topic) -> Result<()> {
        let topic = self.topic(topic)?;
        let (reply, answer) = oneshot::channel();
        let job = DeleteTopic { shared: Arc::clone(&self.shared), topic, outcome: Ok(()), reply };
        self.done(Box::new(job), answer).await
    }
}

impl Engine {
    async fn done<T>(&self, job: Box<dyn Job>, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        self.committer.submit(job).await;
        answer.await.unwrap_or_else(|_| Err(LogError::UnknownOutcome("the engine ended".to_owned())))
    }
}

/// Opens every topic of the catalog.
pub(in crate::embedded) fn open_topics(shared: &Shared) -> Result<()> {
    for row in shared.catalog_rows.prefix(TOPIC) {
        let value = row.value().map_err(read_error)?;
        let entry: TopicEntry = postcard::from_bytes(&value)
            .map_err(|error| LogError::Damaged(format!("a topic of the catalog cannot be read: {error}")))?;
        shared.add_topic(Arc::new(StoredTopic::open(&shared.database, &entry)?));
    }
    Ok(())
}

fn catalog_key(topic: &Topic) -> Vec<u8> {
    format!("{TOPIC}{topic}").into_bytes()
}

struct CreateTopic {
    shared: Arc<Shared>,
    spec: TopicSpec,
    outcome: Result<Option<Arc<StoredTopic>>>,
    reply: oneshot::Sender<Result<TopicCreated>>,
}

impl CreateTopic {
    fn create(&self, group: &mut Group) -> Result<Option<Arc<StoredTopic>>> {
        let key = catalog_key(&self.spec.name);
        if group.get(&self.shared.catalog_rows, &key).map_err(read_error)?.is_some() {
            return Ok(None);
        }
        let number = self.shared.next_number(group).map_err(read_error)?;
        let entry = TopicEntry { number, spec: self.spec.clone() };
        let topic = StoredTopic::open(&self.shared.database, &entry)?;
        let bytes = postcard::to_allocvec(&entry).expect("a topic's entry can always be written to memory");
        group.put(&self.shared.catalog_rows, key, bytes);
        Ok(Some(Arc::new(topic)))
    }
}

impl Job for CreateTopic {
    fn bytes(&self) -> usize {
        1024
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.create(group);
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let created = settle(self.outcome, committed).map(|topic| match topic {
            Some(topic) => {
                self.shared.add_topic(topic);
                let copies = self.spec.replication;
                let warning = format!(
                    "the embedded engine keeps one copy of topic '{}', and not {copies}",
                    self.spec.name
                );
                TopicCreated::New { warnings: if copies > 1 { vec![warning] } else { Vec::new() } }
            }
            None => TopicCreated::Existing,
        });
        // a caller that went away does not want to know
        let _ = self.reply.send(created);
    }
}

struct DeleteTopic {
    shared: Arc<Shared>,
    topic: Arc<StoredTopic>,
    outcome: Result<()>,
    reply: oneshot::Sender<Result<()>>,
}

impl Job for DeleteTopic {
    fn bytes(&self) -> usize {
        1024
    }

    fn decide(&mut self, group: &mut Group) {
        self.outcome = self.topic.check_exists();
        if self.outcome.is_ok() {
            self.topic.deleted.store(true, Ordering::Relaxed);
            group.remove(&self.shared.catalog_rows, catalog_key(self.topic.name()));
        }
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), &CommitError>) {
        let deleted = settle(self.outcome, committed).and_then(|()| {
            self.shared.remove_topic(self.topic.name());
            self.topic.announce();
            // emptied and not deleted: see `Shared::empty_leftovers`
            self.topic.chunks.clear().map_err(read_error)
        });
        // a caller that went away does not want to know
        let _ = self.reply.send(deleted);
    }
}
