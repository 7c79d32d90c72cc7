//! `courant reconcile` and `courant counters` as operators use them: on a folder at rest, beside a running process, and
//! interrupted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::time::Duration;

use courant_conformance::deployment::{Seeded, seed, user};
use courant_conformance::servers::{Dynoxide, Fault, FaultyProxy, connect};
use courant_connectors::dynamodb::DynamoDbConfig;
use courant_connectors::model::ChatId;
use courant_connectors::model::tables::chat_memberships;
use courant_connectors::store::{Durability, Key, Returning, Write};
use courant_tests::chat::shipped_pipelines_on;
use courant_tests::deployment::{ANYBODY, at_rest};
use courant_tests::{Courant, Ended, Home, LIMIT, Signal, home, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Reads store and log, so that the process has both open; publishes nothing by itself.
const PIPELINES: &str = r#"
[[pipeline]]
name = "repair"
plane = "durability"
stage = [{ kind = "unpublished", params = { after = "1h" } }, { kind = "blackhole" }]
"#;

async fn prepare(home: &Home, messages: u32, unpublished: u32) -> Seeded {
    at_rest(home, async |connected| seed(&*connected.store, &*connected.log, messages, unpublished).await)
        .await
}

async fn delete(home: &Home, table: &'static str, key: Key) {
    let write = Write::delete(table, key);
    at_rest(home, async |connected| {
        connected.store.write(write, Returning::Nothing, Durability::Synced).await.unwrap();
    })
    .await;
}

fn report(home: &Home, arguments: &[&str], code: i32) -> Value {
    let ended = home.run(arguments);
    assert_eq!(ended.code, Some(code), "{}{}", ended.stdout, ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// What is missing of each kind, by the report of `reconcile`.
fn found(report: &Value, check: &str) -> u64 {
    let checks = report["looked"]["checks"].as_array().unwrap();
    checks.iter().find(|told| told["id"] == check).unwrap()["found"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_at_rest_is_reconciled() {
    let home = home!().with("");
    let refused = home.run(&["reconcile"]).refused(1);
    assert!(refused.contains("there is nothing in `data`"), "{refused}");
    let seeded = prepare(&home, 20, 4).await;

    let told = report(&home, &["reconcile", "--json"], 6);
    assert_eq!((found(&told, "message-event"), &told["published"]), (4, &Value::Null));
    let other = report(&home, &["reconcile", "--chat", "chat_other", "--json"], 0);
    assert_eq!(found(&other, "message-event"), 0);
    let recent = report(&home, &["reconcile", "--since", "1m", "--json"], 0);
    assert_eq!(found(&recent, "message-event"), 0, "they are an hour old");
    let wrong = home.run(&["reconcile", "--since", "yesterday"]).refused(2);
    assert!(wrong.contains("how long ago, like 2h"), "{wrong}");

    let ended = home.run(&["reconcile", "--publish", "--chat", seeded.chat.as_str()]);
    assert!(
        ended.stderr.contains("publishing, 4"),
        "lines for those who keep what is printed: {}",
        ended.stderr
    );
    let said = ended.ok();
    assert!(said.contains("published  4 events of 1 chat") && said.contains("store and log agree"), "{said}");
    home.run(&["verify"]).ok();

    delete(&home, "messages", Key::new("chat_id", &seeded.chat).and("sequence", 7)).await;
    let ended = home.run(&["reconcile", "--publish"]);
    assert_eq!(ended.code, Some(6), "an event cannot be taken back: {}", ended.stdout);
    assert!(ended.stdout.contains("sequence 7: messages.persisted/"), "{}", ended.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_that_has_the_folder_open_does_it_itself() {
    let home = home!().with(PIPELINES);
    let seeded = prepare(&home, 20, 4).await;
    delete(&home, "chat_counters", Key::new("chat_id", &seeded.chat)).await;
    let process = home.start(&[]);
    let told = report(&home, &["counters", "check", "--json"], 6);
    assert_eq!((&told["found"], &told["counters"][0]["fault"]), (&1.into(), &"missing".into()));
    let dry = home.run(&["counters", "recover", "--all", "--dry-run"]);
    assert!(dry.code == Some(6) && dry.stdout.contains("would be set to 20"), "{}", dry.stdout);
    let set = home.run(&["counters", "recover", "--all", "--grace", "100ms"]).ok();
    assert!(set.contains("set to 20") && set.contains("recovered 1 of 1 counter"), "{set}");
    home.run(&["counters", "check"]).ok();
    assert!(process.has_logged("recovered a sequence counter"), "the process tells of it, too");
    let nobody = home.run(&["counters", "recover", "--chat", "chat_nobody"]);
    assert!(nobody.code == Some(6) && nobody.stdout.contains("there is no such chat"), "{}", nobody.stdout);
    home.run(&["counters", "recover"]).refused(2);

    let ended = home.run(&["reconcile", "--publish"]);
    assert!(ended.stderr.contains("publishing, 4"), "progress came over the socket: {}", ended.stderr);
    assert!(ended.ok().contains("published  4 events of 1 chat"));
    home.run(&["verify"]).ok();
    drop(process);
}

/// Starts to publish and is told to stop once it has begun.
fn interrupt(home: &Home) -> Courant {
    let mut publishing = Courant::spawn(home.command(&["reconcile", "--publish"]));
    until("publishing has begun", LIMIT, || {
        (publishing.has_logged("late events") || !publishing.is_running()).then_some(())
    });
    if publishing.is_running() {
        publishing.signal(Signal::INT);
    }
    publishing.wait(LIMIT);
    publishing
}

/// Enough that publishing takes a while.
const MANY: u32 = 20_000;

/// Afterwards everything is published, and what was not cut off in flight is so once.
fn assert_whole(home: &Home) {
    let told = report(home, &["reconcile", "--json"], 0);
    assert_eq!(told["looked"]["figures"]["events"]["messages.persisted"], MANY, "each once");
    home.run(&["verify"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_is_safe_at_rest() {
    let home = home!().with("");
    prepare(&home, MANY, MANY - 1).await;
    let interrupted = interrupt(&home);
    let said = interrupted.stdout();
    assert!(said.contains("stopped early") || said.contains("store and log agree"), "{said}");
    home.run(&["reconcile", "--publish"]).ok();
    assert_whole(&home);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_is_safe_beside_a_running_process() {
    let home = home!().with(PIPELINES);
    prepare(&home, MANY, MANY - 1).await;
    let process = home.start(&[]);
    interrupt(&home);
    // The process finishes the step it is at; until then it takes no other.
    until("the rest is published", LIMIT, || {
        let ended = home.run(&["reconcile", "--publish"]);
        assert!(ended.code == Some(0) || ended.stderr.contains("another command works"), "{}", ended.stderr);
        (ended.code == Some(0)).then_some(())
    });
    assert_whole(&home);
    drop(process);
}

/// Groups of this many take five writes, between which they are forming.
const LARGE: usize = 300;
const GROUPS: usize = 6;

fn as_anybody(home: &Home, arguments: &[&str]) -> Ended {
    let mut command = home.command(arguments);
    command.envs(ANYBODY);
    home.finish(command)
}

fn on(store: SocketAddr) -> String {
    format!(
        "[connections.store]\nkind = 'dynamodb'\nendpoint = 'http://{store}'\nregion = 'eu-central-1'\n\
         [connections.log]\nkind = 'embedded'\npath = 'data'\n"
    )
}

/// Sweeps what is forming, of whatever age; how many groups that was.
fn sweep(home: &Home) -> u64 {
    let arguments = ["reconcile", "--sweep-chats", "--older-than", "0s", "--grace", "0s", "--json"];
    let report: Value = serde_json::from_str(&as_anybody(home, &arguments).ok()).unwrap();
    report["swept"]["groups"].as_u64().unwrap()
}

/// Begins to make groups at a gateway, of somebody new and these.
async fn make_groups(process: &mut Courant, others: &[String]) -> JoinSet<Option<ChatId>> {
    let ann = process.person("Ann").await;
    let wanted = json!({"chat_type": "group", "name": "everybody", "members": others});
    let mut making = JoinSet::new();
    for _ in 0..GROUPS {
        let (client, wanted) = (ann.client.clone(), wanted.clone());
        making.spawn(async move {
            // One that is swept again and again is given up in the end, and its client told so.
            let made = client.post("/api/v1/chats", &wanted).await.ok()?;
            Some(made["chat_id"].as_str().unwrap().into())
        });
    }
    making
}

/// However young a group is that is swept: whoever is making it begins again, and it is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_are_being_made_survive_a_sweep() {
    let dynoxide = Dynoxide::start();
    let slow = FaultyProxy::before(dynoxide.address()).await;
    let (home, sweeper) = (home!(), home!());
    home.replace_config(&shipped_pipelines_on(&on(slow.address())));
    sweeper.replace_config(&on(dynoxide.address()));
    for what in ["tables", "topics"] {
        as_anybody(&sweeper, &[what, "create"]).ok();
    }
    let without_prefix = |config| DynamoDbConfig { table_prefix: String::new(), ..config };
    let store = connect(dynoxide.address(), without_prefix).await;
    let mut people = Vec::new();
    for _ in 1..LARGE {
        people.push(user(&store).await.to_string());
    }
    let mut command = home.command(&["run"]);
    command.envs(ANYBODY);
    let mut process = Courant::spawn(command);
    process.wait_ready();

    slow.always("TransactWriteItems", Fault::Delay(Duration::from_millis(100)));
    let mut making = make_groups(&mut process, &people).await;
    let (mut swept, mut made) = (0, Vec::new());
    while swept < 3 && made.len() < GROUPS {
        swept += sweep(&sweeper);
        while let Some(group) = making.try_join_next() {
            made.push(group.unwrap());
        }
    }
    assert!(swept > 0, "none was swept while it was being made");
    made.extend(making.join_all().await);
    slow.heal();
    let whole: Vec<ChatId> = made.into_iter().flatten().collect();
    assert!(!whole.is_empty());
    for group in whole {
        let members = chat_memberships::list(&store, &group, None, None).await.unwrap();
        assert_eq!(members.items.len(), LARGE);
    }
    sweep(&sweeper);
    let only = "chat-formed,membership-chat,chat-counts,counter-exists";
    as_anybody(&sweeper, &["verify", "--strict", "--only", only]).ok();
}
