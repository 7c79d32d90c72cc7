//! A rebuild in trouble: the disk is full, somebody pauses it, it is told to go where nothing is. Whatever happens, the
//! live store is as it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use courant_conformance::deployment::seed;
use courant_tests::deployment::at_rest;
use courant_tests::{Courant, Home, LIMIT, Signal, home, until};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::Value;

const PIPELINES: &str = r#"
[[pipeline]]
name = "archive"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"] }
[[pipeline.stage]]
kind = "table"
params = { key = '"\(.payload.chat_id)/\(.payload.sequence)"', at = '.payload.created_at' }

[[pipeline]]
name = "files"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"] }
[[pipeline.stage]]
kind = "parquet-write"
[pipeline.stage.params]
key = ["message_id"]
columns = [
  { name = "message_id", type = "string", from = ".payload.message_id" },
  { name = "content", type = "string", from = ".payload.content" },
]

[[pipeline]]
name = "search"
[[pipeline.stage]]
kind = "kafka-consume"
params = { topics = ["messages.persisted"] }
[[pipeline.stage]]
kind = "search-index"
"#;
/// Less than any of the stores takes.
const ROOM: u64 = 16 << 10;
const MESSAGES: u32 = 3000;

async fn prepared(home: Home) -> Home {
    let home = home.with(PIPELINES);
    at_rest(&home, async |connected| seed(&*connected.store, &*connected.log, MESSAGES, 0).await).await;
    home
}

/// Every file of the live generation, with what is in it.
fn live_files(home: &Home, pipeline: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    fn add(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                add(&path, files);
            } else {
                files.insert(path.clone(), std::fs::read(path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    add(&std::fs::canonicalize(home.path(format!("data/derived/{pipeline}/current"))).unwrap(), &mut files);
    assert!(!files.is_empty());
    files
}

/// `courant replay` in a process whose files may not grow beyond so many bytes.
fn with_file_limit(home: &Home, arguments: &[&str], bytes: u64) -> Courant {
    let script = format!("trap '' XFSZ; ulimit -S -f {}; exec \"$0\" \"$@\"", bytes / 1024);
    let mut shell = home.prepare("bash", &["-c", &script]);
    let command = home.command(arguments);
    shell.arg(command.get_program()).args(command.get_args());
    Courant::spawn(shell)
}

/// It says so and goes on once there is room; a table, whose files are made large at once, says so and ends, and can be gone on with.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_the_live_store_stays() {
    let home = prepared(home!()).await;
    for (pipeline, waits) in [("archive", false), ("files", true), ("search", true)] {
        home.run(&["replay", pipeline, "--from", "oldest"]).ok();
        let before = live_files(&home, pipeline);
        let mut full = with_file_limit(&home, &["replay", pipeline, "--from", "scan"], ROOM);
        until("the reason", LIMIT, || full.stderr().contains("File too large").then_some(()));
        if waits {
            assert!(full.stderr().contains("; waits: "), "{}", full.stderr());
            full.signal(Signal::KILL);
        }
        assert_eq!(full.wait(LIMIT), (!waits).then_some(1), "{pipeline}: {}", full.stderr());
        assert_eq!(live_files(&home, pipeline), before, "{pipeline}");

        let again = ["replay", pipeline, "--resume"];
        let said = if waits {
            let mut full = with_file_limit(&home, &again, ROOM);
            until("the reason", LIMIT, || full.stderr().contains("File too large").then_some(()));
            prlimit(Some(full.id()), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
            assert_eq!(full.wait(LIMIT), Some(0), "{pipeline}: {}", full.stderr());
            full.stdout()
        } else {
            home.run(&again).ok()
        };
        assert!(said.contains("3,000 entries of 3,000") && said.contains("live; "), "{pipeline}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn places_where_nothing_is_are_refused_and_the_live_store_stays() {
    let home = prepared(home!()).await;
    home.run(&["replay", "archive", "--from", "oldest"]).ok();
    let before = live_files(&home, "archive");
    let refused: [(&[&str], &str); 6] = [
        (&["--from", "offset:1000000"], "1000000 is not written yet"),
        (&["--from", "offset:messages.persisted/0=1000000"], "and not 1000000"),
        (&["--from", "offset:messages.persisted/99=0"], "no partition `messages.persisted/99`"),
        (&["--from", "oldest", "--to", "offset:1000000"], "1000000 is not written yet"),
        (&["--from", "offset:2", "--to", "offset:1"], "the end lies before the start in messages.persisted/"),
        (
            &["--from", "scan", "--to", "time:2020-01-01T00:00:00Z"],
            "what was published before 2020-01-01T00:00:00.000Z cannot be told from what came later",
        ),
    ];
    for (arguments, reason) in refused {
        let said = home.run(&[&["replay", "archive"], arguments].concat()).refused(1);
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    assert_eq!(live_files(&home, "archive"), before);
    assert_eq!(home.run(&["replay", "--list"]).ok().lines().count(), 1, "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_is_paused_and_goes_on_at_another_pace() {
    let home = prepared(home!()).await;
    let none = home.run(&["replay", "archive", "--pause"]).refused(1);
    assert!(none.contains("no replay of `archive` is under way"), "{none}");
    let mut process = home.start(&[]);
    let mut slow = Courant::spawn(home.command(&["replay", "archive", "--from", "scan", "--rate", "300"]));
    until("a checkpoint", LIMIT, || {
        let made = std::fs::read_dir(home.path("data/derived/archive")).ok()?;
        made.map(Result::unwrap).find(|made| made.path().join(".rebuild/positions/archive.json").exists())
    });
    assert!(home.run(&["replay", "archive", "--pause"]).ok().contains("--resume"));
    assert_eq!(slow.wait(LIMIT), Some(1));
    assert!(slow.stderr().contains("`courant replay archive --resume` goes on"), "{}", slow.stderr());
    until("its end", LIMIT, || home.run(&["replay", "--list"]).ok().contains("building").then_some(()));

    let resume = ["replay", "archive", "--resume", "--rate", "1000000", "--yield", "10s", "--json"];
    let resumed: Value = serde_json::from_str(&home.run(&resume).ok()).unwrap();
    let receipt = &resumed["receipt"];
    assert_eq!((&receipt["state"], &receipt["request"]["rate"]), (&"live".into(), &1e6.into()), "{receipt}");
    assert_eq!(receipt["records"]["delivered"], MESSAGES, "nothing was run twice: {receipt}");
    assert_eq!(process.stop(), Some(0));
}
