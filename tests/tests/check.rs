//! `courant check`: every mistake at once, each with its place.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::home;
use serde_json::Value;

const MISTAKES: &str = r#"[edge]
listen = 8080
lisen = "127.0.0.1:1"

[runtime]
drain_deadline = "soon"

[[pipeline]]
name = "first"
plane = "durabilty"

[[pipeline.stage]]
kind = "generate"
params = { rate = 0 }

[[pipeline.stage]]
kind = "mapp"

[[pipeline.stage]]
kind = "map"

[[pipeline.stage]]
kind = "filter"
lanes = 0
params = { expr = '.type == "message" and (.size | lenght) < 3' }

[[pipeline.stage]]
kind = "route"
input = "generat"
params = { routes = { big = '.a | (' } }

[[pipeline.stage]]
kind = "stdout"
input = "filter"
on_error = "ignore"

[[pipeline]]
name = "first"
stage = [
  { kind = "file", params = { path = "in.jsonl" } },
  { kind = "file", params = { path = "" } },
]

[[test]]
name = "unfinished"
pipline = "first"
given = []
expect = { dispositions = { deliverd = 1 } }
"#;

/// Line, column, what is wrong, and a part of the way out.
const EXPECTED: [(u64, u64, &str, &str); 17] = [
    (2, 10, "`listen` must be a string, not a whole number", ""),
    (3, 1, "unknown key `lisen`", "did you mean `listen`?"),
    (6, 18, "`soon` is not a length of time", "250ms"),
    (10, 9, "`durabilty` is not a value of `plane`", "did you mean `durability`?"),
    (14, 19, "`rate` must be between 0.000001 and 1000000000", ""),
    (17, 8, "unknown stage kind `mapp`", "did you mean `map`?"),
    (19, 1, "missing key `expr`", "in jq"),
    (24, 9, "`lanes` must be between 1 and 65535", ""),
    (25, 52, "unknown function `lenght/0`", "did you mean `length`?"),
    (29, 9, "no stage is called `generat`", "did you mean `generate`?"),
    (30, 35, "`(` is not closed", ""),
    (35, 12, "`ignore` is not a value of `on_error`", "`dead-letter`, `drop`, `retry` or `stop`"),
    (38, 8, "two pipelines are called `first`", "pipelines.toml:9:8"),
    (41, 12, "two stages are called `file`", "name = \"file-2\""),
    (41, 38, "the path is empty", ""),
    (46, 1, "unknown key `pipline`", "did you mean `pipeline`?"),
    (48, 29, "unknown key `deliverd`", "did you mean `delivered`?"),
];

#[test]
fn every_mistake_is_told_at_its_place() {
    let home = home!();
    home.write("pipelines.toml", MISTAKES);
    let ended = home.run(&["check", "--json"]);
    assert_eq!(ended.code, Some(3));
    let found: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let told: Vec<_> = found
        .iter()
        .map(|found| {
            let origin = &found["origin"];
            assert_eq!((&found["severity"], &origin["path"]), (&"error".into(), &"pipelines.toml".into()));
            let place = (origin["line"].as_u64().unwrap(), origin["column"].as_u64().unwrap());
            (place.0, place.1, found["message"].as_str().unwrap())
        })
        .collect();
    assert_eq!(told, EXPECTED.map(|(line, column, message, _)| (line, column, message)));
    for (found, (.., help)) in found.iter().zip(EXPECTED) {
        assert!(found["help"].as_str().unwrap_or_default().contains(help), "{found}");
    }
}

#[test]
fn people_get_the_same_with_the_line_and_a_mark_under_it() {
    let home = home!();
    home.write("pipelines.toml", MISTAKES);
    let said = home.run(&["check"]).refused(3);
    for (line, column, message, _) in EXPECTED {
        let head = format!("error: {message}\n");
        let (_, rest) = said.split_once(&head).unwrap_or_else(|| panic!("no `{head}` in\n{said}"));
        let place = format!("--> pipelines.toml:{line}:{column} ");
        assert!(rest.lines().next().unwrap().contains(&place), "{message}: {rest}");
        let shown = MISTAKES.lines().nth(usize::try_from(line).unwrap() - 1).unwrap();
        assert!(rest.lines().nth(2).unwrap().ends_with(shown), "{message}: {rest}");
        let mark = rest.lines().nth(3).unwrap().split_once("| ").unwrap().1;
        assert_eq!(mark.find('^'), Some(usize::try_from(column).unwrap() - 1), "{message}: {rest}");
    }
    assert!(said.trim_end().ends_with("17 errors"), "{said}");
}

#[test]
fn a_file_in_order_says_so() {
    let home =
        home!().with("[[pipeline]]\nname = 'p'\nstage = [{ kind = 'generate' }, { kind = 'stdout' }]\n");
    assert_eq!(home.run(&["check"]).ok(), "pipelines.toml: 1 pipeline, in order\n");
    assert_eq!(home.run(&["check", "--json"]).ok(), "[]\n");
    assert!(!home.path("data").exists(), "a check touches nothing");
}

#[test]
fn a_warning_is_told_and_is_no_error() {
    let home = home!().with("[[pipeline]]\nname = 'p'\nstage = [{ kind = 'generate' }]\n");
    let ended = home.run(&["check"]);
    assert!(ended.stderr.contains("warning: the pipeline ends in the source `generate`"), "{}", ended.stderr);
    assert_eq!(ended.ok(), "pipelines.toml: 1 pipeline, in order\n");
}

#[test]
fn what_is_included_and_what_the_environment_says_is_checked_too() {
    let home = home!();
    home.replace_config("include = ['more.toml']\n");
    home.write("more.toml", "[[pipeline]]\nname = 'p'\nstage = [{ kind = 'genrate' }]\n");
    let mut command = home.command(&["check", "--json"]);
    command.env("COURANT_EDGE__LISTEN", "nowhere").env("COURANT_RUNTIME__WACH", "1s");
    let ended = home.finish(command);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let found: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let origins: Vec<String> = found
        .iter()
        .map(|found| {
            found["origin"]["path"].as_str().or(found["origin"]["variable"].as_str()).unwrap().to_owned()
        })
        .collect();
    assert_eq!(origins, ["more.toml", "COURANT_EDGE__LISTEN", "COURANT_RUNTIME__WACH"], "{found:?}");
}

#[test]
fn a_file_that_is_no_toml_is_told_by_its_place() {
    let home = home!();
    home.write("pipelines.toml", "[[pipeline]]\nname = \"p\nstage = []\n");
    let said = home.run(&["check"]).refused(3);
    assert!(said.contains("pipelines.toml:2:"), "{said}");
}

/// A third consumer of a table would slow down the two that are there.
#[test]
fn a_third_follower_of_a_table_is_told_to_consume_the_log() {
    let search = "[[pipeline]]\nname = \"search\"\n[[pipeline.stage]]\nkind = \"dynamo-stream\"\n\
                  params = { table = \"messages\" }\n[[pipeline.stage]]\nkind = \"stdout\"\n";
    let shipped = courant_tests::chat::shipped("examples/event-bus.toml");
    let home = home!();
    home.replace_config(&format!("{shipped}\n{search}"));
    let said = home.run(&["check"]).refused(3);
    let already = "the changes of the table `messages` are followed by the pipelines `fanout` and `publish-messages` already";
    assert!(said.contains(already) && said.contains("consume the log instead"), "{said}");
    assert!(said.contains("pipeline.search.stage[0]"), "{said}");
    home.replace_config(&shipped);
    home.run(&["check"]).ok();
}

/// However many look for what was never published: they share the shards.
#[test]
fn a_group_that_repairs_is_one_follower() {
    let pipeline = |name: &str, source: &str| {
        format!("[[pipeline]]\nname = \"{name}\"\nstage = [{source}, {{ kind = \"blackhole\" }}]\n")
    };
    let follows = |name| pipeline(name, r#"{ kind = "dynamo-stream", params = { table = "messages" } }"#);
    let shipped = courant_tests::chat::shipped("pipelines.toml");
    let more = pipeline("repair-more", r#"{ kind = "unpublished", params = { group = "repair" } }"#);
    let home = home!();
    home.replace_config(&format!("{shipped}\n{more}{}", follows("search")));
    home.run(&["check"]).ok();
    home.replace_config(&format!("{shipped}\n{}{}", follows("repair-more"), follows("search")));
    let said = home.run(&["check"]).refused(3);
    assert!(said.contains("followed by the pipelines `repair` and `repair-more` already"), "{said}");
    assert!(said.contains("pipeline.search.stage[0]"), "{said}");
}
