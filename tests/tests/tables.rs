//! `courant tables`, `topics` and `iam`: what servers hold and allow, made of the model and compared with it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use courant_conformance::servers::{Dynoxide, Tansu};
use courant_connectors::embedded::{Engine, Options};
use courant_connectors::model::tables::{chat_memberships, sessions};
use courant_connectors::store::{AdminStore, Projection, TableSchema};
use courant_tests::{Home, home};
use serde_json::{Value, json};

const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
stage = [{ kind = "generate", params = { count = 1 } }, { kind = "blackhole" }]
"#;

const TABLES: [&str; 9] = [
    "users",
    "chats",
    "chat_memberships",
    "messages",
    "chat_counters",
    "idempotency_keys",
    "delivery_state",
    "sessions",
    "stream_leases",
];

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn lines(word: &str, names: &[&str]) -> String {
    names.iter().map(|name| format!("{word:<8} {name}\n")).collect()
}

#[test]
fn tables_are_created_once_and_are_as_in_the_model() {
    let home = home!().with(PIPELINE);
    assert_eq!(home.run(&["tables", "create", "--only", "users,chats"]).ok(), lines("created", &TABLES[..2]));
    let again = home.run(&["tables", "create"]);
    assert_eq!(again.stderr, "", "the embedded engine can do all of it");
    assert_eq!(again.ok(), lines("exists", &TABLES[..2]) + &lines("created", &TABLES[2..]));
    assert_eq!(home.run(&["tables", "drift"]).ok(), "9 tables, as in the model\n");
    let clean = json!({"differences": [], "unknown": []});
    assert_eq!(json_of(&home.run(&["tables", "drift", "--json"]).ok()), clean);
    let mode = std::fs::metadata(home.path("data/engine")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "what users write is for the owner of the folder");
}

#[test]
fn a_folder_that_is_in_use_is_named_once() {
    let home = home!().with(PIPELINE);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _engine = runtime.block_on(Engine::open(home.path("data/engine"), Options::default())).unwrap();
    let said = home.run(&["tables", "create"]).refused(1);
    assert_eq!(
        said,
        "error: opening the embedded engine: 'data/engine' is in use by another process; stop it, or give this one a folder \
         of its own\n"
    );
}

#[test]
fn tables_are_described_for_people_and_programs() {
    let home = home!().with(PIPELINE);
    home.run(&["tables", "create"]).ok();
    let described = json_of(&home.run(&["tables", "describe", "--json"]).ok());
    let names: Vec<_> = described.as_array().unwrap().iter().map(|table| table["name"].clone()).collect();
    assert_eq!(names, TABLES);
    let mut memberships = described[2].clone();
    memberships["bytes"].take();
    assert_eq!(
        memberships,
        json!({
            "name": "chat_memberships",
            "partition": {"name": "chat_id", "kind": "text"},
            "sort": {"name": "user_id", "kind": "text"},
            "indexes": [{
                "name": "user_chats-index",
                "partition": {"name": "user_id", "kind": "text"},
                "sort": {"name": "chat_id", "kind": "text"},
                "projection": "all",
            }],
            "ttl": null,
            "stream": "old-and-new-images",
            "capacity": {"mode": "provisioned", "read_units": 100, "write_units": 5},
            "point_in_time_recovery": true,
            "unknown": [],
            "items": 0,
            "bytes": null,
        })
    );
    let text = home.run(&["tables", "describe", "sessions"]).ok();
    for line in ["keys       session_id (text)", "TTL        on 'ttl'", "stream     off", "recovery   on"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn looking_makes_nothing_and_names_what_there_is() {
    let home = home!().with(PIPELINE);
    for command in [["tables", "describe"], ["tables", "drift"], ["topics", "describe"], ["topics", "drift"]]
    {
        let said = home.run(&command).refused(1);
        assert!(said.contains(&format!("`courant {} create` makes it", command[0])), "{said}");
    }
    assert!(!home.path("data").exists());
    home.run(&["tables", "create", "--only", "users"]).ok();
    let said = home.run(&["tables", "describe", "usres"]).refused(1);
    assert!(said.contains("there is no table `usres`; there are: users"), "{said}");
    let said = home.run(&["tables", "create", "--stream", "mesages"]).refused(1);
    assert!(said.contains("the model has no table `mesages`") && said.contains("messages"), "{said}");
}

/// As the embedded engine would have them if another program had made them.
fn make_differently(home: &Home, tables: &[TableSchema]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::open(home.path("data/engine"), Options::default()).await.unwrap();
        for table in tables {
            engine.create_table(table).await.unwrap();
        }
        engine.close().await;
    });
}

#[test]
fn what_was_made_differently_is_told_and_left_as_it_is() {
    let home = home!().with(PIPELINE);
    let mut memberships = chat_memberships::SCHEMA.clone();
    memberships.indexes.to_mut()[0].projection = Projection::KeysOnly;
    make_differently(&home, &[TableSchema { ttl: None, ..sessions::SCHEMA.clone() }, memberships]);
    assert!(home.run(&["tables", "create", "--only", "users,sessions"]).ok().contains("exists   sessions"));

    let drift = home.run(&["tables", "drift", "--only", "users,sessions,chat_memberships,chats"]);
    assert_eq!(
        drift.stdout,
        "table 'chats': the table is missing, and should be there\n\
         table 'chat_memberships': projection of index 'user_chats-index' is keys only, and should be all attributes\n\
         table 'sessions': TTL is off, and should be on 'ttl'\n"
    );
    assert_eq!(drift.refused(3), "4 tables, 3 differences\n");
    let drift = home.run(&["tables", "drift", "--json", "--only", "sessions"]);
    let told = json!({
        "differences": [
            {"of": "table 'sessions'", "attribute": "TTL", "is": "off", "should_be": "on 'ttl'"},
        ],
        "unknown": [],
    });
    assert_eq!(json_of(&drift.stdout), told);
    drift.refused(3);
}

#[test]
fn a_stream_that_was_asked_for_is_no_drift_when_it_is_asked_for_again() {
    let home = home!().with(PIPELINE);
    home.run(&["tables", "create", "--stream", "users"]).ok();
    home.run(&["tables", "drift", "--stream", "users"]).ok();
    let drift = home.run(&["tables", "drift"]);
    assert_eq!(drift.stdout, "table 'users': stream is on with old and new images, and should be off\n");
    assert_eq!(drift.refused(3), "9 tables, 1 difference\n");
}

/// The command with this server as its store.
fn on(server: &Dynoxide, home: &Home, arguments: &[&str]) -> Command {
    let mut command = home.command(arguments);
    command
        .env("COURANT_CONNECTIONS__STORE__KIND", "dynamodb")
        .env("COURANT_CONNECTIONS__STORE__ENDPOINT", format!("http://{}", server.address()))
        .env("COURANT_CONNECTIONS__STORE__REGION", "eu-central-1")
        .env("COURANT_CONNECTIONS__STORE__TABLE_PREFIX", "test-")
        // A busy machine is slow, and not for what is tested.
        .env("COURANT_CONNECTIONS__STORE__ATTEMPT_TIMEOUT", "60s")
        .env("COURANT_CONNECTIONS__STORE__OPERATION_TIMEOUT", "60s")
        .env("AWS_ACCESS_KEY_ID", "anybody")
        .env("AWS_SECRET_ACCESS_KEY", "nothing");
    command
}

#[test]
fn on_a_server_without_recovery_tables_are_made_with_a_warning_and_it_is_no_drift() {
    let (server, home) = (Dynoxide::start(), home!().with(PIPELINE));
    let run = |arguments: &[&str]| home.finish(on(&server, &home, arguments));
    let created = run(&["tables", "create"]);
    let warning = "warning: the server has no point-in-time recovery for table 'users'\n";
    assert!(created.stderr.starts_with(warning), "{}", created.stderr);
    assert_eq!(created.stderr.matches("warning: ").count(), TABLES.len(), "{}", created.stderr);
    assert_eq!(created.ok(), lines("created", &TABLES));
    let again = run(&["tables", "create"]);
    assert_eq!((again.stderr.as_str(), again.stdout.as_str()), ("", &*lines("exists", &TABLES)));

    let sessions = json_of(&run(&["tables", "describe", "sessions", "--json"]).ok());
    assert_eq!((&sessions[0]["name"], &sessions[0]["ttl"]), (&json!("sessions"), &json!("ttl")));
    assert_eq!(sessions[0]["indexes"][0]["name"], "user_sessions-index");
    assert_eq!(sessions[0]["point_in_time_recovery"], Value::Null);
    assert_eq!(sessions[0]["unknown"], json!(["point_in_time_recovery"]));

    let drift = run(&["tables", "drift"]).ok();
    assert!(drift.contains("table 'users': not told, so not compared: point_in_time_recovery\n"), "{drift}");
    assert!(drift.ends_with("9 tables, as in the model\n"), "{drift}");
    assert!(!home.path("data").exists(), "nothing is embedded");
}

/// A time to live can only be set once a table is there, so it is what a creation that broke off leaves out.
#[test]
fn drift_on_a_server_is_seen_and_what_can_be_turned_on_is() {
    let (server, home) = (Dynoxide::start(), home!().with(PIPELINE));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let different = TableSchema { ttl: None, indexes: [].as_slice().into(), ..sessions::SCHEMA.clone() };
        server.connect().await.create_table(&different).await.unwrap();
    });
    let run = |arguments: &[&str]| home.finish(on(&server, &home, arguments));
    let drift = || {
        let drift = run(&["tables", "drift", "--only", "sessions", "--json"]);
        let differences = json_of(&drift.stdout)["differences"].clone();
        drift.refused(3);
        differences
    };
    let index = json!({
        "of": "table 'sessions'",
        "attribute": "index 'user_sessions-index'",
        "is": "missing",
        "should_be": "there",
    });
    let ttl = json!({"of": "table 'sessions'", "attribute": "TTL", "is": "off", "should_be": "on 'ttl'"});
    assert_eq!(drift(), json!([index, ttl]));
    let created = run(&["tables", "create", "--only", "sessions"]);
    assert_eq!(created.ok(), "exists   sessions; turned on time to live\n");
    assert_eq!(drift(), json!([index]), "the rest is left as it is");
    assert_eq!(run(&["tables", "create", "--only", "sessions"]).ok(), lines("exists", &["sessions"]));
}

#[test]
fn topics_are_created_and_compared_with_what_was_asked_for() {
    let home = home!().with(PIPELINE);
    let created = home.run(&["topics", "create", "--partitions", "4"]);
    assert_eq!(created.stderr.matches("keeps one copy of topic").count(), 4, "{}", created.stderr);
    assert_eq!(
        created.ok(),
        lines(
            "created",
            &["messages.persisted", "memberships.changed", "chats.created", "verifications.requested"]
        )
    );
    let drift = home.run(&["topics", "drift", "--only", "chats.created"]);
    assert!(
        drift.stdout.starts_with("topic 'chats.created': number of partitions is 4, and should be 12\n"),
        "{}",
        drift.stdout
    );
    assert_eq!(drift.refused(3), "1 topic, 1 difference\n");
    assert!(
        home.run(&["topics", "drift", "--partitions", "4"]).ok().ends_with("4 topics, as in the model\n")
    );

    let mut described = json_of(&home.run(&["topics", "describe", "chats.created", "--json"]).ok());
    described[0]["bytes"].take();
    assert_eq!(
        described,
        json!([{
            "name": "chats.created",
            "partitions": 4,
            "retention_seconds": 604_800,
            "retention_bytes": null,
            "replication": 1,
            "unknown": ["replication"],
            "bytes": null,
        }])
    );
    let said = home.run(&["topics", "create", "--only", "chats"]).refused(1);
    assert!(said.contains("the model has no topic `chats`; it has: messages.persisted"), "{said}");
}

#[test]
fn a_single_broker_has_one_copy_with_a_warning() {
    let (server, home) = (Tansu::start(), home!().with(PIPELINE));
    let run = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("COURANT_CONNECTIONS__LOG__KIND", "kafka");
        command.env("COURANT_CONNECTIONS__LOG__BROKERS", server.config().brokers);
        home.finish(command)
    };
    let created = run(&["topics", "create"]);
    let warning = "topic 'chats.created' has 1 copy and not 3: the cluster has a single broker";
    assert!(created.stderr.contains(warning), "{}", created.stderr);
    created.ok();
    run(&["topics", "drift", "--replication", "1"]).ok();
    let drift = run(&["topics", "drift"]);
    assert!(drift.stdout.contains("number of copies is 1, and should be 3"), "{}", drift.stdout);
    drift.refused(3);
}

#[test]
fn a_pipeline_that_touches_nothing_needs_no_access() {
    let home = home!().with(PIPELINE);
    let said = home.run(&["iam", "p"]).ok();
    assert_eq!(said, "`p` needs no access: its stages touch neither store, log nor live state\n");
    let nothing = json!({"iam": null, "kafka": [], "redis": null});
    assert_eq!(json_of(&home.run(&["iam", "p", "--json"]).ok()), nothing);
    for format in ["iam", "kafka", "redis"] {
        let ended = home.run(&["iam", "p", "--format", format]);
        assert_eq!(ended.stderr, "note: `p` needs no such rules\n");
        assert_eq!(ended.ok(), "", "nothing that a server would take for rules");
    }
    let said = home.run(&["iam", "q"]).refused(1);
    assert!(said.contains("no pipeline `q`; it declares: p"), "{said}");
}

#[test]
fn measuring_leaves_no_trace() {
    let home = home!().with(PIPELINE);
    let figures = home.run(&["bench", "store", "--seconds", "1", "--json"]).ok();
    let names: Vec<_> = figures.lines().map(|line| json_of(line)["figure"].clone()).collect();
    let expected = [1, 64, 1024].map(|in_flight| {
        ["store_write", "queue_write", "store_cpu"].map(|figure| format!("{figure}_{in_flight}"))
    });
    assert_eq!(names, [&expected.concat()[..], &["store_batch_1000".to_owned()]].concat());
    let mut writes = figures.lines().map(json_of).filter(|line| line["unit"] == "records/s");
    assert!(writes.all(|line| line["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0)));
    let left: Vec<_> =
        std::fs::read_dir(home.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["pipelines.toml"]);
}
