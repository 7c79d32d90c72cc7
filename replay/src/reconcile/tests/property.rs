//! Any damage: messages without events, events without messages, copies, a log that has lost its beginning. Afterwards the
//! log tells every message that it should, and nothing was published that it need not.

use std::collections::{BTreeMap, BTreeSet};

use courant_connectors::model::Timestamp;
use courant_connectors::model::tables::messages::Message;
use courant_connectors::model::topics::MessagePersisted;
use courant_connectors::store::{Durability, Key, Returning, Write, WriteStore as _};
use proptest::prelude::*;

use super::{copies, events, options, publishing, run};
use crate::verify::context::{before, now};
use crate::verify::tests::retention::Past;
use crate::verify::tests::world::{DAY, HOUR};

#[derive(Debug, Clone)]
struct Sent {
    chat: u8,
    hours_ago: u32,
    events: u8,
    is_lost: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    // Retention is seven days.
    let events = prop_oneof![3 => Just(1u8), 2 => Just(0), 1 => Just(2)];
    let lost = prop_oneof![6 => Just(false), 1 => Just(true)];
    (0..4u8, 1..240u32, events, lost).prop_map(|(chat, hours_ago, events, is_lost)| Sent {
        chat,
        hours_ago,
        events,
        is_lost,
    })
}

type Name = (String, u64);

struct Written {
    message: Message,
    is_published: bool,
    is_lost: bool,
}

/// In the order of time, as a log is.
async fn write(past: &Past, mut all: Vec<Sent>) -> BTreeMap<Name, Written> {
    all.sort_by_key(|sent| std::cmp::Reverse(sent.hours_ago));
    let (mut sequences, mut written) = (BTreeMap::<u8, u64>::new(), BTreeMap::new());
    for Sent { chat, hours_ago, events, is_lost } in all {
        let sequence = sequences.entry(chat).or_default();
        *sequence += 1;
        let (name, at) = (format!("chat_{chat}"), before(now(), hours_ago * HOUR));
        let message = past.store(&name, *sequence, at, events > 0).await;
        if events > 1 {
            past.publish(&message).await;
        }
        let is_lost = is_lost && events > 0;
        if is_lost {
            let key = Key::new("chat_id", &message.chat_id).and("sequence", *sequence);
            let delete = Write::delete("messages", key);
            past.engine.write(delete, Returning::Nothing, Durability::Synced).await.unwrap();
        }
        written.insert((name, *sequence), Written { message, is_published: events > 0, is_lost });
    }
    past.set_clock(now());
    past.engine.sweep().await;
    written
}

/// The moment from which on every partition surely holds everything.
async fn complete_since(past: &Past) -> Timestamp {
    past.first_events().await.into_iter().max().unwrap_or_else(now).plus(HOUR)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn the_log_tells_what_the_store_holds(all in prop::collection::vec(sent(), 0..40), parallel in 1..4usize) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let past = Past::new().await;
            let written = write(&past, all).await;
            let kept = copies(&past.engine).await;
            let surely = complete_since(&past).await;
            let how = super::Options { parallel: parallel.try_into().unwrap(), ..publishing() };
            let report = run(&past.engine, how).await;

            let orphans: usize = written.iter().filter(|(_, sent)| sent.is_lost).map(|(name, _)| kept.get(name).copied().unwrap_or(0)).sum();
            prop_assert_eq!(report.without_message(), orphans as u64);
            let after = copies(&past.engine).await;
            let mut new = BTreeSet::new();
            for (name, count) in &after {
                let before = kept.get(name).copied().unwrap_or(0);
                prop_assert!(before == *count || (before == 0 && *count == 1), "{:?} was published again", name);
                if before == 0 {
                    new.insert(name.clone());
                }
            }
            prop_assert_eq!(report.published.unwrap().events, new.len() as u64);
            for (name, sent) in &written {
                let at = sent.message.created_at;
                let is_kept_that_long = before(now(), 7 * DAY) < at;
                if !sent.is_published && is_kept_that_long && surely < at {
                    prop_assert!(new.contains(name), "{:?} of {} is still missing", name, at);
                }
                prop_assert!(!new.contains(name) || (!sent.is_published && is_kept_that_long), "{:?} is none of ours", name);
            }
            for event in events(&past.engine).await {
                let name = (event.payload.chat_id.to_string(), event.payload.sequence);
                prop_assert_eq!(event, MessagePersisted::of(written[&name].message.clone()));
            }
            // Of a chat without events nobody knows which partition has lost its beginning for it: its first event tells.
            run(&past.engine, publishing()).await;
            prop_assert_eq!(run(&past.engine, options()).await.without_event(), 0);
            for (name, count) in copies(&past.engine).await {
                prop_assert!(count == 1 || kept.get(&name) == Some(&count), "{:?} was published again", name);
            }
            Ok(())
        })?;
    }
}
