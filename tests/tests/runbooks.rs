//! Every page of `docs/runbooks`, followed on a deployment that is broken as the page says: its commands say what it
//! shows, and afterwards the deployment works.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use courant_conformance::deployment::{begin_group, seed};
use courant_conformance::servers::redis::RedisServer;
use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, Tansu};
use courant_connectors::store::{Durability, Key, Returning, Write};
use courant_tests::chat::{connect, group, next_of, send, shipped_pipelines, shipped_pipelines_on};
use courant_tests::deployment::{ANYBODY, at_rest};
use courant_tests::runbook::Comes::{AtOnce, InTime};
use courant_tests::runbook::Runbook;
use courant_tests::{Courant, LIMIT, home, repository};
use serde_json::json;
use tokio::time::timeout;

const EMBEDDED_STORE: &str = "[connections.store]\nkind = 'embedded'\npath = 'data'\n";
const EMBEDDED_LOG: &str = "[connections.log]\nkind = 'embedded'\npath = 'data'\n";

fn edge(process: &mut Courant) -> String {
    format!("http://{}", process.address().unwrap())
}

#[test]
fn every_page_is_followed_and_tells_what_an_operator_needs() {
    let tests = std::fs::read_to_string(repository().join("tests/tests/runbooks.rs")).unwrap();
    let folder = std::fs::read_dir(repository().join("docs/runbooks")).unwrap();
    let pages: BTreeSet<String> =
        folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let index = std::fs::read_to_string(repository().join("docs/runbooks/README.md")).unwrap();
    assert!(pages.len() > 5, "{pages:?}");
    for page in pages.iter().filter(|page| *page != "README.md") {
        let runbook = Runbook::open(page);
        let headings: Vec<&str> = runbook.headings().collect();
        for needed in ["Symptom", "Be sure", "Do", "Over"] {
            assert!(headings.contains(&needed), "{page}: {headings:?}");
        }
        assert!(tests.contains(&format!("Runbook::open(\"{page}\")")), "no test follows {page}");
        assert!(index.contains(&format!("({page})")), "{page} is not in the index");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_lost() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let live = format!("[connections.live]\nkind = 'redis'\nurl = '{url}'\n");
    let home = home!();
    home.replace_config(&shipped_pipelines_on(&format!("{EMBEDDED_STORE}{EMBEDDED_LOG}{live}")));
    let mut process = home.start(&[]);
    let (ann, bob) = (process.person("Ann").await, process.person("Bob").await);
    let chat = group(&[&ann, &bob]).await;
    let (mut anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["type"], "ack");
    assert_eq!(next_of(&mut bobs, "message").await["content"], "before");
    redis.kill();

    let edge = edge(&mut process);
    let variables = [("EDGE", edge.as_str()), ("REDIS_URL", url.as_str())];
    let mut runbook = Runbook::open("redis-loss.md");
    runbook.follow(&home, "Be sure", InTime, &variables);
    assert_eq!(send(&mut anns, &chat, "m-2", "meanwhile").await["type"], "ack", "stored all the same");
    redis.restart();
    runbook.follow(&home, "Do", AtOnce, &variables);
    runbook.follow(&home, "Over", InTime, &variables);
    runbook.end();
    let heard_again = async {
        for n in 0.. {
            assert_eq!(send(&mut anns, &chat, &format!("m-again-{n}"), "again").await["type"], "ack");
            if timeout(Duration::from_secs(1), next_of(&mut bobs, "message")).await.is_ok() {
                return;
            }
        }
    };
    timeout(LIMIT, heard_again).await.expect("deliveries come back by themselves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_down() {
    let mut tansu = Tansu::start();
    let log = format!("[connections.log]\nkind = 'kafka'\nbrokers = '{}'\n", tansu.config().brokers);
    let home = home!();
    home.replace_config(&shipped_pipelines_on(&format!("{EMBEDDED_STORE}{log}")));
    home.run(&["topics", "create"]).ok();
    let mut process = home.start(&[]);
    let ann = process.person("Ann").await;
    let chat = group(&[&ann]).await;
    let mut anns = connect(&ann).await;
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["type"], "ack");
    tansu.kill();

    let edge = edge(&mut process);
    let variables = [("EDGE", edge.as_str())];
    let mut runbook = Runbook::open("kafka-outage.md");
    let refused = send(&mut anns, &chat, "m-2", "meanwhile").await;
    assert_eq!(refused["type"], "error", "{refused}");
    runbook.follow(&home, "Be sure", InTime, &variables);
    tansu.start_again();
    runbook.follow(&home, "Do", InTime, &variables);
    runbook.follow(&home, "Over", InTime, &variables);
    runbook.end();
    let ack = send(&mut anns, &chat, "m-2", "meanwhile").await;
    assert_eq!((&ack["type"], &ack["sequence"]), (&json!("ack"), &json!(2)), "it was stored: {ack}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb_is_down_and_throttles() {
    let dynoxide = Dynoxide::start();
    let store = FaultyProxy::before(dynoxide.address()).await;
    let connection = format!(
        "[connections.store]\nkind = 'dynamodb'\nendpoint = 'http://{}'\nregion = 'eu-central-1'\n",
        store.address()
    );
    let home = home!();
    home.replace_config(&shipped_pipelines_on(&format!("{connection}{EMBEDDED_LOG}")));
    let with_credentials = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.envs(ANYBODY);
        command
    };
    home.finish(with_credentials(&["tables", "create"])).ok();
    let mut process = Courant::spawn(with_credentials(&["run"]));
    process.wait_ready();
    let ann = process.person("Ann").await;
    let chat = group(&[&ann]).await;
    let mut anns = connect(&ann).await;
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["type"], "ack");

    let edge = edge(&mut process);
    let variables = [&ANYBODY[..], &[("EDGE", edge.as_str())]].concat();
    let mut runbook = Runbook::open("dynamodb-outage.md");
    store.go_away().await;
    let refused = send(&mut anns, &chat, "m-2", "meanwhile").await;
    assert_eq!(refused["type"], "error", "{refused}");
    runbook.follow(&home, "Be sure", InTime, &variables);
    store.come_back().await;

    store.always("TransactWriteItems", Fault::throttle());
    let refused = send(&mut anns, &chat, "m-3", "too much").await;
    assert_eq!(refused["type"], "error", "{refused}");
    runbook.follow(&home, "Throttled", InTime, &variables);
    store.heal();
    runbook.follow(&home, "Over", InTime, &variables);
    runbook.end();
    assert_eq!(send(&mut anns, &chat, "m-2", "meanwhile").await["type"], "ack");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_is_lost() {
    let home = home!().with_shipped_pipelines();
    let mut process = home.start(&[]);
    let (ann, bob) = (process.person("Ann").await, process.person("Bob").await);
    let (chat, other) = (group(&[&ann, &bob]).await, group(&[&ann]).await);
    let mut anns = connect(&ann).await;
    assert_eq!(send(&mut anns, &chat, "m-1", "before").await["sequence"], 1);
    assert_eq!(process.stop(), Some(0));
    drop(process);
    let lost = Write::delete("chat_counters", Key::new("chat_id", chat.as_str()));
    at_rest(&home, async |connected| {
        connected.store.write(lost, Returning::Nothing, Durability::Synced).await.unwrap();
    })
    .await;

    let mut process = home.start(&[]);
    let ann = courant_client::SignedIn {
        client: process.client().with_token(ann.client.token().unwrap()),
        ..ann.clone()
    };
    let mut anns = connect(&ann).await;
    let refused = send(&mut anns, &chat, "m-2", "refused").await;
    assert_eq!(refused["code"], "COUNTER_MISSING", "{refused}");
    assert_eq!(send(&mut anns, &other, "m-1", "not concerned").await["type"], "ack");
    let variables = [("CHAT", chat.as_str())];
    let mut runbook = Runbook::open("counter-loss.md");
    runbook.follow(&home, "Be sure", AtOnce, &variables);
    runbook.follow(&home, "Do", AtOnce, &variables);
    let ack = send(&mut anns, &chat, "m-2", "refused").await;
    assert_eq!((&ack["type"], &ack["sequence"]), (&json!("ack"), &json!(2)), "{ack}");
    runbook.follow(&home, "Over", AtOnce, &variables);
    runbook.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_and_log_disagree() {
    let home = home!().with_shipped_pipelines();
    at_rest(&home, async |connected| {
        let seeded = seed(&*connected.store, &*connected.log, 20, 3).await;
        begin_group(&*connected.store, &seeded.owner, 3).await;
    })
    .await;
    let process = home.start(&["--only", "ingest,chats,accounts,acks,fanout,memberships"]);
    let mut runbook = Runbook::open("reconcile.md");
    for heading in ["Be sure", "Do", "Groups that were never made", "Over"] {
        runbook.follow(&home, heading, AtOnce, &[]);
    }
    runbook.end();
    drop(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_derived_store_is_lost() {
    let home = home!();
    let example = repository().join("examples/search.toml");
    home.replace_config(&format!("include = [{:?}]\n{}", example.to_str().unwrap(), shipped_pipelines()));
    at_rest(&home, async |connected| seed(&*connected.store, &*connected.log, 20, 0).await).await;
    // The group is at the end of the log when the index is lost, so nothing would fill it again.
    let mut process = home.start(&[]);
    process.wait_health("search", |health| health["dispositions"]["delivered"] == 20 && health["lag"] == 0);
    assert_eq!(process.stop(), Some(0), "{}", process.stderr());
    std::fs::remove_dir_all(home.path("data/derived/search")).unwrap();
    let mut process = home.start(&[]);
    process.wait_state("search", "running");

    let mut runbook = Runbook::open("rebuild.md");
    for heading in ["Be sure", "Do", "Over"] {
        runbook.follow(&home, heading, AtOnce, &[]);
    }
    runbook.end();
    process.wait_state("search", "running");
}
