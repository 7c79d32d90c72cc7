//! Reloads of a process at work: nothing lost, nothing twice, nothing out of order.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::lines::{assert_exactly_once, number};
use courant_tests::{Courant, Home, LIMIT, Signal, home, until};
use serde_json::Value;

const RELOADS: u64 = 20;

/// Version after version of the same pipeline: other lanes, other buffers, another rate, and its number in each record.
fn version(version: u64, count: Option<u64>) -> String {
    let count = count.map_or_else(String::new, |count| format!("count = {count}, "));
    let lanes = version % 3 + 1;
    let buffer = if version.is_multiple_of(2) { "buffer = 100, " } else { "" };
    let rate = 20_000 + version;
    format!(
        r#"
[[pipeline]]
name = "busy"
stage = [
  {{ kind = "generate", params = {{ {count}keys = 8 }} }},
  {{ kind = "map", lanes = {lanes}, params = {{ expr = ". + {{version: {version}}}" }} }},
  {{ kind = "throttle", {buffer}batch = {{ records = 64 }}, params = {{ rate = {rate}, burst = 64 }} }},
  {{ kind = "file", params = {{ path = "out.jsonl" }} }},
]

[[pipeline]]
name = "calm"
stage = [
  {{ kind = "generate", params = {{ rate = 50 }} }},
  {{ kind = "blackhole" }},
]
"#
    )
}

/// How many records have arrived, and the version that made the last.
fn arrived(home: &Home) -> (u64, Option<u64>) {
    let text = home.read("out.jsonl");
    let last = courant_tests::lines::whole(&text).last();
    let last: Option<Value> = last.and_then(|line| serde_json::from_str(line).ok());
    (text.lines().count() as u64, last.and_then(|record| record["version"].as_u64()))
}

/// Waits until the version is at work, and some time into it.
fn wait_for_version(home: &Home, version: u64, before: u64) -> u64 {
    until(&format!("records of version {version}"), LIMIT, || {
        let (count, last) = arrived(home);
        (last == Some(version) && count > before + 300).then_some(count)
    })
}

fn reload_by(way: u64, home: &Home, process: &Courant) {
    match way % 3 {
        0 => process.signal(Signal::HUP),
        1 => {
            let said = home.run(&["reload"]).ok();
            // The watch may have seen the change first.
            assert!(said.contains("busy"), "{said}");
        }
        _ => {} // the file is watched
    }
}

#[test]
fn twenty_reloads_under_load_deliver_exactly_once() {
    let tables = "edge = { listen = '127.0.0.1:0' }\nruntime = { watch = '100ms' }\n";
    let home = home!();
    home.replace_config(&format!("{tables}{}", version(0, None)));
    let mut process = home.start(&[]);
    let calm_since = process.health("calm").unwrap()["since"].clone();
    let mut count = wait_for_version(&home, 0, 0);
    for round in 1..=RELOADS {
        home.replace_config(&format!("{tables}{}", version(round, None)));
        reload_by(round, &home, &process);
        count = wait_for_version(&home, round, count);
    }
    assert_eq!(process.health("calm").unwrap()["since"], calm_since, "what did not change was left alone");
    assert_eq!(process.stop(), Some(0));

    let made = home.position("busy").unwrap();
    let records = home.json_lines("out.jsonl");
    assert_exactly_once(&records, made);
    assert!(records.is_sorted_by_key(|record| record["version"].as_u64()), "versions do not overlap");

    // The rest, up to a fixed number, by a process that ends by itself.
    let all = made + 2_000;
    home.configure(&version(RELOADS + 1, Some(all)));
    home.run(&["run", "--until-finished", "--only", "busy"]).ok();
    assert_exactly_once(&home.json_lines("out.jsonl"), all);
}

/// Several reloads at the same moment, and the file changes meanwhile.
#[test]
fn reloads_at_once_deliver_exactly_once_and_the_last_file_wins() {
    let home = home!().with(&version(0, None));
    let mut process = home.start(&[]);
    let mut count = wait_for_version(&home, 0, 0);
    for last in (2..=10).step_by(2) {
        home.configure(&version(last - 1, None));
        let mut earlier = [(); 2].map(|()| Courant::spawn(home.command(&["reload"])));
        process.signal(Signal::HUP);
        home.configure(&version(last, None));
        home.run(&["reload"]).ok();
        for reload in &mut earlier {
            assert_eq!(reload.wait(LIMIT), Some(0), "{}", reload.stderr());
        }
        count = wait_for_version(&home, last, count);
    }
    assert_eq!(process.stop(), Some(0));
    let records = home.json_lines("out.jsonl");
    assert_exactly_once(&records, home.position("busy").unwrap());
    assert!(records.is_sorted_by_key(|record| record["version"].as_u64()), "versions do not overlap");
}

#[test]
fn a_signal_reloads_without_a_watch() {
    let home = home!().with(&version(0, None));
    let process = home.start(&[]);
    let count = wait_for_version(&home, 0, 0);
    home.configure(&version(1, None));
    process.signal(Signal::HUP);
    wait_for_version(&home, 1, count);
}

#[test]
fn the_command_reloads_and_tells_what_it_did() {
    let home = home!().with(&version(0, None));
    let _process = home.start(&[]);
    let count = wait_for_version(&home, 0, 0);
    home.configure(&version(1, None));
    assert_eq!(home.run(&["reload"]).ok(), "restarted  busy\nunchanged  calm\n");
    wait_for_version(&home, 1, count);
}

#[test]
fn a_bad_file_changes_nothing_and_says_why() {
    let home = home!().with(&version(0, None));
    let mut process = home.start(&[]);
    let since = process.wait_state("busy", "running")["since"].clone();
    let count = wait_for_version(&home, 0, 0);
    home.configure(&version(1, None).replace("\"map\"", "\"mop\""));
    let why = home.run(&["reload"]).refused(1);
    assert!(why.contains("nothing was changed") && why.contains("unknown stage kind `mop`"), "{why}");
    process.signal(Signal::HUP);
    until("the reason in the log", LIMIT, || {
        (process.stderr().matches("unknown stage kind `mop`").count() == 2).then_some(())
    });
    wait_for_version(&home, 0, count);
    assert_eq!(process.health("busy").unwrap()["since"], since);
    assert_eq!(process.stop(), Some(0));
    assert_exactly_once(&home.json_lines("out.jsonl"), home.position("busy").unwrap());
}

#[test]
fn a_reload_does_not_pass_for_the_end() {
    let all = 30_000;
    let home = home!().with(&version(0, Some(all)));
    let mut process = home.start(&["--only", "busy", "--until-finished"]);
    let mut count = 0;
    for round in 1..=3 {
        count = wait_for_version(&home, round - 1, count);
        home.configure(&version(round, Some(all)));
        home.run(&["reload"]).ok();
    }
    assert_eq!(process.wait(LIMIT), Some(0));
    assert_exactly_once(&home.json_lines("out.jsonl"), all);
}

#[test]
fn a_pipeline_that_goes_is_drained_and_one_that_comes_is_started() {
    let home = home!().with(&version(0, None));
    let mut process = home.start(&[]);
    wait_for_version(&home, 0, 0);
    home.configure(&version(0, None).replace("\"busy\"", "\"other\""));
    assert_eq!(home.run(&["reload"]).ok(), "started    other\nstopped    busy\nunchanged  calm\n");
    let made = home.position("busy").unwrap();
    // `other` begins at nought: its records follow those of `busy`.
    until("records of the new pipeline", LIMIT, || {
        (home.json_lines("out.jsonl").len() as u64 > made + 100).then_some(())
    });
    assert_eq!(process.stop(), Some(0));
    let records = home.json_lines("out.jsonl");
    let (before, after) = records.split_at(usize::try_from(made).unwrap());
    assert_exactly_once(before, made);
    assert_exactly_once(after, home.position("other").unwrap());
    assert_eq!(number(after.iter().min_by_key(|record| number(record)).unwrap()), 0);
}
