//! `courant data`: what an operator does to the folder of the embedded engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;

use courant_connectors::embedded::{Engine, Options};
use courant_connectors::log::{AdminLog, NewRecord, Retention, Topic, TopicSpec, WriteLog};
use courant_connectors::store::{
    AdminStore, Capacity, Consistency, Durability, Get, IndexSchema, Key, KeyAttribute, Name, Projection,
    ReadStore, Returning, Stream, TableSchema, Write, WriteStore,
};
use courant_tests::home;
use serde_json::Value;

fn schema() -> TableSchema {
    TableSchema {
        name: Name::new_static("messages"),
        partition: KeyAttribute::text("id"),
        sort: None,
        indexes: vec![IndexSchema {
            name: Name::new_static("by-sender"),
            partition: KeyAttribute::text("sender"),
            sort: None,
            projection: Projection::KeysOnly,
        }]
        .into(),
        ttl: None,
        stream: Stream::Off,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

async fn put(engine: &Engine, id: &str) {
    let item = Key::new("id", id).into_item().with("sender", "ann").with("text", "hello");
    engine.write(Write::put("messages", item), Returning::Nothing, Durability::Synced).await.unwrap();
}

async fn has(engine: &Engine, id: &str) -> bool {
    let key = Key::new("id", id);
    let get = Get { table: "messages".into(), key, consistency: Consistency::Strong };
    engine.get(get).await.unwrap().is_some()
}

async fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(folder, Options::default()).await.unwrap()
}

/// A folder with three rows and two records.
async fn prepare(folder: &Path) {
    let engine = open(folder).await;
    engine.create_table(&schema()).await.unwrap();
    let spec =
        TopicSpec { name: "events".into(), partitions: 4, retention: Retention::default(), replication: 1 };
    engine.create_topic(&spec).await.unwrap();
    for id in ["a", "b", "c"] {
        put(&engine, id).await;
    }
    let records = vec![NewRecord { payload: "x".into(), ..NewRecord::default() }; 2];
    for appended in engine.produce(&Topic::from("events"), records).await {
        appended.unwrap();
    }
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_brings_back_what_was_lost() {
    let home = home!();
    prepare(&home.path("data/engine")).await;
    assert!(home.run(&["data", "backup", "copy"]).ok().contains("'copy' is a backup of 'data/engine'"));
    let refused = home.run(&["data", "backup", "copy"]).refused(1);
    assert!(refused.contains("'copy' exists"), "{refused}");
    let refused = home.run(&["data", "restore", "copy"]).refused(1);
    assert!(refused.contains("'data/engine' exists"), "{refused}");

    std::fs::remove_dir_all(home.path("data/engine")).unwrap();
    home.run(&["data", "restore", "copy"]).ok();
    let engine = open(&home.path("data/engine")).await;
    assert!(has(&engine, "a").await && has(&engine, "c").await);
    put(&engine, "d").await;
    let refused = home.run(&["data", "info"]).refused(1);
    assert!(refused.contains("'data/engine' is in use by another process; stop it"), "{refused}");
    engine.close().await;
    drop(engine);
    let checked = home.run(&["data", "check"]).ok();
    assert_eq!(checked.trim(), "in order: 4 rows, 4 index rows, 0 changes, 2 records");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_folder_takes_is_shown() {
    let home = home!();
    home.write("pipelines.toml", "[connections.store]\nkind = 'embedded'\npath = 'elsewhere'\n");
    prepare(&home.path("elsewhere/engine")).await;
    let compacted = home.run(&["data", "compact"]).ok();
    assert!(compacted.contains("before") && compacted.contains("after"), "{compacted}");
    let space: Value = serde_json::from_str(&home.run(&["data", "info", "--json"]).ok()).unwrap();
    assert_eq!(space["tables"][0]["name"], "messages");
    assert_eq!(space["tables"][0]["rows_at_most"], 3);
    assert_eq!(space["tables"][0]["indexes"][0]["name"], "by-sender");
    assert!(space["tables"][0]["rows_bytes"].as_u64() > Some(0), "{space}");
    assert_eq!((&space["topics"][0]["records"], &space["topics"][0]["partitions"]), (&2.into(), &4.into()));
    assert!(space["total_bytes"].as_u64() > space["journal_bytes"].as_u64(), "{space}");
    let text = home.run(&["data", "info", "--path", "elsewhere/engine"]).ok();
    for line in ["table messages", "  index by-sender", "topic events", "journal", "total"] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_in_order_is_said() {
    let home = home!();
    let refused = home.run(&["data", "info"]).refused(1);
    assert!(refused.contains("'data/engine' holds no data of the embedded engine"), "{refused}");
    assert!(!home.path("data/engine").exists(), "asking makes no folder");

    prepare(&home.path("data/engine")).await;
    let journal = home.path("data/engine/0.jnl");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[30] ^= 4;
    std::fs::write(&journal, bytes).unwrap();
    let refused = home.run(&["data", "check"]).refused(1);
    assert!(refused.contains("holds damaged data") && refused.contains("courant data restore"), "{refused}");
}
