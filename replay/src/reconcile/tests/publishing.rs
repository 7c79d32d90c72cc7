//! Publishing what is missing, and what is not to be published.

use std::sync::Arc;

use async_trait::async_trait;
use courant_connectors::embedded::Engine;
use courant_connectors::log::{Appended, LogError, NewRecord, Topic, WriteLog};
use courant_connectors::model::tables::messages;
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::store::{Key, Transaction, Write, WriteStore as _};
use tokio_util::sync::CancellationToken;

use super::{Options, copies, events, options, publishing, repairable, run};
use crate::reconcile::{Repairable, reconcile};
use crate::verify::Ending;
use crate::verify::context::{before, now};
use crate::verify::tests::retention::Past;
use crate::verify::tests::world::{DAY, HOUR, World, message};

#[tokio::test]
async fn what_is_missing_is_told_and_published_only_on_request() {
    let world = World::healthy().await;
    let (chat, user) = world.own_chat().await;
    let first = world.message(&chat, &user).await;
    world.store_message(&first).await;
    world.send(&chat, &user).await;
    let third = world.message(&chat, &user).await;
    world.store_message(&third).await;
    let before = events(&world.engine).await.len();

    let report = run(&world.engine, options()).await;
    assert_eq!((report.without_event(), report.left(), report.published), (2, 2, None));
    assert_eq!(events(&world.engine).await.len(), before, "nothing was written");

    let report = run(&world.engine, publishing()).await;
    let published = report.published.unwrap();
    assert_eq!((published.events, published.chats, report.left()), (2, 1, 0));
    let of_chat: Vec<_> =
        events(&world.engine).await.into_iter().filter(|event| event.payload.chat_id == chat).collect();
    let expected = [MessagePersisted::of(first), MessagePersisted::of(third)];
    assert_eq!(of_chat[1..], expected, "as they would have been, in order, after what was there");

    let again = run(&world.engine, publishing()).await;
    assert_eq!((again.without_event(), again.published.unwrap().events), (0, 0));
}

#[tokio::test]
async fn an_event_without_its_message_is_told_and_stays() {
    let world = World::healthy().await;
    let (chat, user) = world.own_chat().await;
    let lost = world.send(&chat, &user).await;
    let key = Key::new("chat_id", &chat).and("sequence", lost.sequence);
    world.store(Write::delete("messages", key)).await;
    let mut changed = world.send(&chat, &user).await;
    changed.content = "something else".into();
    world.put("messages", changed.to_item()).await;
    let report = run(&world.engine, publishing()).await;
    assert_eq!((report.without_message(), report.left()), (2, 2));
    let named: Vec<_> = report.looked.checks.iter().flat_map(|check| &check.examples).collect();
    assert!(named.iter().all(|example| example.chat_id.as_ref() == Some(&chat)), "{named:?}");
    assert_eq!(report.published.unwrap().events, 0);
}

#[tokio::test]
async fn other_chats_are_left_alone() {
    let world = World::healthy().await;
    let (one, other) = (world.own_chat().await, world.own_chat().await);
    for (chat, user) in [&one, &other] {
        let stored = world.message(chat, user).await;
        world.store_message(&stored).await;
    }
    let report = run(&world.engine, Options { chats: vec![one.0.clone()], ..publishing() }).await;
    assert_eq!(report.published.unwrap().events, 1);
    assert_eq!(run(&world.engine, options()).await.without_event(), 1, "the other one's");
}

/// Nobody knows whether events were published that would be gone by now.
#[tokio::test]
async fn what_is_too_new_or_too_old_is_not_published() {
    let past = Past::new().await;
    past.store("chat_1", 1, before(now(), 8 * DAY), false).await; // nothing was ever trimmed, and still
    past.store("chat_1", 2, before(now(), 2 * DAY), false).await;
    past.store("chat_1", 3, now(), false).await;
    past.set_clock(now());
    let report = run(&past.engine, Options { grace: HOUR, ..publishing() }).await;
    assert_eq!(report.published.unwrap().events, 1);
    assert_eq!((report.looked.figures.too_new, report.looked.figures.before_the_log), (1, 1));
    assert_eq!(copies(&past.engine).await.into_keys().map(|(_, sequence)| sequence).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn only_what_is_since_then_is_read_and_published() {
    let past = Past::new().await;
    for (sequence, hours, published) in [(1, 50, true), (2, 40, false), (3, 30, true), (4, 3, false)] {
        past.store("chat_1", sequence, before(now(), hours * HOUR), published).await;
    }
    past.set_clock(now());
    let since = Options { since: Some(before(now(), 31 * HOUR)), ..publishing() };
    let report = run(&past.engine, since).await;
    assert_eq!(report.looked.figures.events["messages.persisted"], 1, "of two");
    assert_eq!(report.published.unwrap().events, 1);
    assert!(copies(&past.engine).await.into_keys().map(|(_, sequence)| sequence).eq([1, 3, 4]));
}

/// Somebody presses Ctrl-C while events are being appended.
struct Stopping {
    engine: Arc<Engine>,
    stop: CancellationToken,
}

#[async_trait]
impl WriteLog for Stopping {
    async fn produce(&self, topic: &Topic, records: Vec<NewRecord>) -> Vec<Result<Appended, LogError>> {
        self.stop.cancel();
        self.engine.produce(topic, records).await
    }
}

/// Told to stop while it publishes, it finishes what it is at; run again, it does the rest and nothing twice.
#[tokio::test]
async fn stopped_in_the_middle_it_can_be_run_again() {
    let world = World::empty().await;
    let (chat, user) = world.own_chat().await;
    for part in 0..10 {
        let stored = (1..=100).map(|n| message(&chat, &user, part * 100 + n, before(now(), HOUR)));
        let writes = stored.map(|message| messages::put_write(&message)).collect();
        world.engine.transact(Transaction { writes, token: None }).await.unwrap();
    }
    let stop = CancellationToken::new();
    let log = Arc::new(Stopping { engine: Arc::clone(&world.engine), stop: stop.clone() });
    let work = Repairable { log, ..repairable(&world.engine) };
    let report = reconcile(work, publishing(), |_| {}, stop).await.unwrap();
    let published = report.published.unwrap().events;
    assert_eq!((report.looked.ending, published), (Ending::Stopped, 400), "one call was under way");
    assert_eq!(report.left(), 1000 - published);
    let rest = run(&world.engine, publishing()).await.published.unwrap().events;
    assert_eq!(rest, 1000 - published);
    let copies = copies(&world.engine).await;
    assert!(copies.len() == 1000 && copies.values().all(|copies| *copies == 1));
}
