//! Counters that are in order are left alone; others are recovered to what was used and never set back.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use courant_connectors::embedded::Engine;
use courant_connectors::model::tables::chat_counters::{self, AllocateError};
use courant_connectors::model::tables::messages::{self, Message};
use courant_connectors::model::tables::{delivery_state, idempotency_keys};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::store::{
    BatchWrite, Consistency, Durability, Get, Item, Key, Page, Query, ReadStore, Returning, StoreError,
    Transaction, Write, WriteStore,
};
use tokio_util::sync::CancellationToken;

use super::{Action, CounterReport, Fault, Options, Recoverable, Report, Seen, counters};
use crate::verify::Deployment;
use crate::verify::context::{before, now};
use crate::verify::tests::world::{HOUR, World, key_of, message};

fn options(action: Action) -> Options {
    Options { action, grace: Duration::from_millis(10), ..Options::default() }
}

async fn run(world: &World, options: Options) -> Report {
    let engine = &world.engine;
    let deployment = Deployment {
        store: Arc::clone(engine) as _,
        scan: Arc::clone(engine) as _,
        log: Arc::clone(engine) as _,
    };
    let store = Arc::clone(engine) as _;
    counters(Recoverable { deployment, store }, options, |_| {}, CancellationToken::new()).await.unwrap()
}

async fn item(engine: &Engine, chat: &ChatId) -> Option<Item> {
    engine.get(chat_counters::lookup(chat, Consistency::Strong)).await.unwrap()
}

async fn value(world: &World, chat: &ChatId) -> Option<u64> {
    item(&world.engine, chat).await.and_then(|item| item.u64("sequence_counter"))
}

async fn lose(world: &World, chat: &ChatId) {
    world.store(Write::delete("chat_counters", Key::new("chat_id", chat))).await;
}

/// A chat with three messages and the sequences used up to `used`.
async fn chat(world: &World) -> ChatId {
    let (chat, user) = world.own_chat().await;
    for _ in 0..3 {
        world.send(&chat, &user).await;
    }
    chat
}

#[tokio::test]
async fn what_is_in_order_is_left_alone() {
    let world = World::healthy().await;
    world.begin_group(before(now(), HOUR), 2).await; // a counter comes when it is made
    for action in [Action::Check, Action::DryRun, Action::Recover] {
        let report = run(&world, Options { with_log: true, ..options(action) }).await;
        assert_eq!((report.chats, report.found, report.recovered), (4, 0, 0), "{report:?}");
    }
}

#[tokio::test]
async fn missing_and_behind_are_told_and_recovered_on_request() {
    let world = World::healthy().await;
    let (missing, behind, damaged) = (chat(&world).await, chat(&world).await, chat(&world).await);
    lose(&world, &missing).await;
    let set =
        |chat: &ChatId| Item::new().with("chat_id", chat).with("created_at", now()).with("updated_at", now());
    world.put("chat_counters", set(&behind).with("sequence_counter", 1)).await;
    world.put("chat_counters", set(&damaged)).await; // its value is gone

    let told = run(&world, options(Action::Check)).await;
    let faults = |report: &Report| -> Vec<(ChatId, Fault, Option<u64>, u64)> {
        let fault = |told: &CounterReport| (told.chat_id.clone(), told.fault, told.counter, told.highest);
        report.counters.iter().map(fault).collect()
    };
    let expected = vec![
        (missing.clone(), Fault::Missing, None, 3),
        (behind.clone(), Fault::Behind, Some(1), 3),
        (damaged.clone(), Fault::Missing, None, 3),
    ];
    assert_eq!((told.found, told.left(), faults(&told)), (3, 3, expected.clone()));
    let dry = run(&world, options(Action::DryRun)).await;
    assert!(dry.counters.iter().all(|told| told.would_be == Some(3) && told.set_to.is_none()), "{dry:?}");
    assert_eq!((value(&world, &missing).await, value(&world, &behind).await), (None, Some(1)), "as it was");

    let one = Options { chats: vec![missing.clone()], ..options(Action::Recover) };
    assert_eq!(run(&world, one).await.recovered, 1);
    assert_eq!((value(&world, &missing).await, value(&world, &behind).await), (Some(3), Some(1)));
    let report = run(&world, options(Action::Recover)).await;
    assert_eq!((report.found, report.recovered, report.left()), (2, 2, 0), "{report:?}");
    for chat in [&missing, &behind, &damaged] {
        let counter = item(&world.engine, chat).await.unwrap();
        assert_eq!(counter.u64("recovered_from_sequence"), Some(3), "it can be told later");
        assert_eq!(world.allocate(chat).await, 4);
    }
    assert_eq!(run(&world, options(Action::Check)).await.found, 0);
}

/// A store that came from a backup is behind what people have seen.
#[tokio::test]
async fn what_people_have_seen_counts_as_used() {
    let world = World::healthy().await;
    let (acked, told) = (world.own_chat().await, world.own_chat().await);
    for (chat, user) in [&acked, &told] {
        let last = world.send(chat, user).await;
        let message = world.message(chat, user).await;
        world.publish(&message).await; // and lost with the store
        assert_eq!(last.sequence, 1);
        lose(&world, chat).await;
    }
    let counter = Item::new().with("chat_id", &told.0).with("sequence_counter", 1);
    world.put("chat_counters", counter.with("created_at", now()).with("updated_at", now())).await;
    delivery_state::advance(&*world.engine, &acked.1, &acked.0, 2, now()).await.unwrap();

    let without_log = run(&world, options(Action::Recover)).await;
    let [only] = &without_log.counters[..] else { panic!("{without_log:?}") };
    assert_eq!((&only.chat_id, only.set_to, only.seen_in), (&acked.0, Some(2), Seen::Watermarks));
    let with_log = run(&world, Options { with_log: true, ..options(Action::Recover) }).await;
    let [only] = &with_log.counters[..] else { panic!("{with_log:?}") };
    assert_eq!((&only.chat_id, only.set_to, only.seen_in), (&told.0, Some(2), Seen::Log));
}

#[tokio::test]
async fn a_margin_is_a_gap_and_a_counter_ahead_stays() {
    let world = World::healthy().await;
    let (lost, ahead) = (chat(&world).await, chat(&world).await);
    lose(&world, &lost).await;
    for _ in 0..10 {
        world.allocate(&ahead).await;
    }
    let report = run(&world, Options { margin: 500, ..options(Action::Recover) }).await;
    assert_eq!((report.recovered, value(&world, &lost).await), (1, Some(503)));
    assert_eq!(value(&world, &ahead).await, Some(13));
}

#[tokio::test]
async fn what_cannot_be_recovered_is_told() {
    let world = World::healthy().await;
    let chat = chat(&world).await;
    let wrong = Item::new().with("chat_id", &chat).with("sequence_counter", "three");
    world.put("chat_counters", wrong).await;
    let nobody = ChatId::from("chat_nobody");
    let named = Options { chats: vec![chat.clone(), nobody.clone()], ..options(Action::Recover) };
    let report = run(&world, named).await;
    let faults: Vec<_> = report.counters.iter().map(|told| (&told.chat_id, told.fault)).collect();
    assert!(
        faults.contains(&(&chat, Fault::Unreadable)) && faults.contains(&(&nobody, Fault::NoChat)),
        "{faults:?}"
    );
    assert_eq!((report.recovered, report.left()), (0, 2));
    assert_eq!(item(&world.engine, &nobody).await, None, "no counter is made for no chat");
}

/// A writer that had its sequence before the counter was lost stores its message after it was recovered.
#[tokio::test]
async fn a_late_writer_raises_the_counter_once_more() {
    let world = Arc::new(World::healthy().await);
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    let (_, late) = (world.message(&chat, &user).await, world.message(&chat, &user).await);
    lose(&world, &chat).await;
    let comes = Arc::clone(&world);
    let late_writer = move |progress: crate::verify::Progress| {
        if progress.phase == "second look" && progress.done == 0 {
            let (world, late) = (Arc::clone(&comes), late.clone());
            let store = async move { world.store_message(&late).await };
            std::thread::spawn(move || futures::executor::block_on(store)).join().unwrap();
        }
    };
    let engine = &world.engine;
    let deployment = Deployment {
        store: Arc::clone(engine) as _,
        scan: Arc::clone(engine) as _,
        log: Arc::clone(engine) as _,
    };
    let work = Recoverable { deployment, store: Arc::clone(engine) as _ };
    let once = options(Action::Recover);
    // Told twice of the phase, it would store the message twice.
    let report = counters(work, once, once_only(late_writer), CancellationToken::new()).await.unwrap();
    assert_eq!((report.found, report.recovered, report.counters[0].set_to), (1, 1, Some(3)), "{report:?}");
    assert_eq!(world.allocate(&chat).await, 4);
}

fn once_only(
    act: impl Fn(crate::verify::Progress) + Send + Sync + 'static,
) -> impl Fn(crate::verify::Progress) + Send + Sync + 'static {
    let done = std::sync::Once::new();
    move |progress| {
        if progress.phase == "second look" {
            done.call_once(|| act(progress));
        }
    }
}

/// The store as it is while somebody sends to a chat: a message comes whenever counters have just been read.
struct Busy {
    world: Arc<World>,
    chat: ChatId,
    user: UserId,
    sent: AtomicU32,
}

#[async_trait]
impl ReadStore for Busy {
    async fn get(&self, get: Get) -> Result<Option<Item>, StoreError> {
        self.world.engine.get(get).await
    }

    async fn batch_get(&self, gets: Vec<Get>) -> Result<Vec<Option<Item>>, StoreError> {
        let are_counters = gets.iter().any(|get| get.table == chat_counters::SCHEMA.name);
        let found = self.world.engine.batch_get(gets).await;
        if are_counters {
            self.world.send(&self.chat, &self.user).await;
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    async fn query(&self, query: Query) -> Result<Page, StoreError> {
        self.world.engine.query(query).await
    }
}

#[tokio::test]
async fn a_message_that_is_sent_meanwhile_is_no_fault() {
    let world = Arc::new(World::healthy().await);
    let (chat, user) = world.own_chat().await;
    world.send(&chat, &user).await;
    for action in [Action::Check, Action::DryRun, Action::Recover] {
        let (sent, engine) = (AtomicU32::new(0), &world.engine);
        let busy = Arc::new(Busy { world: Arc::clone(&world), chat: chat.clone(), user: user.clone(), sent });
        let deployment = Deployment {
            store: Arc::clone(&busy) as _,
            scan: Arc::clone(engine) as _,
            log: Arc::clone(engine) as _,
        };
        let work = Recoverable { deployment, store: Arc::clone(engine) as _ };
        let stop = CancellationToken::new();
        let report = counters(work, options(action), |_| {}, stop).await.unwrap();
        assert!(busy.sent.load(Ordering::Relaxed) > 0, "the counter was read before the message came");
        assert_eq!((report.found, &report.counters[..]), (0, &[][..]), "{action:?}");
    }
}

/// The two tables were brought back as they were at different times.
#[tokio::test]
async fn a_counter_behind_what_was_acknowledged_is_raised() {
    let world = World::healthy().await;
    let (chat, user) = world.own_chat().await;
    for _ in 0..5 {
        world.send(&chat, &user).await;
    }
    delivery_state::advance(&*world.engine, &user, &chat, 9, now()).await.unwrap();
    for (action, after) in [(Action::Check, 5), (Action::DryRun, 5), (Action::Recover, 9)] {
        let report = run(&world, options(action)).await;
        let [told] = &report.counters[..] else { panic!("{action:?}: {report:?}") };
        let CounterReport { chat_id, fault, counter, highest, seen_in, .. } = told;
        assert_eq!((chat_id, *fault, *counter), (&chat, Fault::Behind, Some(5)));
        assert_eq!((*highest, *seen_in, value(&world, &chat).await), (9, Seen::Watermarks, Some(after)));
    }
    assert_eq!(run(&world, options(Action::Check)).await.found, 0);
    assert_eq!(world.allocate(&chat).await, 10);
}

/// A message is stored where its sequence is free, and there only.
async fn is_stored(world: &World, message: &Message) -> bool {
    let writes = vec![messages::put_write(message), idempotency_keys::put_write(&key_of(message))];
    match world.engine.transact(Transaction { writes, token: None }).await {
        Ok(()) => true,
        Err(StoreError::TransactionCanceled { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Somebody who sends, again and again as a client does, until so many messages are stored: the sequences of those, and of
/// those that were refused.
async fn send_on(world: &World, chat: &ChatId, user: &UserId, count: usize) -> [BTreeSet<u64>; 2] {
    let (mut stored, mut refused) = (BTreeSet::new(), BTreeSet::new());
    while stored.len() < count {
        match chat_counters::allocate(&*world.engine, chat, NonZeroU32::MIN, now()).await {
            Ok(allocated) => {
                let message = message(chat, user, *allocated.start(), now());
                let to = if is_stored(world, &message).await { &mut stored } else { &mut refused };
                to.insert(message.sequence);
            }
            Err(AllocateError::CounterMissing { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
    [stored, refused]
}

/// Clients keep sending while a counter is missing and recovered, and writers that had sequences before come through.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_is_recovered_while_clients_send() {
    const EACH: usize = 20;
    let world = World::healthy().await;
    for _ in 0..5 {
        let chat = chat(&world).await;
        let user = world.user().await;
        let mut late = Vec::new();
        for _ in 0..3 {
            late.push(world.message(&chat, &user).await);
        }
        lose(&world, &chat).await;
        let late_writers = async {
            for message in &late {
                tokio::task::yield_now().await;
                is_stored(&world, message).await;
            }
        };
        let (report, [one, refused], [other, of_other], ()) = tokio::join!(
            run(&world, options(Action::Recover)),
            send_on(&world, &chat, &user, EACH),
            send_on(&world, &chat, &user, EACH),
            late_writers
        );
        assert_eq!((report.found, report.recovered), (1, 1), "{report:?}");
        assert!(one.is_disjoint(&other), "each has a sequence of its own: {one:?}, {other:?}");
        let late: BTreeSet<u64> = late.iter().map(|message| message.sequence).collect();
        assert!(refused.is_subset(&late) && of_other.is_subset(&late), "{refused:?}, {of_other:?}");
        assert!(value(&world, &chat).await >= one.union(&other).max().copied());
        assert_eq!(run(&world, options(Action::Check)).await.found, 0);
    }
}

/// A store in which, just before the counter is set, somebody else has recovered it further, and a client has sent.
struct Overtaken {
    world: Arc<World>,
    chat: ChatId,
    user: UserId,
    was: AtomicBool,
}

#[async_trait]
impl WriteStore for Overtaken {
    async fn write(&self, write: Write, returning: Returning, durability: Durability) -> Written {
        self.world.engine.write(write, returning, durability).await
    }

    async fn batch_write(&self, writes: Vec<BatchWrite>) -> Result<(), StoreError> {
        self.world.engine.batch_write(writes).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StoreError> {
        if !self.was.swap(true, Ordering::Relaxed) {
            let other = run(&self.world, Options { margin: 500, ..options(Action::Recover) }).await;
            assert_eq!(other.recovered, 1, "{other:?}");
            self.world.send(&self.chat, &self.user).await;
        }
        self.world.engine.transact(transaction).await
    }
}

type Written = Result<Option<Item>, StoreError>;

#[tokio::test]
async fn of_two_who_recover_at_once_the_higher_stays() {
    let world = Arc::new(World::healthy().await);
    for margin in [0, 900] {
        let chat = chat(&world).await;
        let user = world.user().await;
        lose(&world, &chat).await;
        let engine = &world.engine;
        let deployment = Deployment {
            store: Arc::clone(engine) as _,
            scan: Arc::clone(engine) as _,
            log: Arc::clone(engine) as _,
        };
        let was = AtomicBool::new(false);
        let store =
            Arc::new(Overtaken { world: Arc::clone(&world), chat: chat.clone(), user: user.clone(), was });
        let work = Recoverable { deployment, store };
        let slower = Options { margin, ..options(Action::Recover) };
        let report = counters(work, slower, |_| {}, CancellationToken::new()).await.unwrap();
        let (recovered, stands_at) = if margin > 500 { (1, 903) } else { (0, 504) };
        assert_eq!((report.left(), report.recovered), (0, recovered), "{report:?}");
        assert_eq!(value(&world, &chat).await, Some(stands_at));
        assert_eq!(world.send(&chat, &user).await.sequence, stands_at + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_counters_are_recovered_by_two_at_once() {
    let world = World::healthy().await;
    let mut lost = Vec::new();
    for _ in 0..20 {
        lost.push(chat(&world).await);
    }
    for chat in &lost {
        lose(&world, chat).await;
    }
    let with_margin = |margin| Options { margin, ..options(Action::Recover) };
    let (one, other) = tokio::join!(run(&world, with_margin(10)), run(&world, with_margin(20)));
    assert_eq!((one.left(), other.left()), (0, 0), "{one:?}, {other:?}");
    assert!(one.recovered + other.recovered >= 20, "{one:?}, {other:?}");
    for chat in &lost {
        let of_chat = one.counters.iter().chain(&other.counters).filter(|told| told.chat_id == *chat);
        let told = of_chat.filter_map(|told| told.set_to).max();
        assert!([Some(13), Some(23)].contains(&told), "{told:?}");
        assert_eq!(value(&world, chat).await, told, "nobody was told of more");
    }
}
