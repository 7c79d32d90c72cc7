//! How a process ends: in order, at once, or out of time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::pipe;
use std::process::Stdio;
use std::time::Duration;

use courant_tests::lines::assert_exactly_once;
use courant_tests::{Courant, Home, LIMIT, Signal, home, until};

/// Work that takes a while and always has some under way.
const STEADY: &str = r#"
[[pipeline]]
name = "steady"
stage = [
  { kind = "generate", params = { keys = 4 } },
  { kind = "throttle", lanes = 2, buffer = 64, batch = { records = 16 }, params = { rate = 400 } },
  { kind = "file", params = { path = "out.jsonl" } },
]
"#;

/// After its first record it waits for hours.
const STUCK: &str = r#"
[[pipeline]]
name = "stuck"
stage = [
  { kind = "generate", params = { keys = 1 } },
  { kind = "throttle", lanes = 1, buffer = 10, batch = { records = 1 }, params = { rate = 0.0001 } },
  { kind = "file", params = { path = "out.jsonl" } },
]
"#;

fn tables(drain_deadline: &str) -> String {
    format!(
        "edge = {{ listen = '127.0.0.1:0' }}\nruntime = {{ watch = '0s', drain_deadline = '{drain_deadline}' }}\n"
    )
}

fn wait_for_output(home: &Home) {
    until("output", LIMIT, || (!home.json_lines("out.jsonl").is_empty()).then_some(()));
}

/// A process whose drain cannot end.
fn stuck(home: &Home, drain_deadline: &str) -> Courant {
    home.replace_config(&(tables(drain_deadline) + STUCK));
    let process = home.start(&[]);
    wait_for_output(home);
    process
}

fn ends_in_order(end: impl FnOnce(&Home, &Courant)) {
    let home = home!().with(STEADY);
    let mut process = home.start(&[]);
    wait_for_output(&home);
    process.wait_health("steady", |health| health["in_flight"].as_u64() > Some(0));
    end(&home, &process);
    assert_eq!(process.wait(LIMIT), Some(0), "{}", process.stderr());
    assert!(process.has_logged("draining") && process.has_logged("stopped"));
    assert_exactly_once(&home.json_lines("out.jsonl"), home.position("steady").unwrap());
    assert!(!home.path("data/admin.sock").exists(), "the socket goes with the process");
}

#[test]
fn sigterm_finishes_what_is_under_way() {
    ends_in_order(|_, process| process.signal(Signal::TERM));
}

#[test]
fn ctrl_c_finishes_what_is_under_way() {
    ends_in_order(|_, process| process.signal(Signal::INT));
}

#[test]
fn the_stop_command_finishes_what_is_under_way() {
    ends_in_order(|home, _| assert_eq!(home.run(&["stop"]).ok(), ""));
}

#[test]
fn a_drain_can_be_watched() {
    let home = home!();
    let mut process = stuck(&home, "1h");
    process.signal(Signal::TERM);
    let health = process.wait_state("stuck", "draining");
    assert!(health["in_flight"].as_u64() > Some(0), "{health}");
    let (status, body) = courant_tests::get(process.address().unwrap(), "/health/ready").unwrap();
    assert_eq!(status, 503, "traffic goes elsewhere: {body}");
}

fn second_signal_ends_at_once(first: Signal, second: Signal) {
    let home = home!();
    let mut process = stuck(&home, "1h");
    process.signal(first);
    process.wait_logged("draining");
    assert!(process.is_running());
    process.signal(second);
    assert_eq!(process.wait(LIMIT), Some(1));
    let log = process.stderr();
    assert!(log.contains("stopped before everything under way was finished"), "{log}");
}

#[test]
fn a_second_sigterm_ends_at_once() {
    second_signal_ends_at_once(Signal::TERM, Signal::TERM);
}

#[test]
fn a_second_ctrl_c_ends_at_once() {
    second_signal_ends_at_once(Signal::INT, Signal::INT);
}

#[test]
fn a_signal_after_the_stop_command_ends_at_once() {
    let home = home!();
    let mut process = stuck(&home, "1h");
    home.run(&["stop"]).ok();
    process.wait_logged("draining");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(LIMIT), Some(1));
}

/// The reload waits for the drain of the old version, which takes as long as it takes.
#[test]
fn signals_are_heard_during_a_reload() {
    let home = home!();
    let mut process = stuck(&home, "1h");
    home.replace_config(&(tables("1h") + &STUCK.replace("rate = 0.0001", "rate = 0.0002")));
    process.signal(Signal::HUP);
    process.wait_state("stuck", "draining");
    process.signal(Signal::TERM);
    process.wait_logged("INFO draining");
    process.signal(Signal::TERM);
    assert_eq!(process.wait(LIMIT), Some(1));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the time that another process takes")]
fn a_drain_out_of_time_gives_back_what_is_under_way() {
    let home = home!();
    let mut process = stuck(&home, "1s");
    let asked = std::time::Instant::now();
    process.signal(Signal::TERM);
    assert_eq!(process.wait(LIMIT), Some(0));
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1), "it was given its time: {took:?}");
    assert!(process.has_logged("drain ran out of time"));
    assert_exactly_once(&home.json_lines("out.jsonl"), home.position("stuck").unwrap_or(0));

    // The source offers again what was given back.
    home.configure(
        &STUCK.replace("keys = 1", "keys = 1, count = 50").replace("rate = 0.0001", "rate = 1000"),
    );
    home.run(&["run", "--until-finished"]).ok();
    assert_exactly_once(&home.json_lines("out.jsonl"), 50);
}

#[test]
fn a_reader_that_goes_away_stops_its_pipeline_only() {
    let printing = r#"
[[pipeline]]
name = "printing"
stage = [ { kind = "generate", params = { rate = 200 } }, { kind = "stdout" } ]
"#;
    let home = home!().with(&(printing.to_owned() + STEADY));
    let (reader, writer) = pipe().unwrap();
    let mut process = Courant::spawn_with_stdout(home.command(&["run"]), Stdio::from(writer));
    process.wait_ready();
    drop(reader);
    let health = process.wait_state("printing", "backing-off");
    assert!(health["last_error"].as_str().unwrap().contains("nobody reads it any more"), "{health}");
    assert!(health["restarts"].as_u64() > Some(0), "{health}");
    let steady = process.wait_state("steady", "running");
    process.wait_health("steady", |health| health["read"].as_u64() > steady["read"].as_u64());
    assert_eq!(process.stop(), Some(0));
    assert_exactly_once(&home.json_lines("out.jsonl"), home.position("steady").unwrap());
}

/// `courant … | head -0`
#[test]
fn commands_do_not_mind_a_reader_that_goes_away() {
    let test = "[[test]]\nname = 'any'\npipeline = 'steady'\ngiven = []\nexpect = {}\n";
    let home = home!().with(&(STEADY.to_owned() + test));
    for command in [
        &["check"][..],
        &["check", "--json"],
        &["graph"],
        &["stages"],
        &["schema"],
        &["completions", "bash"],
        &["test"],
        &["plan"],
        &["dead-letters", "list"],
        &["--help"],
    ] {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut process = Courant::spawn_with_stdout(home.command(command), Stdio::from(writer));
        assert_eq!(process.wait(LIMIT), Some(0), "{command:?}: {}", process.stderr());
    }
}
