//! What is in order is said to be, whoever asks for how much of it.

use std::sync::{Arc, Mutex};

use courant_connectors::model::tables::chats::ChatType;
use courant_connectors::store::{Item, Name};
use tokio_util::sync::CancellationToken;

use super::mutations::watching;
use super::world::{World, found, options};
use crate::verify::{CHECKS, Ending, Options, Severity, verify};

#[tokio::test]
async fn a_deployment_in_order_has_no_findings_and_everything_was_looked_at() {
    let world = World::healthy().await;
    let report = world.verify(watching()).await;
    assert_eq!(found(&report), [].into(), "{report:#?}");
    assert_eq!(report.ending, Ending::Finished);
    for check in &report.checks {
        assert!(check.looked_at > 0 && check.skipped.is_none(), "{check:?}");
    }
    let figures = &report.figures;
    let items: Vec<_> = figures.items.iter().map(|(table, count)| (table.as_str(), *count)).collect();
    let expected = [
        ("chat_counters", 3),
        ("chat_memberships", 6),
        ("chats", 3),
        ("delivery_state", 2),
        ("idempotency_keys", 5),
        ("messages", 6),
        ("sessions", 1),
        ("users", 3),
    ];
    assert_eq!(items, expected);
    assert_eq!((figures.events["messages.persisted"], figures.events["chats.created"]), (7, 3));
    assert_eq!((figures.gaps, figures.chats_with_gaps), (1, 1));
    assert_eq!((figures.too_new, figures.before_the_log, figures.watched), (0, 0, 5));
}

#[tokio::test]
async fn an_empty_deployment_is_in_order() {
    assert_eq!(World::empty().await.found(watching()).await, [].into());
}

#[tokio::test]
async fn without_a_second_look_the_report_says_what_it_cannot_tell() {
    let report = World::healthy().await.verify(options()).await;
    let skipped: Vec<_> = report.checks.iter().filter(|check| check.skipped.is_some()).collect();
    let ids: Vec<_> = skipped.iter().map(|check| check.id.as_str()).collect();
    assert_eq!(ids, ["watermark-forward", "counter-forward"]);
    assert!(skipped[0].skipped.as_ref().unwrap().contains("--watch"));
}

#[tokio::test]
async fn only_what_was_asked_for_is_looked_at() {
    let world = World::healthy().await;
    let (chat, user) = world.own_chat().await;
    let unpublished = world.message(&chat, &user).await;
    world.store_message(&unpublished).await;
    world
        .store(courant_connectors::store::Write::delete(
            "chat_counters",
            courant_connectors::store::Key::new("chat_id", &chat),
        ))
        .await;
    let only = |ids: &[&str]| Options { only: ids.iter().map(|id| (*id).to_owned()).collect(), ..options() };
    assert_eq!(world.found(only(&["message-event"])).await, [("message-event".to_owned(), 1)].into());
    let counters = world.verify(only(&["counter-exists", "counter-bound"])).await;
    assert_eq!(found(&counters), [("counter-exists".to_owned(), 1)].into());
    assert!(counters.figures.events.is_empty(), "the log is not read for that");
    let error = verify(world.deployment(), only(&["counter-exist"]), |_| {}, CancellationToken::new()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("'counter-exist'") && error.contains("counter-exists"), "{error}");
}

#[tokio::test]
async fn some_chats_can_be_looked_at_alone() {
    let world = World::healthy().await;
    let (damaged, user) = world.own_chat().await;
    let (other, _) = world.own_chat().await;
    for chat in [&damaged, &other] {
        world
            .store(courant_connectors::store::Write::delete(
                "chat_counters",
                courant_connectors::store::Key::new("chat_id", chat),
            ))
            .await;
    }
    let sequence = 3;
    let state = Item::new().with("user_id", &user).with("chat_id", &damaged);
    let state = state.with("last_acked_sequence", sequence).with("updated_at", "never");
    world.put("delivery_state", state).await;
    let ann = world.user().await;
    let pair = world.chat(ChatType::Direct, &[&ann]).await;
    let chats = |chats: &[_]| Options { chats: chats.to_vec(), ..watching() };
    let expected = [("counter-exists".to_owned(), 1), ("readable".to_owned(), 1)];
    let report = world.verify(chats(&[damaged])).await;
    assert_eq!(found(&report), expected.into());
    let tables: Vec<_> = report.figures.items.keys().map(String::as_str).collect();
    assert_eq!(tables, ["chat_memberships", "chats", "delivery_state"]);
    let session = report.checks.iter().find(|check| check.id == "session-user").unwrap();
    assert_eq!(session.skipped.as_deref(), Some("is not about chats"));
    assert_eq!(world.found(chats(&[pair])).await, [("direct-pair".to_owned(), 1)].into());
}

#[tokio::test]
async fn findings_are_counted_and_a_few_are_shown() {
    let world = World::empty().await;
    let (chat, user) = world.own_chat().await;
    for _ in 0..30 {
        let unpublished = world.message(&chat, &user).await;
        world.store_message(&unpublished).await;
    }
    let report = world.verify(Options { examples: 3, ..options() }).await;
    let check = report.checks.iter().find(|check| check.id == "message-event").unwrap();
    let shown: Vec<_> = check.examples.iter().filter_map(|example| example.sequence).collect();
    assert_eq!((check.found, shown), (30, vec![1, 2, 3]), "the first ones, whoever found them");
    assert_eq!((report.found(Severity::Error), report.found(Severity::Warning)), (30, 0));
}

#[tokio::test]
async fn told_to_stop_it_says_what_it_has_seen() {
    let world = World::healthy().await;
    let stop = CancellationToken::new();
    let stop_here = stop.clone();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let phases = Arc::clone(&seen);
    let stopping = move |progress: crate::verify::Progress| {
        phases.lock().unwrap().push(progress.phase.to_string());
        if progress.phase == "idempotency_keys" {
            stop_here.cancel();
        }
    };
    let report = verify(world.deployment(), options(), stopping, stop).await.unwrap();
    assert_eq!(report.ending, Ending::Stopped);
    assert!(report.figures.items.contains_key("messages"));
    assert!(!report.figures.items.contains_key("chats"));
    assert_eq!(seen.lock().unwrap().last().map(String::as_str), Some("idempotency_keys"));
}

#[tokio::test]
async fn progress_names_every_phase_and_ends_with_everything() {
    let world = World::healthy().await;
    let told: Arc<Mutex<Vec<crate::verify::Progress>>> = Arc::default();
    let telling = Arc::clone(&told);
    let tell = move |progress| telling.lock().unwrap().push(progress);
    verify(world.deployment(), options(), tell, CancellationToken::new()).await.unwrap();
    let told = told.lock().unwrap();
    let events = told.iter().rfind(|progress| progress.phase == "messages.persisted").unwrap();
    assert_eq!((events.done, events.of, events.number), (7, Some(7), 1));
    let last = told.last().unwrap();
    assert_eq!(last.number, last.phases);
    assert!(told.iter().any(|progress| progress.phase == "users"));
    assert_eq!(Name::new_static("late events"), last.phase.as_ref());
    assert!(CHECKS.len() > 30);
}
