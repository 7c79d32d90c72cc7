//! Where pipelines that read topics go on, set by an operator: on the embedded engine and on Kafka.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_conformance::log::LogServer as _;
use courant_conformance::servers::{MockKafka, Tansu};
use courant_connectors::embedded::{Engine, Options};
use courant_connectors::log::{Log, NewRecord, Offsets, Retention, Topic, TopicPartition, TopicSpec};
use courant_tests::{Home, LIMIT, home, lines, until};
use serde_json::json;

const PIPELINES: &str = r#"
[[pipeline]]
name = "copy"
stage = [
  { kind = "kafka-consume", params = { topics = ["events"] } },
  { kind = "file", params = { path = "out.jsonl" } },
]

[[pipeline]]
name = "count"
stage = [{ kind = "generate", params = { count = 3 } }, { kind = "blackhole" }]
"#;

fn topic() -> Topic {
    Topic::from("events")
}

fn at(offset: u64) -> Offsets {
    Offsets::from([(TopicPartition::new(&topic(), 0), offset)])
}

/// Numbered records, each in a write of its own.
async fn write(log: &dyn Log, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let payload = json!({"key": "k", "n": n}).to_string().into();
        let record = NewRecord { key: Some("k".into()), payload, headers: Vec::new() };
        log.produce(&topic(), vec![record]).await.remove(0).unwrap();
    }
}

async fn create(log: &dyn Log, retention: Retention) {
    log.create_topic(&TopicSpec { name: topic(), partitions: 1, retention, replication: 1 }).await.unwrap();
}

fn copied(home: &Home) -> Vec<u64> {
    home.json_lines("out.jsonl").iter().map(lines::number).collect()
}

fn wait_copied(home: &Home, wanted: &[u64]) {
    until(&format!("{wanted:?} are copied"), LIMIT, || (copied(home) == wanted).then_some(()));
}

/// Waits until the pipeline has stopped because its group is outside of the log, and does what the error says.
fn follow_the_advice(home: &Home, process: &mut courant_tests::Courant) -> String {
    let health = process.wait_health("copy", |health| health["last_error"].is_string());
    let error = health["last_error"].as_str().unwrap();
    let (_, advice) = error.split_once("`courant ").expect("the error says what to do");
    let (advice, _) = advice.split_once('`').unwrap();
    assert_eq!(advice, "positions reset copy --to oldest", "{error}");
    let arguments: Vec<&str> = advice.split(' ').collect();
    // Refused in the moments in which it tries again.
    until("a reset between two tries", LIMIT, || {
        let ended = home.run(&arguments);
        (ended.code == Some(0)).then_some(ended.stdout)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_whose_records_were_removed_goes_on_when_told_where() {
    let home = home!().with(PIPELINES);
    let refused = home.run(&["positions", "reset", "copy", "--to", "oldest"]).refused(1);
    assert!(refused.contains("there is nothing in `data`"), "{refused}");
    let engine = Engine::open(home.path("data/engine"), Options::default()).await.unwrap();
    // Each write is over the limit, so that only the last one stays.
    create(&*engine, Retention { age: None, bytes: Some(1) }).await;
    write(&*engine, 0..5).await;
    courant_connectors::log::ReadLog::reset_group(&*engine, "copy", &at(1)).await.unwrap();
    engine.sweep().await;
    engine.close().await;
    drop(engine);

    let mut process = home.launch(&[]);
    let said = follow_the_advice(&home, &mut process);
    assert!(said.contains("events/0") && said.contains("1 -> 4"), "{said}");
    wait_copied(&home, &[4]);
    process.wait_health("copy", |health| health["state"] == "running" && health["commit_lag"] == 0);
    let refused = home.run(&["positions", "reset", "copy", "--to", "latest"]).refused(1);
    assert!(refused.contains("`copy` is running") && refused.contains("courant stop"), "{refused}");
    assert_eq!(process.stop(), Some(0));

    // With nobody running, the command opens the log itself.
    let said = home.run(&["positions", "reset", "copy", "--to", "2026-01-30T14:30:00.000Z"]).ok();
    assert!(said.contains("5 -> 4"), "{said}");
    let mut process = home.start(&[]);
    wait_copied(&home, &[4, 4]);
    assert_eq!(process.stop(), Some(0));
    home.run(&["positions", "reset", "copy", "--to", "oldest"]).ok();
    let said = home.run(&["positions", "reset", "copy", "--to", "latest"]).ok();
    assert!(said.contains("4 -> 5"), "{said}");
}

#[test]
fn only_what_reads_topics_can_be_set() {
    let home = home!().with(PIPELINES);
    let refused = home.run(&["positions", "reset", "count", "--to", "oldest"]).refused(1);
    assert!(
        refused.contains("`generate`") && refused.contains("courant positions forget count"),
        "{refused}"
    );
    let refused = home.run(&["positions", "reset", "copi", "--to", "oldest"]).refused(1);
    assert!(refused.contains("no pipeline `copi`; it has: copy, count"), "{refused}");
    let refused = home.run(&["positions", "reset", "copy", "--to", "yesterday"]).refused(2);
    assert!(refused.contains("write oldest, latest, or a moment"), "{refused}");
    let refused = home.run(&["positions", "forget", "copy"]).refused(1);
    assert!(refused.contains("courant positions reset copy --to oldest"), "{refused}");
}

fn on_kafka(brokers: &str) -> String {
    format!("[connections.log]\nkind = 'kafka'\nbrokers = '{brokers}'\n{PIPELINES}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_kafka_goes_on_when_told_where() {
    let tansu = Tansu::start();
    let log = tansu.log().await;
    create(&*log, Retention::default()).await;
    write(&*log, 0..4).await;
    log.reset_group("copy", &at(100)).await.unwrap();

    let home = home!().with(&on_kafka(&tansu.config().brokers));
    let mut process = home.launch(&[]);
    let said = follow_the_advice(&home, &mut process);
    assert!(said.contains("100 -> 0"), "{said}");
    wait_copied(&home, &[0, 1, 2, 3]);
    process.wait_health("copy", |health| health["state"] == "running" && health["commit_lag"] == 0);
    let refused = home.run(&["positions", "reset", "copy", "--to", "latest"]).refused(1);
    assert!(refused.contains("`copy` is running"), "{refused}");
    assert_eq!(process.stop(), Some(0));

    write(&*log, 4..6).await;
    let said = home.run(&["positions", "reset", "copy", "--to", "latest"]).ok();
    assert!(said.contains("4 -> 6"), "{said}");
    write(&*log, 6..7).await;
    let mut process = home.launch(&[]);
    wait_copied(&home, &[0, 1, 2, 3, 6]);
    assert_eq!(process.stop(), Some(0));
}

/// The group is of the log and not of a process: whoever reads with it elsewhere is in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_another_process_reads_with_is_not_moved() {
    let cluster = MockKafka::start(1);
    cluster.create(&topic(), 1);
    let log = cluster.log().await;
    write(&*log, 0..3).await;
    let (elsewhere, here) = (home!(), home!());
    for home in [&elsewhere, &here] {
        home.configure(&on_kafka(&cluster.config().brokers));
    }
    let mut process = elsewhere.launch(&[]);
    wait_copied(&elsewhere, &[0, 1, 2]);
    let refused = here.run(&["positions", "reset", "copy", "--to", "oldest"]).refused(1);
    assert!(refused.contains("group 'copy' has members"), "{refused}");
    assert_eq!(process.stop(), Some(0));
    assert_eq!(copied(&elsewhere), [0, 1, 2]);
}
