//! librdkafka's mock cluster: brokers in this process that fail when told to.
//!
//! It has no administration and finds no times, and forgets a topic never.

use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::kafka::{Kafka, KafkaConfig};
use courant_connectors::log::{Log, Topic, TopicSpec};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::log::LogServer;

pub struct MockKafka {
    brokers: String,
    commands: std::sync::mpsc::SyncSender<Command>,
}

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Command = Box<dyn FnOnce(&Cluster) + Send>;

impl MockKafka {
    /// # Panics
    /// If the brokers cannot listen.
    pub fn start(brokers: i32) -> Self {
        // The cluster may not change threads, so one owns it. Full: who gives commands waits for each anyway.
        let (commands, received) = std::sync::mpsc::sync_channel::<Command>(1);
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let cluster = Cluster::new(brokers).expect("a mock cluster starts");
            tell.send(cluster.bootstrap_servers()).expect("the starter waits");
            while let Ok(command) = received.recv() {
                command(&cluster);
            }
        });
        Self { brokers: told.recv().expect("the mock cluster started"), commands }
    }

    /// Does something with the cluster, such as breaking it.
    pub fn with<T: Send + 'static>(&self, action: impl FnOnce(&Cluster) -> T + Send + 'static) -> T {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let command: Command = Box::new(move |cluster| {
            let _ = tell.send(action(cluster));
        });
        self.commands.send(command).expect("the mock cluster runs");
        told.recv().expect("the action did not panic")
    }

    pub fn config(&self) -> KafkaConfig {
        KafkaConfig::at(self.brokers.clone())
    }

    pub fn create(&self, topic: &Topic, partitions: u32) {
        let (topic, partitions) = (topic.clone(), i32::try_from(partitions).expect("a few"));
        self.with(move |cluster| cluster.create_topic(topic.as_str(), partitions, 1))
            .expect("a topic is created");
    }
}

#[async_trait]
impl LogServer for MockKafka {
    async fn log(&self) -> Arc<dyn Log> {
        Arc::new(Kafka::open(self.config()).await.expect("the mock cluster answers"))
    }

    async fn create_topic(&self, spec: &TopicSpec) {
        self.create(&spec.name, spec.partitions);
    }
}
