//! Recovering while others write, on the embedded engine and on a server that speaks DynamoDB's protocol: no sequence is
//! given to two messages, no counter goes back, and what is on servers is reconciled as what is in the engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use courant_conformance::deployment::{Seeded, seed};
use courant_conformance::model::create_tables;
use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, connect};
use courant_connectors::embedded::{Engine, Options as EngineOptions};
use courant_connectors::log::{AdminLog as _, Log};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::{TABLES, chat_counters};
use courant_connectors::model::{ChatId, MessageId, topics};
use courant_connectors::store::{
    AdminStore as _, Consistency, Durability, Key, Remedy, Returning, Store, StoreError, Transaction, Write,
};
use courant_replay::counters::{Action, Options, Recoverable, Report, counters};
use courant_replay::reconcile::{self, Repairable};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const WRITERS: usize = 4;
const LOSSES: usize = 6;

/// Acknowledged messages by sequence.
type Acked = Arc<Mutex<BTreeMap<u64, MessageId>>>;

async fn engine() -> (Arc<Engine>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path(), EngineOptions::default()).await.unwrap();
    for topic in topics::all() {
        engine.create_topic(&topic).await.unwrap();
    }
    (engine, folder)
}

/// Stores messages as the product does: a sequence, then the message where that is free.
async fn write(store: Arc<dyn Store>, like: Message, acked: Acked, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let (chat, now) = (&like.chat_id, like.created_at);
        let sequence = match chat_counters::allocate(&*store, chat, NonZeroU32::MIN, now).await {
            Ok(sequence) => *sequence.start(),
            Err(chat_counters::AllocateError::CounterMissing { .. }) => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) if error.remedy() == Remedy::Retry => continue,
            Err(error) => panic!("{error}"),
        };
        let message_id = MessageId::generate();
        let message = Message { sequence, message_id: message_id.clone(), ..like.clone() };
        let writes = vec![messages::put_write(&message)];
        match store.transact(Transaction { writes, token: None }).await {
            Ok(()) => {
                let other = acked.lock().unwrap().insert(sequence, message_id);
                assert_eq!(other, None, "sequence {sequence} was given to two messages");
            }
            // A late writer's: it would be sent again.
            Err(StoreError::TransactionCanceled { .. } | StoreError::ConditionFailed { .. }) => {}
            Err(error) if error.remedy() == Remedy::Retry => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn run(store: &Arc<dyn Store>, log: &Arc<dyn Log>, chat: &ChatId, action: Action) -> Report {
    let grace = Duration::from_millis(50);
    let options = Options { chats: vec![chat.clone()], action, grace, ..Options::default() };
    counters(Recoverable::new(store, log), options, |_| {}, CancellationToken::new()).await.unwrap()
}

async fn counter(store: &Arc<dyn Store>, chat: &ChatId) -> u64 {
    let counter = chat_counters::get(&**store, chat, Consistency::Strong).await.unwrap();
    counter.unwrap().sequence_counter
}

/// Two recover at once, and somebody watches that the counter does not go back.
async fn recover_twice(store: &Arc<dyn Store>, log: &Arc<dyn Log>, chat: &ChatId) -> [Report; 2] {
    let done = CancellationToken::new();
    let recovering = async {
        let one = run(store, log, chat, Action::Recover);
        let reports = tokio::join!(one, run(store, log, chat, Action::Recover));
        done.cancel();
        reports
    };
    let watching = async {
        let mut last = 0;
        while !done.is_cancelled() {
            let found = chat_counters::get(&**store, chat, Consistency::Strong).await.unwrap();
            let now = found.map_or(last, |counter| counter.sequence_counter);
            assert!(now >= last, "it went back from {last} to {now}");
            last = now;
            tokio::task::yield_now().await;
        }
    };
    let ((one, other), ()) = tokio::join!(recovering, watching);
    [one, other]
}

/// The counter is lost again and again while four write and two recover at once.
async fn writers_meet_recovery(store: Arc<dyn Store>, log: Arc<dyn Log>) {
    let Seeded { chat, messages: seeded, .. } = seed(&*store, &*log, 10, 0).await;
    let (acked, stop) = (Acked::default(), CancellationToken::new());
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        writers.spawn(write(Arc::clone(&store), seeded[0].clone(), Arc::clone(&acked), stop.clone()));
    }
    let mut recovered = 0;
    for _ in 0..LOSSES {
        let goal = acked.lock().unwrap().len() + 20;
        while acked.lock().unwrap().len() < goal {
            tokio::task::yield_now().await;
        }
        let lost = Write::delete("chat_counters", Key::new("chat_id", &chat));
        store.write(lost, Returning::Nothing, Durability::Synced).await.unwrap();
        let before = acked.lock().unwrap().last_key_value().map_or(0, |(last, _)| *last);
        for report in recover_twice(&store, &log, &chat).await {
            assert_eq!(report.left(), 0, "{report:?}");
            recovered += report.recovered;
            let set_to = report.counters.iter().filter_map(|told| told.set_to).min().unwrap_or(before);
            assert!(set_to >= before, "{before} was acknowledged, and it was set to {set_to}");
        }
    }
    assert!(recovered >= LOSSES as u64, "{recovered}");
    stop.cancel();
    while writers.join_next().await.transpose().unwrap().is_some() {}
    let all = acked.lock().unwrap().clone();
    for (sequence, message_id) in all {
        let stored = messages::get(&*store, &chat, sequence, Consistency::Strong).await.unwrap();
        assert_eq!(stored.unwrap().message_id, message_id, "an acknowledged message was replaced");
    }
    let last = *acked.lock().unwrap().last_key_value().unwrap().0;
    run(&store, &log, &chat, Action::Recover).await;
    assert!(counter(&store, &chat).await >= last);
    assert_eq!(run(&store, &log, &chat, Action::Check).await.found, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_meet_recovery_on_the_embedded_engine() {
    let (engine, _folder) = engine().await;
    for schema in TABLES {
        engine.create_table(schema).await.unwrap();
    }
    writers_meet_recovery(Arc::clone(&engine) as _, engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_meet_recovery_on_dynamodb() {
    let (server, (engine, _folder)) = (Dynoxide::start(), engine().await);
    let store = server.connect().await;
    create_tables(&store).await;
    writers_meet_recovery(Arc::new(store), engine).await;
}

/// On DynamoDB's protocol and pages, throttled in the middle of reading and of looking messages up again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_server_is_reconciled() {
    let (server, (engine, _folder)) = (Dynoxide::start(), engine().await);
    let proxy = FaultyProxy::before(server.address()).await;
    let store = connect(proxy.address(), |config| config).await;
    create_tables(&store).await;
    let (store, log): (Arc<dyn Store>, Arc<dyn Log>) = (Arc::new(store), engine);
    seed(&*store, &*log, 1000, 900).await;
    for operation in ["Scan", "BatchGetItem", "Query", "GetItem"] {
        proxy.plan(
            operation,
            [Fault::Pass, Fault::throttle(), Fault::throttle(), Fault::Pass, Fault::throttle()],
        );
    }
    let options = reconcile::Options {
        publish: true,
        grace: Duration::from_millis(100),
        parallel: NonZeroUsize::MIN,
        ..reconcile::Options::default()
    };
    let work = Repairable::new(&store, &log);
    let report = reconcile::reconcile(work, options.clone(), |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!((report.published.unwrap().events, report.left()), (900, 0));
    let again = Repairable::new(&store, &log);
    let again = reconcile::reconcile(again, options, |_| {}, CancellationToken::new()).await.unwrap();
    assert_eq!((again.without_event(), again.without_message()), (0, 0));
    assert_eq!(again.looked.figures.events["messages.persisted"], 1000, "each once");
}
