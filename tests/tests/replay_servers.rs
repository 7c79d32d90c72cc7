//! `courant replay` on DynamoDB, Kafka and Redis, beside a deployment at work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use courant_client::SignedIn;
use courant_tests::chat::{group, history};
use courant_tests::deployment::{Deployment, Node};
use courant_tests::load::Load;
use courant_tests::{LIMIT, home, lines, until};
use serde_json::Value;

/// Every message by its name, from now on unless it is told of the rest; and the shipped search.
const ARCHIVE: &str = r#"
[[pipeline]]
name = "archive"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"], group = "archive", start = "latest" }
[[pipeline.stage]]
kind = "table"
params = { key = '"\(.payload.chat_id)/\(.payload.sequence)"', at = '.payload.created_at' }
"#;
const SEARCH: &str = include_str!("../../examples/search.toml");
/// Chats with a talker each, so that every partition has something.
const CHATS: usize = 6;
const SOME: usize = 15;

fn pipelines() -> String {
    let search = &SEARCH[SEARCH.find("[[pipeline]]").unwrap()..SEARCH.find("[[test]]").unwrap()];
    format!("{ARCHIVE}{search}")
}

/// Rebuilds, and waits for it without holding up those who talk; the receipt.
fn replay(node: &Node, arguments: &[&str]) -> Value {
    let said = tokio::task::block_in_place(|| node.run(&[&["replay"], arguments, &["--json"]].concat()).ok());
    let told: Value = serde_json::from_str(&said).unwrap();
    told["receipt"].clone()
}

/// Tries a scan, and looks at what is said of it.
fn estimate(node: &Node) {
    let arguments = ["replay", "search", "--from", "scan", "--dry-run"];
    let (said, told) = tokio::task::block_in_place(|| {
        (node.run(&arguments).ok(), node.run(&[&arguments[..], &["--json"]].concat()).ok())
    });
    assert!(said.contains("nothing was made") && !said.contains("unknown"), "{said}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let number = |name: &str| told["estimate"][name].as_f64().unwrap_or_else(|| panic!("{name}: {told}"));
    let (records, bytes) = (number("records"), number("bytes"));
    assert!(records >= (CHATS * SOME) as f64, "{told}");
    assert!((100.0..2000.0).contains(&(bytes / records)), "of a short message: {told}");
    let scans = number("read_units") / (bytes / 4096.0);
    assert!((2.0..3.0).contains(&scans), "once to build and once to compare: {told}");
    let (rate, seconds) = (number("records_per_second"), number("seconds"));
    assert!(rate > 1.0 && (seconds * rate / records - 1.0).abs() < 0.01, "{told}");
}

fn archived(node: &Node) -> BTreeSet<String> {
    let rows = lines::json(&node.run(&["table", "archive", "-n", "1000000"]).ok());
    rows.iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

async fn stored(reader: &SignedIn, chats: &[String]) -> BTreeSet<String> {
    let mut stored = BTreeSet::new();
    for chat in chats {
        let messages = history(reader, chat).await;
        stored.extend(messages.iter().map(|message| format!("{chat}/{}", message["sequence"])));
    }
    stored
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn derived_stores_are_rebuilt_on_servers_under_load() {
    let mut deployment = Deployment::start(|| home!()).await;
    let reader = deployment.person(1, "Reader").await;
    let (mut talking, mut chats) = (Vec::new(), Vec::new());
    for n in 0..CHATS {
        let talker = deployment.person(0, &format!("Talker {n}")).await;
        let chat = group(&[&talker, &reader]).await;
        chats.push(chat.clone());
        talking.push((talker, chat));
    }
    let load = Load::start(talking, Vec::new());
    load.talks_on(SOME).await;
    let mut node = deployment.beside(home!(), &pipelines());
    estimate(&node);
    node.start();
    node.process().wait_logged("search index is open");

    // A consumer that was added today, with everything that was before it; then again from what the log has.
    for (start, scanned) in [("scan", true), ("oldest", false)] {
        for pipeline in ["archive", "search"] {
            let receipt = replay(&node, &[pipeline, "--from", start]);
            assert_eq!(receipt["state"], "live", "{pipeline} from {start}: {receipt}");
            assert_eq!(receipt["scanned"], scanned, "{receipt}");
            let compared = &receipt["comparison"]["stages"][0];
            assert!(compared["expected"].as_u64().unwrap() >= (CHATS * SOME) as u64, "{receipt}");
            load.talks_on(1).await;
        }
    }
    let live = replay(&node, &["archive", "--show"])["generation"].clone();
    let back = replay(&node, &["archive", "--rollback"]);
    assert_eq!((&back["generation"], &back["state"]), (&live, &Value::from("equal")), "{back}");
    load.talks_on(1).await;
    let again = replay(&node, &["archive", "--approve"]);
    assert_eq!((&again["generation"], &again["state"]), (&live, &Value::from("live")), "{again}");
    load.talks_on(1).await;
    let talked = load.finish().await;

    let stored = stored(&reader, &chats).await;
    assert!(stored.len() >= talked.messages, "{} of {}", stored.len(), talked.messages);
    tokio::task::block_in_place(|| {
        until("every message in the archive", LIMIT, || {
            (archived(&node).len() >= stored.len()).then_some(())
        });
        assert_eq!(archived(&node), stored);
        let indexed = replay(&node, &["search", "--from", "scan", "--grace", "0s"]);
        let compared = &indexed["comparison"]["stages"][0];
        assert_eq!(
            (indexed["state"].as_str(), compared["actual"].as_u64()),
            (Some("live"), Some(stored.len() as u64)),
            "{indexed}"
        );
        deployment.verify();
    });
}
