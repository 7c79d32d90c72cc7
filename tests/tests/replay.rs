//! `courant replay` as operators use it: beside a process at work, alone, killed, and asked for what cannot be done.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use courant_conformance::deployment::seed;
use courant_connectors::connections::{Connections, EmbeddedConnection, LogConnection, StoreConnection};
use courant_tests::chat::{connect, group, history, send, shipped_pipelines};
use courant_tests::{Courant, Home, LIMIT, home, lines, until};
use serde_json::Value;

/// Every message by its name. By itself it would begin with what is published from now on.
const ARCHIVE: &str = r#"
[[pipeline]]
name = "archive"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"], start = "latest" }
[[pipeline.stage]]
kind = "table"
params = { key = '"\(.payload.chat_id)/\(.payload.sequence)"', at = '.payload.created_at' }
"#;

/// The keys in the archive.
fn archived(home: &Home) -> BTreeSet<String> {
    let rows = lines::json(&home.run(&["table", "archive", "-n", "1000000"]).ok());
    rows.iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

/// Messages with their events in the home's folder.
async fn prepare(home: &Home, messages: u32) {
    let embedded = EmbeddedConnection { path: home.path("data") };
    let connections = Connections {
        store: StoreConnection::Embedded(embedded.clone()),
        log: LogConnection::Embedded(embedded),
        ..Connections::default()
    };
    let connected = connections.open().await.unwrap();
    seed(&*connected.store, &*connected.log, messages, 0).await;
    connected.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_added_today_catches_up_and_goes_live_with_no_gap() {
    let home = home!().with_shipped_pipelines();
    let mut process = home.start(&[]);
    let (ann, ben) = (process.person("Ann").await, process.person("Ben").await);
    let chat = group(&[&ann, &ben]).await;
    let mut socket = connect(&ann).await;
    for number in 0..100 {
        assert_eq!(send(&mut socket, &chat, &format!("old-{number}"), "old").await["type"], "ack");
    }
    home.replace_config(&format!("{}{ARCHIVE}", shipped_pipelines()));
    home.run(&["reload"]).ok();
    process.wait_state("archive", "running");

    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = {
        let (stop, sent, chat) = (Arc::clone(&stop), Arc::clone(&sent), chat.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                assert_eq!(send(&mut socket, &chat, &format!("new-{number}"), "new").await["type"], "ack");
            }
        })
    };
    let said = tokio::task::block_in_place(|| {
        let said = home.run(&["replay", "archive", "--from", "scan", "--json"]).ok();
        let after = sent.load(Ordering::Relaxed) + 20;
        until("load after the swap", LIMIT, || (sent.load(Ordering::Relaxed) > after).then_some(()));
        said
    });
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
    let receipt: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(receipt["receipt"]["state"], "live", "{said}");

    let stored: BTreeSet<String> =
        history(&ann, &chat).await.iter().map(|message| format!("{chat}/{}", message["sequence"])).collect();
    assert!(stored.len() > 120, "{}", stored.len());
    until("every message in the archive", LIMIT, || (archived(&home).len() >= stored.len()).then_some(()));
    assert_eq!(archived(&home), stored);
    let listed = home.run(&["replay", "--list"]).ok();
    assert!(listed.contains("live") && listed.contains("kept"), "{listed}");
    home.run(&["replay", "archive", "--rollback"]).ok();
    let since = archived(&home);
    assert!(since.is_subset(&stored));
    assert_eq!(since.len(), stored.len() - 100, "what was before, with all that came while another was live");
    assert_eq!(process.stop(), Some(0));
}

fn generation_folder(home: &Home) -> Option<PathBuf> {
    let entries = std::fs::read_dir(home.path("data/derived/archive")).ok()?;
    entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.join(".rebuild/positions/archive.json").exists())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_was_killed_goes_on() {
    let home = home!().with(ARCHIVE);
    prepare(&home, 1500).await;
    let start = ["replay", "archive", "--from", "scan", "--rate", "1000"];
    let killed = Courant::spawn(home.command(&start));
    until("a checkpoint", LIMIT, || generation_folder(&home));
    killed.kill();
    let listed = home.run(&["replay", "--list"]).ok();
    assert!(listed.contains("building"), "{listed}");
    let refused = home.run(&start).refused(1);
    assert!(refused.contains("is not finished") && refused.contains("--resume"), "{refused}");

    let ended = home.run(&["replay", "archive", "--resume"]);
    assert!(ended.stderr.contains("building: "), "{}", ended.stderr);
    let said = ended.ok();
    assert!(
        said.contains("1,500 entries of 1,500") && said.contains("live; there was nothing before"),
        "{said}"
    );
    assert_eq!(archived(&home).len(), 1500);
    let shown = home.run(&["replay", "archive", "--show", "--json"]).ok();
    let receipt: Value = serde_json::from_str(&shown).unwrap();
    let stage = &receipt["receipt"]["comparison"]["stages"][0];
    assert_eq!(stage["actual_digest"], stage["expected_digest"]);
    let nothing = home.run(&["replay", "archive", "--rollback"]).refused(1);
    assert!(nothing.contains("rolled back"), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_rebuilt_by_one_at_a_time_and_a_stop_leaves_it_in_order() {
    let home = home!().with(ARCHIVE);
    prepare(&home, 3000).await;
    let mut process = home.start(&[]);
    let mut slow = Courant::spawn(home.command(&["replay", "archive", "--from", "scan", "--rate", "500"]));
    until("a checkpoint", LIMIT, || generation_folder(&home));
    let refused = home.run(&["replay", "archive", "--from", "oldest"]).refused(1);
    assert!(refused.contains("another replay of `archive` is under way"), "{refused}");
    slow.signal(courant_tests::Signal::INT);
    assert_eq!(slow.wait(LIMIT), Some(1));
    assert!(slow.stderr().contains("--resume"), "{}", slow.stderr());
    until("the end of what was stopped", LIMIT, || {
        let discarded = generation_folder(&home)?;
        let name = discarded.file_name()?.to_str()?.to_owned();
        (home.run(&["replay", "archive", "--discard", &name]).code == Some(0)).then_some(())
    });
    assert_eq!(generation_folder(&home), None);
    process.wait_state("archive", "running");
    assert_eq!(process.stop(), Some(0));
}

#[test]
fn what_cannot_be_done_is_said() {
    let home = home!().with(ARCHIVE);
    let unknown = home.run(&["replay", "archve", "--from", "scan"]).refused(1);
    assert!(unknown.contains("did you mean `archive`?"), "{unknown}");
    home.run(&["replay", "archive"]).refused(2);
    home.run(&["replay", "archive", "--from", "noon"]).refused(2);
    home.run(&["replay", "archive", "--resume", "--approve"]).refused(2);
    let nothing = home.run(&["replay", "archive", "--resume"]).refused(1);
    assert!(nothing.contains("`courant replay --list`"), "{nothing}");
    let dry = home.run(&["replay", "archive", "--from", "scan", "--dry-run"]).ok();
    assert!(dry.contains("nothing was made"), "{dry}");
    assert!(home.run(&["replay", "--list"]).ok().contains("no pipeline has a derived store"));
}
