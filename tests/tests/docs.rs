//! What the documentation shows is true: its TOML loads, its examples pass, its reference is the stages' own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use courant_tests::{home, repository};

/// Every Markdown file that the repository shows its readers.
fn pages() -> Vec<PathBuf> {
    let mut found = files_in(repository(), "md");
    let mut folders = vec![repository().join("docs")];
    while let Some(folder) = folders.pop() {
        found.extend(files_in(&folder, "md"));
        let inside = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        folders.extend(inside.filter(|path| path.is_dir()));
    }
    found
}

fn files_in(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    inside.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// The TOML blocks of a page, each with the line it begins at.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(&str, usize, String)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => open = Some((language, number + 1, String::new())),
            (None, None) => {}
            (Some(_), Some("")) => found.extend(open.take()),
            (Some((.., text)), _) => *text += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "a block is not closed");
    let toml = found.into_iter().filter(|(language, ..)| *language == "toml");
    toml.map(|(_, line, text)| (line, text)).collect()
}

/// What is wrong with a block, if anything. A page may show some stages alone: they are tried as the whole of a
/// pipeline, and behind sources of every kind of record.
fn wrong(text: &str) -> Option<String> {
    let load = |text: &str| {
        let loaded = courant::settings::loader().load_str("block.toml", text, std::iter::empty());
        loaded.err().map(|wrong| wrong.to_string())
    };
    if text.lines().any(|line| line.trim() == "[[pipeline]]") || !text.contains("[[pipeline.") {
        return load(text);
    }
    let stage = |kind: &str, more: &str| {
        format!("[[pipeline.stage]]\nkind = '{kind}'\nname = '{kind}-before'\n{more}\n")
    };
    let events = stage("kafka-consume", "params = { topics = ['messages.persisted'] }");
    let before = [
        String::new(),
        stage("generate", ""),
        stage("ws-ingest", "params = { commands = ['send_message'] }"),
        stage("dynamo-stream", "params = { table = 'messages', group = 'shown' }"),
        events.clone(),
        events + &stage("membership-resolve", ""),
    ];
    let tries = before.iter().flat_map(|before| {
        ["derived", "durability", "fanout"]
            .map(|plane| format!("[[pipeline]]\nname = 'shown'\nplane = '{plane}'\n{before}{text}"))
    });
    let mut wrong = None;
    for shown in tries {
        wrong = Some(load(&shown)?);
    }
    wrong
}

#[test]
fn every_pipeline_in_the_documentation_loads() {
    let mut seen = 0;
    for page in pages() {
        for (line, text) in blocks(&std::fs::read_to_string(&page).unwrap()) {
            if text.contains("[[pipeline") {
                seen += 1;
                let wrong = wrong(&text);
                assert!(wrong.is_none(), "{}:{line}\n{}", page.display(), wrong.unwrap());
            }
        }
    }
    assert!(seen >= courant_stages::STAGES.len(), "only {seen} were found");
}

#[test]
fn blocks_are_found_and_wrong_ones_are_seen() {
    let page =
        "```toml\na = 1\n```\ntext\n```text\n```toml\n```\n```sh\nls\n```\n  ```toml\n  b = 2\n  ```\n";
    assert_eq!(blocks(page), [(2, "a = 1\n".to_owned()), (12, "  b = 2\n".to_owned())]);
    let stage = |kind: &str| format!("[[pipeline.stage]]\nkind = '{kind}'\n");
    assert_eq!(wrong(&stage("stdout")), None);
    assert_eq!(wrong(&stage("generate")), None);
    assert!(wrong(&stage("map")).unwrap().contains("missing key `expr`"));
    assert!(wrong("[[pipeline]]\nname = 'p'\nstage = [{ kind = 'stdot' }]\n").is_some());
}

/// A chat is tried from outside, by its clients. The README says of the examples which have no tests.
const WITHOUT_TESTS: [&str; 4] = ["pipelines.toml", "agent.toml", "event-bus.toml", "production.toml"];

#[test]
fn every_example_is_in_order_and_its_tests_pass() {
    let examples = files_in(&repository().join("examples"), "toml");
    assert!(examples.len() >= 4, "{examples:?}");
    let home = home!();
    for file in examples.iter().chain([&repository().join("pipelines.toml")]) {
        let name = file.to_str().unwrap();
        let checked = home.run(&["-c", name, "check"]);
        assert_eq!(checked.stderr, "", "{name} gives no warning either");
        checked.ok();
        if WITHOUT_TESTS.iter().any(|untested| file.ends_with(untested)) {
            continue;
        }
        let text = std::fs::read_to_string(file).unwrap();
        let passed = home.run(&["-c", name, "test"]).ok();
        let pipelines = text.matches("[[pipeline]]").count();
        assert!(
            passed.lines().filter(|line| line.starts_with("ok ")).count() >= pipelines,
            "{name}: {passed}"
        );
    }
    assert!(!home.path("data").exists(), "neither touches anything");
}

/// A log moves on, and so does a stream: what its consumer gives up on and does not keep is lost.
#[test]
fn every_consumer_keeps_what_it_gives_up_on() {
    let mut consumers = 0;
    let consume = ["kafka-consume", "dynamo-stream"];
    for name in [
        "pipelines.toml",
        "examples/agent.toml",
        "examples/event-bus.toml",
        "examples/production.toml",
        "examples/search.toml",
    ] {
        let loaded = courant::settings::load(&repository().join(name)).unwrap();
        for topology in loaded.topologies.iter().filter(|it| consume.contains(&it.source().spec.kind)) {
            consumers += 1;
            for stage in &topology.stages {
                let on_error = format!("{:?}", stage.policy.on_error);
                assert_ne!(on_error, "Drop", "{name}: {}/{}", topology.name, stage.name);
            }
        }
    }
    assert!(consumers >= 10, "only {consumers} were found");
}

#[test]
fn the_reference_is_what_the_command_prints() {
    let home = home!();
    let printed = home.run(&["stages", "--markdown"]).ok();
    let written = std::fs::read_to_string(repository().join("docs/stages.md")).unwrap_or_default();
    assert!(
        printed == written,
        "docs/stages.md is not up to date; write it with `cargo run -- stages --markdown > docs/stages.md`"
    );
}

#[test]
fn the_commands_of_the_readme_are_there_and_can_be_run() {
    for name in ["tests/run", ".ci/run"] {
        let file = repository().join(name);
        let mode =
            std::fs::metadata(&file).unwrap_or_else(|error| panic!("{name}: {error}")).permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{name} can be executed by everyone");
        assert!(std::fs::read_to_string(&file).unwrap().starts_with("#!/usr/bin/env bash\n"), "{name}");
    }
}

/// Pages that show what `--help` says would grow old; they name the command instead.
#[test]
fn the_help_is_shown_nowhere_else() {
    let help = home!().run(&["--help"]).ok();
    let telling: Vec<&str> =
        help.lines().map(str::trim).filter(|line| line.contains("  ") && line.len() > 40).collect();
    assert!(telling.len() > 10, "{help}");
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let copied: Vec<_> = telling.iter().filter(|line| text.contains(**line)).collect();
        assert!(copied.is_empty(), "{}: {copied:?}", page.display());
    }
}

/// An alert on a metric that nobody counts never fires.
#[test]
fn alerts_are_about_metrics_that_there_are() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let names = |text: &str| -> std::collections::BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        words
            .filter(|word| word.starts_with("courant_"))
            .map(|word| word.trim_end_matches("_bucket").to_owned())
            .collect()
    };
    let counted = names(&(read("pipeline/src/metrics.rs") + &read("stages/src/metrics.rs")));
    let watched = names(&read("docs/alerts.yml"));
    assert!(watched.len() >= 9, "{watched:?}");
    let unknown: Vec<_> = watched.difference(&counted).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
