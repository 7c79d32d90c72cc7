//! `courant verify` as operators use it: on a folder at rest, beside a running process, and where there is nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use courant_conformance::deployment::{Seeded, seed};
use courant_connectors::store::{Durability, Key, Returning, Write};
use courant_tests::deployment::at_rest;
use courant_tests::{Home, home, repository};
use serde_json::Value;

/// Reads store and log, so that the process has both open.
const PIPELINES: &str = r#"
[[pipeline]]
name = "repair"
plane = "durability"
stage = [{ kind = "unpublished", params = { after = "1h" } }, { kind = "blackhole" }]
"#;

/// Messages in the home's folder, the last of them without its event; `delete` takes an item away.
async fn prepare(home: &Home, unpublished: u32, delete: impl FnOnce(&Seeded) -> Option<Write>) -> Seeded {
    at_rest(home, async |connected| {
        let seeded = seed(&*connected.store, &*connected.log, 20, unpublished).await;
        if let Some(write) = delete(&seeded) {
            connected.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
        }
        seeded
    })
    .await
}

fn counter_of(seeded: &Seeded) -> Write {
    Write::delete("chat_counters", Key::new("chat_id", &seeded.chat))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_at_rest_is_in_order_or_it_is_said_what_is_not() {
    let home = home!().with("");
    let refused = home.run(&["verify"]).refused(1);
    assert!(refused.contains("there is nothing in `data`"), "{refused}");
    assert!(!home.path("data/engine").exists(), "asking makes no folder");

    let clean = home!().with("");
    prepare(&clean, 0, |_| None).await;
    let ended = clean.run(&["verify"]);
    assert!(ended.stderr.contains("of 12: messages, 20"), "{}", ended.stderr);
    let said = ended.ok();
    assert!(said.contains("20 messages") && said.contains("nothing found"), "{said}");

    let seeded = prepare(&home, 1, |seeded| Some(counter_of(seeded))).await;
    let ended = home.run(&["verify", "--json"]);
    assert_eq!(ended.code, Some(6), "{}{}", ended.stdout, ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let broken: Vec<_> = checks.iter().filter(|check| check["found"] != 0).collect();
    let ids: Vec<_> = broken.iter().map(|check| check["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["counter-exists", "message-event"]);
    assert_eq!(broken[1]["examples"][0]["sequence"], 20);
    assert_eq!(broken[1]["examples"][0]["chat_id"], seeded.chat.as_str());

    let text = home.run(&["verify", "--only", "counter-exists"]);
    assert_eq!(text.code, Some(6));
    assert!(text.stdout.contains("not in order: 1 error") && text.stdout.contains(seeded.chat.as_str()));
    home.run(&["verify", "--only", "event-message,event-content"]).ok();
    home.run(&["verify", "--chats", "chat_other"]).ok();
    let unknown = home.run(&["verify", "--only", "counters"]).refused(1);
    assert!(unknown.contains("no check 'counters'") && unknown.contains("counter-exists"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_has_the_folder_open_does_it_itself() {
    let home = home!().with(PIPELINES);
    let seeded = prepare(&home, 0, |seeded| Some(counter_of(seeded))).await;
    let process = home.start(&[]);
    let ended = home.run(&["verify"]);
    assert_eq!(ended.code, Some(6), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains(seeded.chat.as_str()), "{}", ended.stdout);
    assert!(ended.stderr.contains("messages, 20"), "progress came over the socket: {}", ended.stderr);
    let wanted = home.run(&["verify", "--only", "message-event", "--json"]).ok();
    let report: Value = serde_json::from_str(&wanted).unwrap();
    assert_eq!(report["figures"]["items"]["messages"], 20);
    drop(process);
}

/// Somebody who holds the folder and answers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_somebody_else_has_open_is_named() {
    let home = home!().with("");
    prepare(&home, 0, |_| None).await;
    let open = courant_connectors::embedded::Engine::open(
        home.path("data/engine"),
        courant_connectors::embedded::Options::default(),
    );
    let engine: Arc<_> = open.await.unwrap();
    let refused = home.run(&["verify"]).refused(1);
    assert!(refused.contains("is in use by another process"), "{refused}");
    engine.close().await;
}

/// What an interrupted command left is told, and ends with 6 only for those who want that.
#[tokio::test(flavor = "multi_thread")]
async fn warnings_are_no_failure_unless_one_is_strict() {
    let home = home!().with("");
    prepare(&home, 0, |seeded| {
        let item = Key::new("chat_id", "chat_never_made").and("user_id", &seeded.owner).into_item();
        let item = item.with("role", "member").with("joined_at", "2026-01-30T14:30:00.000Z");
        Some(Write::put("chat_memberships", item))
    })
    .await;
    let said = home.run(&["verify"]).ok();
    assert!(
        said.contains("in order") && said.contains("1 warning") && said.contains("chat_never_made"),
        "{said}"
    );
    assert_eq!(home.run(&["verify", "--strict"]).code, Some(6));
}

#[test]
fn the_list_of_checks_is_what_the_command_prints() {
    let printed = home!().run(&["verify", "--list=markdown"]).ok();
    let written = std::fs::read_to_string(repository().join("docs/checks.md")).unwrap_or_default();
    assert!(
        printed == written,
        "docs/checks.md is not up to date; write it with `cargo run -- verify --list=markdown > docs/checks.md`"
    );
}
