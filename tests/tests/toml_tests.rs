//! `courant test`: tests written in TOML beside the pipelines.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::{Home, home};

const PIPELINE: &str = r#"
[[pipeline]]
name = "p"
stage = [
  { kind = "file", params = { path = "in.jsonl", key = ".id" } },
  { kind = "dedupe", params = { by = ".id" } },
  { kind = "map", params = { expr = "{id, twice: (.n * 2)}", key = ".id" } },
  { kind = "file", name = "out", params = { path = "out.jsonl" } },
]
"#;

const TEST: &str = r#"
[[test]]
name = "doubles, once each"
pipeline = "p"
given = [
  { payload = { id = "a", n = 1 } },
  { payload = { id = "a", n = 5 } },
  { payload = { id = "b", n = 2 } },
  { text = "{" },
]
[test.expect]
dispositions = { delivered = 2, dropped = 1, dead_lettered = 1, failed = 0 }
dead_letters = [{ stage = "dedupe", error = "JSON" }]
[test.expect.records]
out = [{ payload = { id = "a", twice = 2 }, key = "a" }, { payload = { id = "b", twice = 4 } }]
"#;

fn a_home(test: &str) -> Home {
    home!().with(&format!("{PIPELINE}{test}"))
}

#[test]
fn a_test_that_holds_passes_and_touches_nothing() {
    let home = a_home(TEST);
    assert_eq!(home.run(&["test"]).ok(), "ok      doubles, once each\n\n1 passed, 0 failed\n");
    assert!(!home.path("data").exists() && !home.path("out.jsonl").exists());
}

#[test]
fn a_test_that_does_not_hold_shows_the_difference() {
    let home = a_home(&TEST.replace("twice = 4", "twice = 5").replace("delivered = 2", "delivered = 3"));
    let ended = home.run(&["test"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let told = "\
FAILED  doubles, once each (pipelines.toml:14)
        records at `out`: - expected, + got
          [
            {
              \"payload\": {
                \"id\": \"a\",
                \"twice\": 2
              },
              \"key\": \"a\"
            },
            {
              \"payload\": {
                \"id\": \"b\",
        -       \"twice\": 5
        +       \"twice\": 4
              }
            }
          ]
";
    assert!(ended.stdout.starts_with(told), "{}", ended.stdout);
    assert!(ended.stdout.contains("-   \"delivered\": 3"), "{}", ended.stdout);
    assert!(ended.stdout.ends_with("\n0 passed, 1 failed\n"), "{}", ended.stdout);
}

/// Whether a test fails for each of these changes to what it expects: none of them is overlooked.
#[test]
fn everything_that_is_expected_is_looked_at() {
    for (from, to) in [
        ("dropped = 1", "dropped = 0"),
        ("dead_lettered = 1", "dead_lettered = 2"),
        ("failed = 0", "failed = 1"),
        ("stage = \"dedupe\"", "stage = \"map\""),
        ("error = \"JSON\"", "error = \"YAML\""),
        ("key = \"a\" }", "key = \"b\" }"),
        (", { payload = { id = \"b\", twice = 4 } }]", "]"),
        ("dead_letters = [{ stage = \"dedupe\", error = \"JSON\" }]", "dead_letters = []"),
        ("out = [", "outt = ["),
    ] {
        let changed = TEST.replace(from, to);
        assert_ne!(changed, TEST, "{from}");
        assert_eq!(a_home(&changed).run(&["test"]).code, Some(4), "{to}");
    }
}

#[test]
fn tests_are_chosen_by_name_and_also_stand_in_a_file_beside() {
    let home = a_home(TEST);
    home.write(
        "pipelines.test.toml",
        TEST.replace("doubles, once each", "beside").replace("twice = 4", "twice = 5"),
    );
    assert_eq!(home.run(&["test"]).code, Some(4));
    assert_eq!(home.run(&["test", "doubles"]).code, Some(0));
    let beside = home.run(&["test", "beside"]);
    assert_eq!(beside.code, Some(4));
    assert!(beside.stdout.contains("FAILED  beside (pipelines.test.toml:2)"), "{}", beside.stdout);
    let said = home.run(&["test", "duobles"]).refused(1);
    for told in ["no test's name contains `duobles`; there are: ", "`doubles, once each`", "`beside`"] {
        assert!(said.contains(told), "{said}");
    }
    let said = home!().with(PIPELINE).run(&["test", "doubles"]).refused(1);
    assert!(said.contains("no test to run; write a `[[test]]`"), "{said}");
}

#[test]
fn a_test_of_no_pipeline_fails_and_names_those_there_are() {
    let ended = a_home(&TEST.replace("pipeline = \"p\"", "pipeline = \"q\"")).run(&["test"]);
    assert_eq!(ended.code, Some(4));
    assert!(ended.stdout.contains("there is no pipeline `q`; there is: p"), "{}", ended.stdout);
}

#[test]
fn a_test_that_takes_too_long_fails() {
    let slow = PIPELINE.replace(
        "{ kind = \"dedupe\", params = { by = \".id\" } }",
        "{ kind = \"throttle\", name = \"dedupe\", params = { rate = 0.001 } }",
    );
    let ended = home!().with(&(slow + TEST)).run(&["test", "--timeout", "200ms"]);
    assert_eq!(ended.code, Some(4));
    assert!(ended.stdout.contains("took longer than 200ms"), "{}", ended.stdout);
}
