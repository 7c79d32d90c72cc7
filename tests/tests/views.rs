//! Commands that show something: pictures, the schema, the stage kinds, completions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use courant_tests::{home, repository};
use serde_json::{Value, json};

const BRANCHES: &str = r#"
[[pipeline]]
name = "sorted"
stage = [
  { kind = "generate" },
  { kind = "route", params = { routes = { even = '.n % 2 == 0' } } },
  { kind = "map", name = "shorten", input = "route.even", params = { expr = "{n}" } },
  { kind = "stdout" },
  { kind = "blackhole", input = "route.otherwise", buffer = 10, lanes = 3 },
]

[[pipeline]]
name = "other"
stage = [ { kind = "generate" }, { kind = "blackhole" } ]
"#;

const STAGES: [&str; 5] = ["generate", "route", "shorten", "stdout", "blackhole"];

#[test]
fn a_graph_shows_every_stage_and_edge_in_every_format() {
    let home = home!().with(BRANCHES);
    let draw = |format: &str| {
        let picture = home.run(&["graph", "--format", format, "sorted"]).ok();
        for stage in STAGES {
            assert!(picture.contains(stage), "{format} shows {stage}:\n{picture}");
        }
        for mark in ["even", "otherwise", "⇥10", "×3"] {
            assert!(picture.contains(mark), "{format} shows {mark}:\n{picture}");
        }
        assert!(!picture.contains("other\""), "only what was asked for:\n{picture}");
        picture
    };
    assert!(draw("terminal").starts_with("sorted  derived plane\n"));
    let mermaid = draw("mermaid");
    assert!(mermaid.starts_with("flowchart LR\n"), "{mermaid}");
    assert_eq!(mermaid.matches("-->").count(), 4, "{mermaid}");
    let dot = draw("dot");
    assert!(dot.starts_with("digraph ") && dot.trim_end().ends_with('}'), "{dot}");
    assert_eq!(dot.matches(" -> p0s").count(), 4, "{dot}");
    let svg = draw("svg");
    let document = roxmltree::Document::parse(&svg).unwrap();
    assert_eq!(document.root_element().tag_name().name(), "svg");
    assert_eq!(home.run(&["graph"]).ok().matches("derived plane").count(), 2);
}

#[test]
fn a_graph_of_an_unknown_pipeline_names_those_there_are() {
    let home = home!().with(BRANCHES);
    let said = home.run(&["graph", "sortd"]).refused(1);
    assert!(said.contains("no pipeline `sortd`") && said.contains("sorted, other"), "{said}");
}

fn toml(text: &str) -> Value {
    toml_edit::de::from_str(text).unwrap()
}

#[test]
fn the_schema_is_one_and_takes_what_the_loader_takes() {
    let schema: Value = serde_json::from_str(&home!().run(&["schema"]).ok()).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let examples =
        std::fs::read_dir(repository().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    for file in examples.chain([repository().join("pipelines.toml")]) {
        let wrong: Vec<_> = schema
            .iter_errors(&toml(&std::fs::read_to_string(&file).unwrap()))
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", file.display());
    }
    assert!(schema.is_valid(&toml(BRANCHES)));
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    let schema: Value = serde_json::from_str(&home!().run(&["schema"]).ok()).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    for (from, to) in [
        ("name = \"sorted\"", "nmae = \"sorted\""),
        ("{ kind = \"stdout\" }", "{ kind = \"stdin\" }"),
        ("{ kind = \"stdout\" }", "{ name = \"stdout\" }"),
        ("{ expr = \"{n}\" }", "{ expr = 1 }"),
        ("{ expr = \"{n}\" }", "{ exp = \"{n}\" }"),
        ("lanes = 3", "lanes = 0"),
        ("lanes = 3", "on_error = \"ignore\""),
    ] {
        let text = BRANCHES.replace(from, to);
        assert_ne!(text, BRANCHES);
        assert!(!schema.is_valid(&toml(&text)), "{to} passes");
        home!().with(&text).run(&["check"]).refused(3);
    }
    assert!(!schema.is_valid(&json!({"edge": {"listen": 80}})));
    assert!(!schema.is_valid(&json!({"egde": {}})));
}

#[test]
fn the_kinds_are_listed_and_described() {
    let home = home!();
    let list = home.run(&["stages"]).ok();
    for spec in courant_stages::STAGES {
        assert!(list.contains(spec.kind) && list.contains(spec.summary), "{list}");
        let page = home.run(&["stages", spec.kind]).ok();
        assert!(page.contains(spec.example.lines().next().unwrap()), "{page}");
    }
    let said = home.run(&["stages", "filtre"]).refused(1);
    assert!(said.contains("did you mean `filter`?"), "{said}");
}

#[test]
fn completions_know_the_commands() {
    let home = home!();
    for (shell, mark) in [
        ("bash", "_courant()"),
        ("zsh", "#compdef courant"),
        ("fish", "complete -c courant"),
        ("elvish", "courant"),
        ("powershell", "courant"),
    ] {
        let script = home.run(&["completions", shell]).ok();
        assert!(script.contains(mark) && script.contains("dead-letters"), "{shell}: {script}");
    }
    let mut bash = std::process::Command::new("bash");
    let script = home.run(&["completions", "bash"]).ok();
    let done = bash.args(["-c", &format!("{script}\ncomplete -p courant")]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
