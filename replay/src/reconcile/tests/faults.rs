//! A store that throttles and a log that refuses, loses answers and goes away, in the middle of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use courant_connectors::embedded::Engine;
use courant_connectors::log::{Appended, LogError, NewRecord, Topic, WriteLog};
use courant_connectors::model::ChatId;
use courant_connectors::store::{Get, Item, Page, Query, ReadStore, Scan, ScanStore, StoreError};
use tokio_util::sync::CancellationToken;

use super::{copies, events, publishing, repairable, run};
use crate::reconcile::{ReconcileError, Repairable, reconcile};
use crate::verify::VerifyError;
use crate::verify::tests::world::World;

/// Throttles every third question.
struct Throttling {
    engine: Arc<Engine>,
    asked: AtomicUsize,
}

impl Throttling {
    fn ask(&self) -> Result<(), StoreError> {
        match self.asked.fetch_add(1, Ordering::Relaxed) % 3 {
            2 => Err(StoreError::Throttled("too many".to_owned())),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ReadStore for Throttling {
    async fn get(&self, get: Get) -> Result<Option<Item>, StoreError> {
        self.ask()?;
        self.engine.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>, StoreError> {
        self.ask()?;
        self.engine.batch_get(gets).await
    }

    async fn query(&self, query: Query) -> Result<Page, StoreError> {
        self.ask()?;
        self.engine.query(query).await
    }
}

#[async_trait]
impl ScanStore for Throttling {
    async fn scan(&self, scan: Scan) -> Result<Page, StoreError> {
        self.ask()?;
        self.engine.scan(scan).await
    }
}

#[derive(Clone, Copy)]
enum Trouble {
    /// The second half of a call is not appended.
    Refuses,
    /// Everything is appended, and nobody is told.
    LosesAnswers,
    /// The second half of a call is not appended, nor anything after it.
    GoesAway,
}

/// In trouble with its first calls.
struct Troubled {
    engine: Arc<Engine>,
    trouble: Trouble,
    calls: AtomicUsize,
}

#[async_trait]
impl WriteLog for Troubled {
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended, LogError>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let down = || LogError::Unavailable("no broker".to_owned());
        let half = records.len() / 2;
        match self.trouble {
            Trouble::GoesAway if call > 0 => records.iter().map(|_| Err(down())).collect(),
            Trouble::Refuses | Trouble::GoesAway if call < 2 => {
                let (first, second) = records.split_at(half);
                let mut answers = self.engine.produce(topic, first.to_vec()).await;
                answers.extend(second.iter().map(|_| Err(down())));
                answers
            }
            Trouble::LosesAnswers if call < 2 => {
                let appended = self.engine.produce(topic, records).await;
                appended.iter().map(|_| Err(LogError::UnknownOutcome("no answer".to_owned()))).collect()
            }
            _ => self.engine.produce(topic, records).await,
        }
    }
}

const MISSING: u64 = 12;

/// Three chats of which every second event is missing.
async fn damaged() -> World {
    let world = World::empty().await;
    for _ in 0..3 {
        let (chat, user) = world.own_chat().await;
        for number in 0..8 {
            let message = world.message(&chat, &user).await;
            world.store_message(&message).await;
            if number % 2 == 0 {
                world.publish(&message).await;
            }
        }
    }
    world
}

fn troubled(world: &World, trouble: Trouble) -> Repairable {
    let engine = Arc::clone(&world.engine);
    let log = Arc::new(Troubled { engine, trouble, calls: AtomicUsize::new(0) });
    Repairable { log, ..repairable(&world.engine) }
}

/// New events of a chat, copies left aside, are in order.
async fn assert_in_order(world: &World) {
    let mut last: std::collections::BTreeMap<ChatId, u64> = std::collections::BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for event in events(&world.engine).await {
        let (chat, sequence) = (event.payload.chat_id, event.payload.sequence);
        if sequence % 2 == 0 && seen.insert((chat.clone(), sequence)) {
            assert!(last.insert(chat, sequence).is_none_or(|before| before < sequence), "{sequence}");
        }
    }
}

#[tokio::test]
async fn a_store_that_throttles_makes_it_slow_and_not_wrong() {
    let world = damaged().await;
    let store = Arc::new(Throttling { engine: Arc::clone(&world.engine), asked: AtomicUsize::new(0) });
    let mut throttled = repairable(&world.engine);
    (throttled.deployment.store, throttled.deployment.scan) = (Arc::clone(&store) as _, store as _);
    let report = reconcile(throttled, publishing(), |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!((report.published.unwrap().events, report.left()), (MISSING, 0));
    assert!(copies(&world.engine).await.values().all(|copies| *copies == 1));
}

#[tokio::test]
async fn what_the_log_refuses_is_given_to_it_again_in_order() {
    let world = damaged().await;
    let work = troubled(&world, Trouble::Refuses);
    let report = reconcile(work, publishing(), |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!((report.published.unwrap().events, report.left()), (MISSING, 0));
    assert!(copies(&world.engine).await.values().all(|copies| *copies == 1));
    assert_in_order(&world).await;
}

#[tokio::test]
async fn what_may_have_been_published_is_published_again_and_can_be_known() {
    let world = damaged().await;
    let work = troubled(&world, Trouble::LosesAnswers);
    let report = reconcile(work, publishing(), |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!(report.left(), 0);
    let events = events(&world.engine).await;
    let ids: std::collections::BTreeSet<_> = events.iter().map(|event| event.event_id.to_string()).collect();
    assert_eq!(ids.len(), 24, "each copy has the id of the first");
    assert_in_order(&world).await;
    assert_eq!(run(&world.engine, publishing()).await.without_event(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_goes_away_ends_it_with_what_was_done() {
    let world = damaged().await;
    let work = troubled(&world, Trouble::GoesAway);
    let error = reconcile(work, publishing(), |_| {}, CancellationToken::new()).await.unwrap_err();
    let ReconcileError::CutOff { published, source: VerifyError::Log { .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*published, MISSING / 2);
    assert!(error.to_string().starts_with("6 events were published and 0 groups swept"), "{error}");
    let rest = run(&world.engine, publishing()).await.published.unwrap().events;
    assert_eq!(rest, MISSING / 2, "run again, it does the rest");
}
