//! What is missing is published once and as it would have been; what moves, or is not there any more, is left alone.

mod faults;
mod property;
mod publishing;
mod sweeping;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::embedded::Engine;
use courant_connectors::log::{Fetch, ReadLog as _, Topic, TopicPartition};
use courant_connectors::model::topics::{MessagePersisted, messages_persisted};
use tokio_util::sync::CancellationToken;

use super::{Options, Repairable, Report, reconcile};
use crate::verify::Deployment;

fn repairable(engine: &Arc<Engine>) -> Repairable {
    let deployment = Deployment {
        store: Arc::clone(engine) as _,
        scan: Arc::clone(engine) as _,
        log: Arc::clone(engine) as _,
    };
    Repairable { deployment, store: Arc::clone(engine) as _, log: Arc::clone(engine) as _ }
}

fn options() -> Options {
    Options { grace: Duration::from_millis(20), examples: 1000, ..Options::default() }
}

fn publishing() -> Options {
    Options { publish: true, ..options() }
}

async fn run(engine: &Arc<Engine>, options: Options) -> Report {
    reconcile(repairable(engine), options, |_| {}, CancellationToken::new()).await.unwrap()
}

/// Every event that the log holds, in order within a chat.
async fn events(engine: &Arc<Engine>) -> Vec<MessagePersisted> {
    let topic = Topic::from(messages_persisted::NAME);
    let mut events = Vec::new();
    for (number, marks) in (0..).zip(engine.watermarks(&topic).await.unwrap()) {
        let partition = TopicPartition::new(&topic, number);
        let mut at = marks.low;
        let mut reader = engine.read_from([(partition, at)].into()).await.unwrap();
        while at < marks.high {
            if let Fetch::Records { records, .. } = reader.fetch(1000).await.unwrap() {
                at = records.last().unwrap().offset + 1;
                events.extend(records.iter().map(|record| MessagePersisted::decode(record).unwrap()));
            }
        }
    }
    events
}

/// How often each event is in the log, by chat and sequence.
async fn copies(engine: &Arc<Engine>) -> BTreeMap<(String, u64), usize> {
    let mut copies = BTreeMap::new();
    for event in events(engine).await {
        let name = (event.payload.chat_id.to_string(), event.payload.sequence);
        *copies.entry(name).or_default() += 1;
    }
    copies
}
