//! Tables of Parquet files, read by the programs that they are for, after `kill -9` at random moments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use courant_tests::{Home, LIMIT, home, python, until};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

const LINES: usize = 4000;
const KILLS: usize = 6;

/// The same records as rows of their own and as windows, with batches small enough that a kill finds some half done.
const PIPELINES: &str = r#"
[[pipeline]]
name = "rows"
[[pipeline.stage]]
kind = "file"
params = { path = "in.jsonl", key = ".chat" }
[[pipeline.stage]]
kind = "throttle"
params = { rate = 4000, burst = 50 }
[[pipeline.stage]]
kind = "parquet-write"
name = "table"
batch = { records = 100, wait = "20ms" }
[pipeline.stage.params]
columns = [
  { name = "n", type = "int64" },
  { name = "chat", type = "string" },
  { name = "sent_at", type = "timestamp", from = ".at" },
  { name = "share", type = "double", optional = true },
  { name = "odd", type = "bool", from = ".n % 2 == 1" },
]

[[pipeline]]
name = "windows"
[[pipeline.stage]]
kind = "file"
params = { path = "in.jsonl", key = ".chat" }
[[pipeline.stage]]
kind = "throttle"
params = { rate = 4000, burst = 50 }
[[pipeline.stage]]
kind = "window"
params = { size = "10s", time = ".at", lateness = "20s", idle = "0s", group_by = { chat = ".chat" }, aggregates = { records = "count", sum = { sum = ".n" } } }
[[pipeline.stage]]
kind = "parquet-write"
name = "table"
batch = { records = 20, wait = "20ms" }
[pipeline.stage.params]
key = ["window_start", "chat"]
columns = [
  { name = "window_start", type = "timestamp" },
  { name = "chat", type = "string" },
  { name = "records", type = "int64" },
  { name = "sum", type = "int64" },
]
"#;

/// 2023-11-14T22:13:20Z, the beginning of a window.
const BEGIN: u64 = 1_700_000_000_000;

/// Time goes on by 50 ms a line; each may be up to 15 seconds behind.
fn at(n: usize) -> u64 {
    BEGIN + 20_000 + 50 * n as u64 - (n as u64 * 7919) % 15_000
}

fn input() -> Vec<Value> {
    let line = |n: usize| {
        let share = if n.is_multiple_of(3) { Value::Null } else { json!(n as f64 / 4.0) };
        json!({"n": n, "chat": format!("c{}", n % 5), "at": at(n), "share": share})
    };
    // the last one closes every window
    let end = json!({"n": LINES, "chat": "end", "at": BEGIN + 10_000_000});
    (0..LINES).map(line).chain([end]).collect()
}

/// What a program prints about the tables, as JSON.
fn ask(home: &Home, script: &str) -> Value {
    let python = python();
    let mut command = home.prepare(python.to_str().unwrap(), &["-c", script]);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).unwrap()
}

fn killed_again_and_again(home: &Home) {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..KILLS {
        let mut process = home.launch(&["--without-edge", "--until-finished"]);
        let pipeline = if random.random() { "rows" } else { "windows" };
        let (mut last, mut commits, wanted) = (home.position(pipeline), 0, random.random_range(1..4));
        until("some commits, or the end", LIMIT, || {
            let kept = home.position(pipeline);
            commits += usize::from(kept != last);
            last = kept;
            (commits >= wanted || !process.is_running()).then_some(())
        });
        process.kill();
    }
    home.run(&["run", "--without-edge", "--until-finished"]).ok();
}

#[test]
fn duckdb_and_pandas_see_every_record_once() {
    let home = home!().with(PIPELINES);
    let lines: Vec<String> = input().iter().map(Value::to_string).collect();
    home.write("in.jsonl", lines.join("\n") + "\n");
    killed_again_and_again(&home);

    let rows = ask(
        &home,
        "import duckdb, json\n\
         t = \"'data/derived/rows/current/table/current/*.parquet'\"\n\
         q = f'select count(*), count(distinct n), sum(n), count(share), sum(odd::int), min(epoch_ms(sent_at)) from {t}'\n\
         files = duckdb.sql(f\"select count(*) from glob({t})\").fetchone()[0]\n\
         print(json.dumps([int(v) for v in duckdb.sql(q).fetchone()] + [files]))",
    );
    let (count, sum) = (LINES + 1, LINES * (LINES + 1) / 2);
    let shares = (0..LINES).filter(|n| n % 3 != 0).count();
    let first = (0..LINES).map(at).min().unwrap();
    assert_eq!(
        rows.as_array().unwrap()[..6],
        json!([count, count, sum, shares, LINES / 2, first]).as_array().unwrap()[..]
    );
    assert!(rows[6].as_u64().unwrap() < 20, "small files are merged: {rows}");

    let windows = ask(
        &home,
        "import pandas, json\n\
         t = pandas.read_parquet('data/derived/windows/current/table/current')\n\
         t['window_start'] = t['window_start'].astype('int64') // (10**6 if 'ns' in str(t['window_start'].dtype) else 1)\n\
         print(t.sort_values(['window_start', 'chat']).to_json(orient='values'))",
    );
    let mut expected: BTreeMap<(u64, String), (u64, u64)> = BTreeMap::new();
    for n in 0..LINES {
        let window = expected.entry((at(n) - at(n) % 10_000, format!("c{}", n % 5))).or_default();
        *window = (window.0 + 1, window.1 + n as u64);
    }
    let expected: Vec<Value> =
        expected.into_iter().map(|((start, chat), (n, sum))| json!([start, chat, n, sum])).collect();
    assert_eq!(windows, Value::from(expected));
}
