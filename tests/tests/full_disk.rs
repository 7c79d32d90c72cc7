//! No room to write: the pipeline waits, says so, and loses nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::symlink;

use courant_tests::lines::{assert_exactly_once, assert_ordered_by_key};
use courant_tests::{Courant, Home, LIMIT, home, until};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::Value;

const COUNT: u64 = 3_000;

fn pipeline(name: &str) -> String {
    format!(
        r#"
[[pipeline]]
name = "{name}"
stage = [
  {{ kind = "generate", params = {{ count = {COUNT}, keys = 5, payload = '{{n: $n, key: $key, from: "{name}"}}' }} }},
  {{ kind = "file", batch = {{ records = 100 }}, retry = {{ initial = "1ms", max = "1ms", circuit_pause = "1ms" }}, params = {{ path = "out.jsonl" }} }},
]
"#
    )
}

/// As long as nothing can be written it is tried again, and whoever asks is told why.
fn check_told(process: &mut Courant, pipeline: &str, why: &str) {
    let health = process.wait_health(pipeline, |health| {
        health["last_error"].as_str().is_some_and(|error| error.contains(why) && error.contains("out.jsonl"))
    });
    assert_eq!((&health["state"], &health["restarts"]), (&"running".into(), &0.into()), "{health}");
    assert!(health["in_flight"].as_u64() > Some(0), "{health}");
    let before = failures(process, pipeline);
    until("another try", LIMIT, || (failures(process, pipeline) > before).then_some(()));
}

/// Records that failed at a stage of the pipeline, each time counted.
fn failures(process: &mut Courant, pipeline: &str) -> u64 {
    let metrics = process.page("/metrics");
    let of_this = format!("pipeline=\"{pipeline}\"");
    let errors = metrics.lines().filter(|line| line.starts_with("courant_stage_errors_total{"));
    let counts = errors.filter(|line| line.contains(&of_this)).filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_full_disk_is_waited_for() {
    let home = home!().with(&pipeline("p"));
    symlink("/dev/full", home.path("out.jsonl")).unwrap();
    let mut process = home.start(&[]);
    check_told(&mut process, "p", "No space left on device");
    assert_eq!(home.position("p"), None, "nothing is written, so nothing is done");

    std::fs::remove_file(home.path("out.jsonl")).unwrap();
    process.wait_state("p", "finished");
    assert_exactly_once(&home.json_lines("out.jsonl"), COUNT);
    assert_eq!(home.position("p"), Some(COUNT));
}

/// A process whose files may not grow beyond `bytes`: it can write up to there, and the rest of a write fails, as on
/// a disk that fills up. Without the signal that would end it.
fn with_file_limit(home: &Home, bytes: u64) -> Courant {
    let script = format!("trap '' XFSZ; ulimit -S -f {}; exec \"$0\" run", bytes / 1024);
    let mut shell = home.prepare("bash", &["-c", &script]);
    shell.arg(home.command(&[]).get_program());
    let mut process = Courant::spawn(shell);
    process.wait_ready();
    process
}

fn set_file_limit(process: &Courant, bytes: Option<u64>) {
    prlimit(Some(process.id()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

/// Several pipelines that write to one file, which fills up again and again: what one of them takes back is never
/// what another has written.
///
/// One harms another only if it writes within microseconds of it, on another core: hence retries without a pause worth
/// the name, and many small steps. That appenders take turns at all is tested beside them, without chance.
#[test]
fn a_disk_that_fills_up_takes_back_nothing_that_counts() {
    const NAMES: [&str; 4] = ["p", "pq", "pqr", "pqrs"];
    const STEP: u64 = 2 * 1024;
    // Small writes of different sizes, so that there is often room for one of them and not for another.
    let pipelines =
        NAMES.map(|name| pipeline(name).replace("records = 100", &format!("records = {}", 5 * name.len())));
    let home = home!().with(&pipelines.concat());
    let mut process = with_file_limit(&home, STEP);
    check_told(&mut process, "p", "File too large");
    for step in 2..=120 {
        set_file_limit(&process, Some(step * STEP));
        // A batch is smaller than a step, so it is full before that.
        until("the next step", LIMIT, || {
            (home.read("out.jsonl").len() as u64 > (step - 1) * STEP).then_some(())
        });
    }
    let records = home.json_lines("out.jsonl").len() as u64;
    assert!(records > 0 && records < COUNT * NAMES.len() as u64, "{records}");

    set_file_limit(&process, None);
    for name in NAMES {
        process.wait_state(name, "finished");
        let records = home.json_lines("out.jsonl");
        let records: Vec<Value> = records.into_iter().filter(|record| record["from"] == name).collect();
        assert_exactly_once(&records, COUNT);
    }
    let lines = home.read("out.jsonl").lines().count() as u64;
    assert_eq!(lines, COUNT * NAMES.len() as u64, "no half line is left");
}

/// Poison on a disk without room: the letters wait as well.
#[test]
fn dead_letters_wait_for_room() {
    let poison = pipeline("p").replace(
        "{ kind = \"file\", batch",
        "{ kind = \"filter\", params = { expr = 'if .n % 2 == 0 then error(\"odd ones only\") else . end' } },\n  { kind = \"file\", batch",
    );
    let home = home!().with(&poison);
    let mut process = with_file_limit(&home, 32 * 1024);
    process.wait_logged("cannot keep dead letters, will retry");
    assert!(home.position("p").unwrap_or(0) < COUNT);
    set_file_limit(&process, None);
    process.wait_state("p", "finished");
    let letters = home.letters("p");
    let payloads: Vec<Value> = letters
        .iter()
        .map(|letter| serde_json::from_str(letter["payload"].as_str().unwrap()).unwrap())
        .collect();
    assert_ordered_by_key(&payloads);
    let mut all = payloads;
    all.extend(home.json_lines("out.jsonl"));
    let mut numbers = courant_tests::lines::numbers(&all);
    numbers.dedup();
    assert_eq!((numbers.len() as u64, all.len() as u64), (COUNT, COUNT), "each once, here or there");
}
