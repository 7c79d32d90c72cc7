use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::super::ask::list_of;
use super::super::member::{Changes, Client};
use super::super::serve::hold;
use super::*;
use crate::log::Topic;

/// The next error that is told.
fn told(partitions: &Partitions) -> Option<String> {
    match partitions.take(1)? {
        Next::Heard(Err(error)) => Some(error.to_string()),
        _ => panic!("there is nothing else to hear"),
    }
}

#[test]
fn what_stops_is_told_whatever_comes_after_it() {
    let partitions = Partitions::new();
    let damaged = || LogError::Damaged("offset 7".to_owned());
    let away = |broker: &str| LogError::Unavailable(broker.to_owned());
    let unknown = LogError::NoSuchPartition(TopicPartition::new(&Topic::from("t"), 3));
    for trouble in [damaged(), away("one"), unknown, damaged(), away("two")] {
        partitions.report(trouble);
    }
    let all: Vec<String> = std::iter::from_fn(|| told(&partitions)).collect();
    let expected = [
        "the stored data is damaged: offset 7",
        "topic 't' has no partition 3",
        "the log is not available: two",
    ];
    assert_eq!(all, expected, "each that stops, and the latest of those that pass");
}

/// Partition 1 of a mock cluster, which holds records, and its reader.
struct Busy {
    partitions: Arc<Partitions>,
    client: Arc<Client>,
    _cluster: MockCluster<'static, rdkafka::producer::DefaultProducerContext>,
}

impl Busy {
    fn with_records(count: u64) -> Self {
        let cluster = MockCluster::new(1).expect("a mock cluster starts");
        cluster.create_topic("t", 2, 1).expect("a topic is created");
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        // One batch, so that its records come together.
        let producer: BaseProducer = config.clone().set("linger.ms", "100").create().expect("a producer");
        for _ in 0..count {
            let record = BaseRecord::<(), str>::to("t").partition(1).payload("x");
            producer.send(record).map_err(|(error, _)| error).expect("there is room");
        }
        producer.flush(Duration::from_secs(30)).expect("the mock cluster answers");

        let partitions = Arc::new(Partitions::new());
        let context =
            MemberContext { partitions: Arc::clone(&partitions), changes: Arc::<Changes>::default() };
        let client = config.set("group.id", "g").create_with_context(context).expect("a reader");
        let client: Arc<Client> = Arc::new(client);
        let at = TopicPartition::new(&Topic::from("t"), 1);
        let held = hold(&client, &partitions, &at, 0, count).expect("a queue");
        let list = list_of(std::iter::once((&at, Offset::Offset(0)))).expect("a list");
        client.assign(&list).expect("partitions are taken");
        partitions.add(vec![(at, held)], false);
        Self { partitions, client, _cluster: cluster }
    }

    fn next(&self) -> Next {
        loop {
            if let Some(next) = self.partitions.take(1) {
                return next;
            }
            assert!(self.client.poll(Duration::from_millis(10)).is_none(), "records come by their partition");
        }
    }

    fn reads(&self) -> bool {
        matches!(self.next(), Next::Heard(Ok(Fetch::Records { .. })))
    }
}

#[test]
fn a_partition_that_is_never_empty_hides_no_other() {
    let busy = Busy::with_records(5);
    assert!(busy.reads());
    let lost = TopicPartition::new(&Topic::from("t"), 0);
    let outside = Held {
        queue: None,
        position: 100,
        end: 5,
        committed: None,
        at: SystemTime::UNIX_EPOCH,
        paused: false,
        fate: Fate::OutOfRange,
    };
    busy.partitions.add(vec![(lost.clone(), outside)], false);
    let is_told = || matches!(busy.next(), Next::OutOfRange(at, 100) if at == lost);
    assert!(is_told() && is_told(), "until it was told");
    busy.partitions.asked_in_vain();
    assert!(busy.reads(), "others go on while it cannot be told");
    assert!(is_told());
    busy.partitions.told_out_of_range(&lost);
    assert!(busy.reads());
    busy.partitions.report(LogError::Damaged("elsewhere".to_owned()));
    busy.partitions.report(LogError::Unavailable("for a moment".to_owned()));
    assert!(matches!(busy.next(), Next::Heard(Err(LogError::Damaged(_)))));
    assert!(busy.reads() && busy.reads());
    assert!(
        matches!(busy.next(), Next::Heard(Err(LogError::Unavailable(_)))),
        "when there is nothing to read"
    );
}

/// The thread of a reader may be asking where to begin when the reader is closed.
#[test]
fn a_reader_that_closes_takes_no_more_partitions() {
    let busy = Busy::with_records(1);
    assert!(Arc::strong_count(&busy.client) > 1, "a queue keeps its client");
    busy.partitions.close();
    let late = TopicPartition::new(&Topic::from("t"), 0);
    let held = hold(&busy.client, &busy.partitions, &late, 0, 0).expect("a queue");
    busy.partitions.add(vec![(late, held)], true);
    assert!(busy.partitions.lag().is_empty() && busy.partitions.take(1).is_none());
    assert_eq!(Arc::strong_count(&busy.client), 1, "nothing keeps it in its group");
}
