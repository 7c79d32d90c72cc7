//! `kill -9` at random moments, and files that a crash has torn: nothing is lost, and nothing is taken for done
//! that is not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashSet;
use std::io::Write as _;

use courant_tests::lines::{assert_ordered_by_key, json, whole};
use courant_tests::{Home, LIMIT, home, until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

const LINES: usize = 30_000;
const KEYS: usize = 7;
/// Every such line is poison: a dead letter.
const POISON: usize = 211;

/// One key is slow, so that its lines are still under way when later ones have long arrived.
const PIPELINE: &str = r#"
[[pipeline]]
name = "copy"
stage = [
  { kind = "file", params = { path = "in.jsonl", key = ".key" } },
  { kind = "map", lanes = 3, batch = { records = 97 }, params = { expr = '{key, n: (.n + 0), text}' } },
  { kind = "route", params = { routes = { slow = '.key == "k0"' }, otherwise = "fast" } },
  { kind = "throttle", input = "route.fast", buffer = 200, batch = { records = 50 }, params = { rate = 8000, burst = 50 } },
  { kind = "file", name = "out", params = { path = "out.jsonl" } },
  { kind = "throttle", name = "slowly", input = "route.slow", buffer = 100, batch = { records = 10 }, params = { rate = 700 } },
  { kind = "file", name = "slow-out", params = { path = "out.jsonl" } },
]
"#;

fn input() -> Vec<String> {
    let line = |n| match n % POISON {
        // No number can be added to this.
        0 => format!(r#"{{"key":"k{}","n":{{"poison":{n}}}}}"#, n % KEYS),
        _ => format!(r#"{{"key":"k{}","n":{n},"text":"{}"}}"#, n % KEYS, "x".repeat(n % 50)),
    };
    (0..LINES).map(line).collect()
}

fn a_home() -> (Home, Vec<String>) {
    let home = home!().with(PIPELINE);
    let lines = input();
    home.write("in.jsonl", lines.join("\n") + "\n");
    (home, lines)
}

/// A random source whose seed shows when the test fails.
fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

fn rounds() -> usize {
    match std::env::var("COURANT_SOAK_CASES") {
        Ok(cases) => cases.parse::<usize>().unwrap() / 10,
        Err(_) => 25,
    }
}

/// The input lines, by number, that have arrived or are kept as dead letters.
fn accounted(home: &Home) -> HashSet<usize> {
    let delivered = home.json_lines("out.jsonl").into_iter().map(|record| record["n"].clone());
    let dead = json(&home.read("data/dead-letters/copy.jsonl")).into_iter().filter_map(|letter| {
        let payload: Value = serde_json::from_str(letter["payload"].as_str()?).unwrap();
        Some(payload["n"]["poison"].clone())
    });
    delivered.chain(dead).map(|n| usize::try_from(n.as_u64().unwrap()).unwrap()).collect()
}

/// Nothing before the kept position is missing.
fn check_position(home: &Home, lines: &[String]) {
    let position = usize::try_from(home.position("copy").unwrap_or(0)).unwrap();
    let accounted = accounted(home);
    let mut at = 0;
    for (n, line) in lines.iter().enumerate() {
        at += line.len() + 1;
        if at > position {
            break;
        }
        assert!(accounted.contains(&n), "line {n} ends at {at}, before position {position}, and is nowhere");
    }
}

/// When to kill a process, counted from its start.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// Once it has written so many lines.
    Lines(usize),
    /// Once it has kept its position so many times: what it has not written by then must not be behind it.
    Commits(usize),
}

impl Moment {
    fn random(random: &mut StdRng) -> Self {
        match random.random_range(0..3) {
            0 => Self::Lines(random.random_range(0..2_000)),
            _ => Self::Commits(random.random_range(1..3)),
        }
    }
}

fn run_and_kill(home: &Home, moment: Moment) {
    let mut process = home.launch(&["--without-edge", "--until-finished"]);
    let before = home.read("out.jsonl").len();
    let (mut last, mut commits) = (home.position("copy"), 0);
    until("the moment, or the end", LIMIT, || {
        let kept = home.position("copy");
        commits += usize::from(kept != last);
        last = kept;
        let is_now = match moment {
            Moment::Lines(lines) => home.read("out.jsonl")[before..].lines().count() >= lines,
            Moment::Commits(wanted) => commits >= wanted,
        };
        (is_now || !process.is_running()).then_some(())
    });
    process.kill();
}

#[test]
fn kills_at_random_moments_lose_nothing() {
    let (home, lines) = a_home();
    let mut random = random();
    for round in 0..rounds() {
        let before = whole(&home.read("out.jsonl")).count();
        run_and_kill(&home, Moment::random(&mut random));
        let text = home.read("out.jsonl");
        assert_ordered_by_key(&whole(&text).skip(before).map(read).collect::<Vec<_>>());
        check_position(&home, &lines);
        if round >= 25 && home.position("copy").unwrap_or(0) > 500_000 {
            home.run(&["positions", "forget", "copy"]).ok();
        }
    }
    home.run(&["run", "--without-edge", "--until-finished"]).ok();
    assert_eq!(accounted(&home).len(), LINES, "every line has arrived or is a dead letter");
    let end: usize = lines.iter().map(|line| line.len() + 1).sum();
    assert_eq!(home.position("copy"), Some(end as u64));
    assert_eq!(home.letters("copy").len(), home.read("data/dead-letters/copy.jsonl").lines().count() - 1);
}

fn read(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn append(home: &Home, name: &str, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(home.path(name)).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// As a power cut leaves it: the beginning of a line behind the last whole one, in every file that is appended to.
#[test]
fn torn_tails_spoil_nothing_else() {
    let (home, lines) = a_home();
    run_and_kill(&home, Moment::Lines(2_000));
    append(&home, "out.jsonl", r#"{"key":"k0","n":"#);
    append(&home, "data/dead-letters/copy.jsonl", r#"{"id":"dl_01J0000000000"#);
    let letters = home.letters("copy");
    assert!(!letters.is_empty());
    home.run(&["dead-letters", "discard", "copy", letters[0]["id"].as_str().unwrap()]).ok();
    append(&home, "data/dead-letters/copy.settled", "dl_01J");
    assert_eq!(home.letters("copy"), letters[1..], "a torn letter and a torn mark are none");

    home.run(&["run", "--without-edge", "--until-finished"]).ok();
    let text = home.read("out.jsonl");
    let torn: Vec<&str> = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_err()).collect();
    assert_eq!(torn, [r#"{"key":"k0","n":"#], "the torn line stands alone");
    assert_eq!(accounted(&home).len(), LINES);
    check_position(&home, &lines);
    let journal = home.read("data/dead-letters/copy.jsonl");
    journal.lines().for_each(|line| drop(read(line)));
    let letters = home.letters("copy");
    assert_eq!(letters.len(), journal.lines().count() - 2, "all but the heading and the discarded one");
    home.run(&["dead-letters", "discard", "copy", letters[0]["id"].as_str().unwrap()]).ok();
    assert_eq!(home.letters("copy"), letters[1..], "a mark behind the torn one is one");
}

/// A position that was being replaced when the process died is the old one.
#[test]
fn a_half_written_position_is_not_used() {
    let (home, _) = a_home();
    run_and_kill(&home, Moment::Commits(1));
    let kept = home.position("copy").unwrap();
    home.write("data/positions/copy.json.tmp", r#"{"source":"file:in.js"#);
    let shown = home.run(&["positions", "list"]).ok();
    assert!(shown.contains(&format!("0:{kept}")), "{shown}");
    home.run(&["run", "--without-edge", "--until-finished"]).ok();
    assert_eq!(accounted(&home).len(), LINES);
}
