//! Looking into a running process, and at what a reload would do to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::{Home, LIMIT, home, until};
use serde_json::Value;

const PIPELINES: &str = r#"
[[pipeline]]
name = "copy"
stage = [
  { kind = "file", params = { path = "in.jsonl", follow = true } },
  { kind = "map", params = { expr = "." } },
  { kind = "file", name = "out", params = { path = "out.jsonl" } },
]

[[pipeline]]
name = "ticks"
stage = [
  { kind = "generate", params = { rate = 200, keys = 2 } },
  { kind = "map", params = { expr = "{n, half: (.n / 2)}" } },
  { kind = "blackhole" },
]
"#;

fn a_home() -> Home {
    let home = home!().with(PIPELINES);
    home.write("in.jsonl", "1\n22\n");
    home
}

#[test]
fn a_plan_without_a_process_is_a_start() {
    let home = a_home();
    let plan = "no process is running; starting one would do this:\n+ copy: starts\n+ ticks: starts\n";
    assert_eq!(home.run(&["plan"]).ok(), plan);
    let plan: Value = serde_json::from_str(&home.run(&["plan", "--json"]).ok()).unwrap();
    assert_eq!(plan["running"], false);
    assert_eq!(plan["pipelines"][0]["change"], "added");
}

#[test]
fn a_plan_tells_what_the_reload_then_does() {
    let home = a_home();
    let mut process = home.start(&[]);
    until("the position", LIMIT, || home.position("copy").filter(|at| *at == 5));
    until("the other position", LIMIT, || home.position("ticks"));
    assert_eq!(home.run(&["plan"]).ok(), "  copy: keeps running\n  ticks: keeps running\n");

    let changed = PIPELINES.replace("expr = \".\"", "expr = \".+1\"").replace("\"ticks\"", "\"tocks\"");
    home.configure(&changed);
    let plan = home.run(&["plan"]).ok();
    let lines: Vec<&str> = plan.lines().collect();
    let told = [
        "~ copy: is drained and restarts",
        "    stage `map`: params.expr changed",
        "    goes on at file:in.jsonl#",
        "+ tocks: starts",
        "- ticks: is drained and stops",
        "    its position stays, for when it comes back generate 0:",
    ];
    assert!(
        lines.len() == told.len() && lines.iter().zip(told).all(|(line, told)| line.starts_with(told)),
        "{plan}"
    );
    assert!(lines[2].ends_with(" 0:5"), "{plan}");
    let plan: Value = serde_json::from_str(&home.run(&["plan", "--json"]).ok()).unwrap();
    let copy = &plan["pipelines"][0];
    assert_eq!((&plan["running"], &copy["change"]), (&true.into(), &"changed".into()));
    assert_eq!((&copy["source_changed"], &copy["positions_kept"]), (&false.into(), &true.into()), "{copy}");
    assert!(process.health("ticks").is_some(), "a plan changes nothing");

    assert_eq!(home.run(&["reload"]).ok(), "started    tocks\nrestarted  copy\nstopped    ticks\n");
    home.write("in.jsonl", "1\n22\n333\n");
    until("the next line", LIMIT, || (home.read("out.jsonl") == "1\n22\n334\n").then_some(()));
}

#[test]
fn a_plan_says_when_positions_may_be_of_no_use() {
    let home = a_home();
    let _process = home.start(&[]);
    until("the position", LIMIT, || home.position("copy").filter(|at| *at == 5));
    home.configure(&PIPELINES.replace("\"in.jsonl\"", "\"other.jsonl\""));
    let plan = home.run(&["plan"]).ok();
    let told = "~ copy: is drained and restarts\n    stage `file`: params.path changed\n    \
                starts over; what is kept is of another source, file:in.jsonl#";
    assert!(plan.starts_with(told), "{plan}");
    let plan: Value = serde_json::from_str(&home.run(&["plan", "--json"]).ok()).unwrap();
    let copy = &plan["pipelines"][0];
    assert_eq!((&copy["source_changed"], &copy["positions_kept"]), (&true.into(), &false.into()), "{copy}");

    home.write("other.jsonl", "4444\n");
    home.run(&["reload"]).ok();
    until("the other file", LIMIT, || (home.read("out.jsonl") == "1\n22\n4444\n").then_some(()));
}

#[test]
fn a_tap_shows_records_as_they_leave_a_stage() {
    let home = a_home();
    let _process = home.start(&[]);
    let shown = home.run(&["tap", "ticks", "map", "-n", "3"]).ok();
    assert_eq!(shown.lines().count(), 3, "{shown}");
    for line in shown.lines() {
        assert!(line.starts_with("key-") && line.contains("\"half\""), "{line}");
    }
    let shown = home.run(&["tap", "ticks", "generate", "-n", "2", "--json"]).ok();
    let records = courant_tests::lines::json(&shown);
    assert_eq!(records.len(), 2, "{shown}");
    for record in records {
        assert_eq!((&record["pipeline"], &record["stage"]), (&"ticks".into(), &"generate".into()));
        assert_eq!(record["key"], format!("key-{}", record["payload"]["n"].as_u64().unwrap() % 2));
        assert_eq!(record["payload"].get("half"), None, "before the map");
    }
    let said = home.run(&["tap", "ticks", "mop"]).refused(1);
    assert!(said.contains("no stage `mop`") && said.contains("generate, map, blackhole"), "{said}");
    let said = home.run(&["tap", "tocks", "map"]).refused(1);
    assert!(said.contains("no pipeline `tocks`") && said.contains("copy, ticks"), "{said}");
}

#[test]
fn top_shows_every_stage_with_its_rate() {
    let home = a_home();
    let _process = home.start(&[]);
    let table = home.run(&["top", "--once", "--every", "500ms"]).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..5], ["PIPELINE", "STAGE", "STATE", "IN/S", "OUT/S"], "{table}");
    let names: Vec<_> = rows[1..].iter().map(|row| (row[0], row[1], row[2])).collect();
    for row in
        [("copy", "-", "running"), ("copy", "out", "-"), ("ticks", "-", "running"), ("ticks", "map", "-")]
    {
        assert!(names.contains(&row), "{row:?} in\n{table}");
    }
    let map = rows.iter().find(|row| row[..2] == ["ticks", "map"]).unwrap();
    let rate: f64 = map[3].parse().unwrap();
    assert!(rate > 20.0 && rate < 2_000.0, "about 200 a second:\n{table}");
}

#[test]
fn health_and_metrics_count_the_same() {
    let home = a_home();
    let mut process = home.start(&[]);
    process
        .wait_health("copy", |health| health["dispositions"]["delivered"] == 2 && health["in_flight"] == 0);
    let metrics = process.page("/metrics");
    let line = |labels: &str| {
        metrics.lines().find(|line| line.contains(labels)).unwrap_or_else(|| panic!("{metrics}"))
    };
    assert!(line("courant_source_read_total{pipeline=\"copy\"}").ends_with(" 2"), "{metrics}");
    let health: Value = serde_json::from_str(&process.page("/health")).unwrap();
    assert_eq!(health["status"], "ready");
    assert_eq!(process.page("/health/live"), r#"{"status":"live"}"#);
}
