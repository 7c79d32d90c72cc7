//! What the log does not hold any more is not missed, and what came late is not missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use courant_connectors::embedded::{Clock, Engine, Options as EngineOptions};
use courant_connectors::log::{AdminLog as _, Fetch, ReadLog as _, Topic, TopicPartition, WriteLog as _};
use courant_connectors::model::tables::TABLES;
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::topics::{self, MessagePersisted, messages_persisted};
use courant_connectors::model::{Timestamp, UserId};
use courant_connectors::store::{AdminStore as _, Durability, Returning, WriteStore as _};
use tokio_util::sync::CancellationToken;

use super::world::{DAY, HOUR, World, message, options};
use crate::verify::context::{before, now};
use crate::verify::{Deployment, Options, Report, verify};

/// An engine whose clock can be set, with one chat's messages in it.
pub(crate) struct Past {
    pub(crate) engine: Arc<Engine>,
    clock: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

impl Past {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicU64::new(now().unix_millis()));
        let time = Arc::clone(&clock);
        let reading = move || SystemTime::UNIX_EPOCH + Duration::from_millis(time.load(Ordering::Relaxed));
        let engine_options = EngineOptions { clock: Clock::from_fn(reading), ..EngineOptions::default() };
        let engine = Engine::open(folder.path(), engine_options).await.unwrap();
        for schema in TABLES {
            engine.create_table(schema).await.unwrap();
        }
        for topic in topics::all() {
            engine.create_topic(&topic).await.unwrap();
        }
        Self { engine, clock, _folder: folder }
    }

    pub(crate) fn set_clock(&self, time: Timestamp) {
        self.clock.store(time.unix_millis(), Ordering::Relaxed);
    }

    /// Stores a message of that time, and publishes it then or not at all.
    pub(crate) async fn store(&self, chat: &str, sequence: u64, at: Timestamp, published: bool) -> Message {
        let stored = message(&chat.into(), &UserId::generate(), sequence, at);
        let write = messages::put_write(&stored);
        self.engine.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
        if published {
            self.set_clock(at);
            self.publish(&stored).await;
        }
        stored
    }

    pub(crate) async fn publish(&self, stored: &Message) {
        let record = MessagePersisted::of(stored.clone()).encode();
        for appended in self.engine.produce(&messages_persisted::NAME.into(), vec![record]).await {
            appended.unwrap();
        }
    }

    /// When the first event was appended that each partition still holds.
    pub(crate) async fn first_events(&self) -> Vec<Timestamp> {
        let topic = Topic::from(messages_persisted::NAME);
        let mut firsts = Vec::new();
        for (number, marks) in (0..).zip(self.engine.watermarks(&topic).await.unwrap()) {
            if marks.low == marks.high {
                continue;
            }
            let from = [(TopicPartition::new(&topic, number), marks.low)].into();
            let mut reader = self.engine.read_from(from).await.unwrap();
            while let Fetch::Records { records, .. } = reader.fetch(1).await.unwrap() {
                if let Some(first) = records.first() {
                    firsts.push(first.at.into());
                    break;
                }
            }
        }
        firsts
    }

    async fn verify(&self, options: Options) -> Report {
        let engine = &self.engine;
        let deployment = Deployment {
            store: Arc::clone(engine) as _,
            scan: Arc::clone(engine) as _,
            log: Arc::clone(engine) as _,
        };
        verify(deployment, options, |_| {}, CancellationToken::new()).await.unwrap()
    }
}

fn events_only() -> Options {
    Options { only: vec!["message-event".to_owned()], ..options() }
}

fn missing(report: &Report) -> Vec<u64> {
    let check = report.checks.iter().find(|check| check.id == "message-event").unwrap();
    check.examples.iter().filter_map(|example| example.sequence).collect()
}

#[tokio::test]
async fn messages_from_before_what_the_log_holds_need_no_event() {
    let past = Past::new().await;
    let ago = |days: u32| before(now(), days * DAY);
    past.store("chat_1", 1, ago(9), true).await;
    past.store("chat_1", 2, ago(8), false).await; // nobody can tell any more
    past.store("chat_1", 3, ago(6), true).await;
    past.store("chat_1", 4, ago(5), false).await;
    past.store("chat_1", 5, ago(4), true).await;
    past.set_clock(now());
    past.engine.sweep().await;
    let report = past.verify(events_only()).await;
    assert_eq!(missing(&report), [4]);
    assert_eq!(report.figures.before_the_log, 2);
    let since = Options { events_since: Some(ago(5).plus(HOUR)), ..events_only() };
    assert_eq!(missing(&past.verify(since).await), [0; 0]);
}

#[tokio::test]
async fn a_partition_that_holds_nothing_any_more_is_complete_for_as_long_as_it_is_kept() {
    let past = Past::new().await;
    past.store("chat_1", 1, before(now(), 9 * DAY), true).await;
    past.store("chat_1", 2, before(now(), 8 * DAY), false).await;
    past.set_clock(now());
    past.engine.sweep().await;
    past.store("chat_1", 3, before(now(), 2 * DAY), false).await;
    assert_eq!(missing(&past.verify(events_only()).await), [3]);
    let shorter = Options { events_kept: DAY, ..events_only() };
    assert_eq!(missing(&past.verify(shorter).await), [0; 0], "a log that keeps less cannot tell");
}

#[tokio::test]
async fn what_is_new_is_given_time_and_counted() {
    let past = Past::new().await;
    past.store("chat_1", 1, now(), false).await;
    let patient = Options { grace: HOUR, ..events_only() };
    let report = past.verify(patient).await;
    assert_eq!((missing(&report).len(), report.figures.too_new), (0, 1));
}

/// The event comes after the log was read and before anybody says that it is missing.
#[tokio::test]
async fn an_event_that_came_late_is_not_missing() {
    let world = World::empty().await;
    let (chat, user) = world.own_chat().await;
    let (late, never) = (world.message(&chat, &user).await, world.message(&chat, &user).await);
    world.store_message(&late).await;
    world.store_message(&never).await;
    let (engine, event) = (Arc::clone(&world.engine), MessagePersisted::of(late).encode());
    let publishing = move |progress: crate::verify::Progress| {
        if progress.phase == "idempotency_keys" && progress.done == 0 {
            let (engine, event) = (Arc::clone(&engine), event.clone());
            let publish = async move { engine.produce(&messages_persisted::NAME.into(), vec![event]).await };
            let published = std::thread::spawn(move || futures::executor::block_on(publish)).join().unwrap();
            assert!(published.iter().all(Result::is_ok));
        }
    };
    let report = verify(world.deployment(), options(), publishing, CancellationToken::new()).await.unwrap();
    assert_eq!(missing(&report), [2]);
}
