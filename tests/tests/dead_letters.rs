//! Records that a stage gives up on: kept, shown, thrown away and run again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::{Courant, Home, LIMIT, home, until};
use serde_json::Value;

/// `add` is what the map does to `.n`; the poison is text, to which no number can be added.
fn pipeline(name: &str, add: &str, policy: &str) -> String {
    format!(
        r#"
[[pipeline]]
name = "{name}"
stage = [
  {{ kind = "file", params = {{ path = "{name}.in", key = ".key", follow = true }} }},
  {{ kind = "map", name = "add", {policy} params = {{ expr = "{{key, n: ({add})}}" }} }},
  {{ kind = "file", name = "out", params = {{ path = "{name}.out" }} }},
]
"#
    )
}

const WRONG: &str = ".n + 100";
/// Also takes the poison.
const RIGHT: &str = "(.n | tonumber) + 100";

const LINES: &str = r#"{"key":"a","n":1}
{"key":"a","n":"2"}
{"key":"b","n":3}
{"key":"b","n":"4"}
{"key":"a","n":5}
{"key":"a","n":"six"}
"#;

/// A process that has dealt with the lines: three delivered, three dead letters.
fn with_three_letters(policy: &str) -> (Home, Courant) {
    let home = home!().with(&pipeline("p", WRONG, policy));
    home.write("p.in", LINES);
    let mut process = home.start(&[]);
    let health = process.wait_health("p", |health| health["dispositions"]["dead_lettered"] == 3);
    assert_eq!(health["dispositions"]["delivered"], 3, "{health}");
    (home, process)
}

fn delivered(home: &Home, name: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> =
        home.json_lines(&format!("{name}.out")).iter().map(|record| record["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn ids(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(|letter| letter["id"].as_str().unwrap()).collect()
}

/// What the commands show of the three letters; the oldest of them.
fn look_at_three(home: &Home) -> Value {
    let letters = home.letters("p");
    assert_eq!(letters.len(), 3);
    // Keys run in lanes, so only the order within one is given.
    let of_a = letters.iter().filter(|letter| letter["key"] == "a").map(|letter| letter["payload"].as_str());
    assert!(of_a.eq([Some(r#"{"key":"a","n":"2"}"#), Some(r#"{"key":"a","n":"six"}"#)]), "{letters:?}");
    let id = letters[0]["id"].as_str().unwrap();
    let shown = home.run(&["dead-letters", "show", id]).ok();
    for part in
        ["queue     p", "pipeline  p", "stage     add", "attempts  1", "class     reject", "cannot calculate"]
    {
        assert!(shown.contains(id) && shown.contains(part), "{part} in\n{shown}");
    }
    let listed = home.run(&["dead-letters", "list"]).ok();
    assert!(listed.lines().count() == 3 && listed.contains(id) && listed.contains("p/add"), "{listed}");
    let short = home.run(&["dead-letters", "list", "p", "-n", "1"]).ok();
    assert!(short.contains("… 1 of 3"), "{short}");
    letters[0].clone()
}

#[test]
fn letters_are_listed_and_shown_with_the_reason() {
    let (home, mut process) = with_three_letters("");
    assert_eq!(delivered(&home, "p"), [101, 103, 105], "poison does not hold up its key");
    let running = look_at_three(&home);
    assert_eq!(process.stop(), Some(0));
    assert_eq!(look_at_three(&home), running, "the same with and without a process");
    let said = home.run(&["dead-letters", "show", "dl_none"]).refused(1);
    assert!(said.contains("no dead letter `dl_none` waits"), "{said}");
}

#[test]
fn letters_are_discarded_by_id() {
    let (home, mut process) = with_three_letters("");
    let letters = home.letters("p");
    let ids = ids(&letters);
    assert_eq!(home.run(&["dead-letters", "discard", "p", ids[0]]).ok(), "1 discarded\n");
    assert_eq!(home.letters("p"), letters[1..]);
    let said = home.run(&["dead-letters", "discard", "p", ids[1], ids[0]]).refused(1);
    assert!(said.contains("nothing was discarded"), "{said}");
    assert_eq!(home.letters("p").len(), 2);
    assert_eq!(process.stop(), Some(0));
    assert_eq!(home.run(&["dead-letters", "discard", "p", ids[1], ids[2]]).ok(), "2 discarded\n");
    assert_eq!(home.run(&["dead-letters", "list"]).ok(), "no dead letters\n");
}

const AGAIN: &str = "3 redriven: 2 delivered, 0 dropped, 1 dead-lettered again, 0 failed\n";

/// Two of the three are good now, and the third becomes a new letter.
fn check_redriven(home: &Home, before: &[Value]) {
    assert_eq!(delivered(home, "p"), [101, 102, 103, 104, 105], "each once");
    let after = home.letters("p");
    assert_eq!(after.len(), 1);
    assert_eq!(after[0]["payload"], r#"{"key":"a","n":"six"}"#);
    assert!(!ids(before).contains(&ids(&after)[0]), "it is a new letter");
}

#[test]
fn letters_run_again_in_the_running_process() {
    let (home, mut process) = with_three_letters("");
    let before = home.letters("p");
    home.configure(&pipeline("p", RIGHT, ""));
    home.run(&["reload"]).ok();
    assert_eq!(home.run(&["dead-letters", "redrive", "p"]).ok(), AGAIN);
    check_redriven(&home, &before);
    process.wait_state("p", "running");
    assert_eq!(process.stop(), Some(0));
}

#[test]
fn letters_run_again_without_a_process() {
    let (home, mut process) = with_three_letters("");
    assert_eq!(process.stop(), Some(0));
    let before = home.letters("p");
    home.configure(&pipeline("p", RIGHT, ""));
    assert_eq!(home.run(&["dead-letters", "redrive", "p"]).ok(), AGAIN);
    check_redriven(&home, &before);
    let said = home.run(&["dead-letters", "redrive", "q"]).refused(1);
    assert!(said.contains("there is no queue `q`; letters wait in: p"), "{said}");
    home.run(&["dead-letters", "discard", "p", ids(&home.letters("p"))[0]]).ok();
    let nothing = "0 redriven: 0 delivered, 0 dropped, 0 dead-lettered again, 0 failed\n";
    assert_eq!(home.run(&["dead-letters", "redrive", "p"]).ok(), nothing);
}

#[test]
fn letters_that_fail_again_become_new_ones_and_the_command_ends() {
    let (home, _process) = with_three_letters("");
    let before = home.letters("p");
    let said = home.run(&["dead-letters", "redrive", "p"]).ok();
    assert_eq!(said, "3 redriven: 0 delivered, 0 dropped, 3 dead-lettered again, 0 failed\n");
    let after = home.letters("p");
    assert_eq!(after.len(), 3);
    assert!(ids(&after).iter().all(|id| !ids(&before).contains(id)), "{after:?}");
}

#[test]
fn only_the_letters_that_are_named_run_again() {
    let (home, _process) = with_three_letters("");
    home.configure(&pipeline("p", RIGHT, ""));
    home.run(&["reload"]).ok();
    let letters = home.letters("p");
    let two = letters.iter().find(|letter| letter["payload"] == r#"{"key":"a","n":"2"}"#).unwrap();
    let id = two["id"].as_str().unwrap();
    let said = home.run(&["dead-letters", "redrive", "p", id, "dl_none"]).refused(1);
    assert!(said.contains("queue `p` has no letter dl_none"), "{said}");
    assert_eq!(home.letters("p"), letters, "one that is unknown, and none runs");
    let said = home.run(&["dead-letters", "redrive", "p", id]).ok();
    assert_eq!(said, "1 redriven: 1 delivered, 0 dropped, 0 dead-lettered again, 0 failed\n");
    assert_eq!(delivered(&home, "p"), [101, 102, 103, 105]);
    assert_eq!(home.letters("p").len(), 2);
}

#[test]
fn letters_of_a_pipeline_that_is_gone_say_so() {
    let (home, mut process) = with_three_letters("");
    assert_eq!(process.stop(), Some(0));
    home.configure(&pipeline("other", RIGHT, ""));
    let said = home.run(&["dead-letters", "redrive", "p"]).refused(1);
    assert!(said.contains("pipeline `p`, which is not in the configuration"), "{said}");
    home.configure(&pipeline("p", RIGHT, "").replace("\"add\"", "\"sum\""));
    let said = home.run(&["dead-letters", "redrive", "p"]).refused(1);
    assert!(said.contains("stage `add`, which pipeline `p` no longer has"), "{said}");
    assert_eq!(home.letters("p").len(), 3);
}

#[test]
fn pipelines_can_share_a_queue_and_each_letter_goes_back_to_its_own() {
    let both = |add: &str| {
        let policy = "dead_letter = \"shared\",";
        pipeline("p", add, policy) + &pipeline("q", add, policy)
    };
    let home = home!().with(&both(WRONG));
    home.write("p.in", LINES);
    home.write("q.in", LINES.replace(":\"", ":\"1"));
    let mut process = home.start(&[]);
    for name in ["p", "q"] {
        process.wait_health(name, |health| health["dispositions"]["dead_lettered"] == 3);
    }
    assert_eq!(home.letters("shared").len(), 6);
    assert!(home.letters("p").is_empty());
    home.configure(&both(RIGHT));
    home.run(&["reload"]).ok();
    let said = home.run(&["dead-letters", "redrive", "shared"]).ok();
    assert_eq!(said, "6 redriven: 4 delivered, 0 dropped, 2 dead-lettered again, 0 failed\n");
    assert_eq!(delivered(&home, "p"), [101, 102, 103, 104, 105]);
    assert_eq!(delivered(&home, "q"), [101, 103, 105, 112, 114]);
    assert_eq!(home.letters("shared").len(), 2);
}

#[test]
fn drop_leaves_them_out_and_counts() {
    let home = home!().with(&pipeline("p", WRONG, "on_error = \"drop\","));
    home.write("p.in", LINES);
    let mut process = home.start(&[]);
    let health = process.wait_health("p", |health| health["dispositions"]["dropped"] == 3);
    assert_eq!(health["dispositions"]["delivered"], 3, "{health}");
    assert!(home.letters("p").is_empty());
    let metrics = process.page("/metrics");
    assert!(
        metrics.contains(r#"courant_stage_dropped_total{pipeline="p",stage="add",reason="rejected"} 3"#),
        "{metrics}"
    );
    assert_eq!(process.stop(), Some(0));
    assert_eq!(home.position("p"), Some(LINES.len() as u64), "what is dropped is done with");
}

#[test]
fn stop_ends_the_pipeline_until_it_is_mended() {
    let home = home!().with(&pipeline("p", WRONG, "on_error = \"stop\","));
    home.write("p.in", LINES);
    let mut process = home.launch(&[]);
    let health = process.wait_health("p", |health| health["restarts"].as_u64() > Some(1));
    let error = health["last_error"].as_str().unwrap();
    assert!(error.starts_with("stage `add`: ") && error.contains("cannot calculate"), "{error}");
    let (status, body) = courant_tests::get(process.address().unwrap(), "/health/ready").unwrap();
    assert!(status == 503 || process.health("p").unwrap()["state"] == "running", "{body}");
    assert!(home.position("p").unwrap_or(0) <= 18, "not past the first poison");

    home.configure(&pipeline("p", &RIGHT.replace("tonumber", "tonumber? // 6"), "on_error = \"stop\","));
    home.run(&["reload"]).ok();
    until("the rest", LIMIT, || (home.position("p") == Some(LINES.len() as u64)).then_some(()));
    let mut once = delivered(&home, "p");
    once.dedup();
    assert_eq!(once, [101, 102, 103, 104, 105, 106], "after a failure: at least once");
}

#[test]
fn retry_holds_up_the_key_and_nobody_else() {
    let tables = "edge = { listen = '127.0.0.1:0' }\nruntime = { watch = '0s', drain_deadline = '200ms' }\n";
    let home = home!();
    home.replace_config(&(tables.to_owned() + &pipeline("p", WRONG, "on_error = \"retry\",")));
    let lines = LINES.replace(r#"{"key":"b","n":"4"}"#, r#"{"key":"b","n":4}"#);
    home.write("p.in", &lines);
    let mut process = home.start(&[]);
    until("another try", LIMIT, || {
        let metrics = process.page("/metrics");
        let tries =
            metrics.lines().find(|line| line.starts_with("courant_stage_errors_total{pipeline=\"p\""))?;
        (tries.rsplit(' ').next()?.parse::<u64>().ok()? > 2).then_some(())
    });
    until("the other key", LIMIT, || (delivered(&home, "p").len() >= 3).then_some(()));
    assert_eq!(delivered(&home, "p"), [101, 103, 104], "5 waits behind the poison of its key");
    let error = process.health("p").unwrap()["last_error"].clone();
    assert!(error.as_str().unwrap().contains("cannot calculate"), "{error}");
    assert!(home.letters("p").is_empty());

    home.replace_config(
        &(tables.to_owned() + &pipeline("p", &RIGHT.replace("tonumber", "tonumber? // 6"), "")),
    );
    home.run(&["reload"]).ok();
    until("the rest", LIMIT, || (home.position("p") == Some(lines.len() as u64)).then_some(()));
    let of_a: Vec<u64> = home
        .json_lines("p.out")
        .iter()
        .filter(|record| record["key"] == "a")
        .map(|record| record["n"].as_u64().unwrap())
        .collect();
    assert_eq!(of_a, [101, 102, 105, 106], "the key is in order and once each");
    assert_eq!(process.stop(), Some(0));
}
