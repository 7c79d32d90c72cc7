//! What a reload sees, and the schema that editors see.

use serde_json::Value as Json;

use super::{loaded, loader};
use crate::config::{ChangeKind, changes};

const BEFORE: &str = "\
[[pipeline]]
name = 'same'
stage = [{ kind = 'generate' }, { kind = 'file' }]
[[pipeline]]
name = 'gone'
stage = [{ kind = 'generate' }, { kind = 'file' }]
[[pipeline]]
name = 'flow'
stage = [
  { kind = 'generate', params = { every = '1s' } },
  { kind = 'filter', params = { expr = '.a' } },
  { kind = 'webhook', params = { url = 'u', secret = 'first-secret' } },
]
";

const AFTER: &str = "\
# A comment, and the same table in other words.
[[pipeline]]
name = 'same'
plane = 'derived'
[[pipeline.stage]]
kind = 'generate'
[[pipeline.stage]]
kind = 'file'
input = 'generate'
[[pipeline]]
name = 'flow'
stage = [
  { kind = 'generate', params = { every = '2s' } },
  { kind = 'filter', params = { expr = '.b' }, lanes = 2, batch = { wait = '5ms' } },
  { kind = 'webhook', params = { url = 'u', secret = 'second-secret' }, input = 'generate' },
  { kind = 'file', input = 'filter' },
]
[[pipeline]]
name = 'new'
stage = [{ kind = 'generate' }, { kind = 'file' }]
";

#[test]
fn changes_say_what_changed_and_no_values() {
    let all = changes(&loaded(BEFORE).topologies, &loaded(AFTER).topologies);
    let names: Vec<&str> = all.iter().map(|change| &*change.pipeline).collect();
    assert_eq!(names, ["same", "flow", "new", "gone"]);
    assert_eq!(all[0].kind, ChangeKind::Unchanged);
    let what = [
        "stage `generate`: params.every changed",
        "stage `filter`: batch.wait changed",
        "stage `filter`: lanes added",
        "stage `filter`: params.expr changed",
        "stage `webhook`: params.secret changed",
        "stage `webhook`: input changed",
        "stage `file` added",
    ];
    let what = what.map(str::to_owned).to_vec();
    assert_eq!(all[1].kind, ChangeKind::Changed { what, source_changed: true });
    assert_eq!((&all[2].kind, &all[3].kind), (&ChangeKind::Added, &ChangeKind::Removed));
    assert!(!serde_json::to_string(&all).unwrap().contains("-secret"));
}

#[test]
fn a_source_that_reads_the_same_is_the_same_source() {
    let slower = BEFORE.replace("params = { every = '1s' }", "params = { every = '1s' }, lanes = 3");
    let all = changes(&loaded(BEFORE).topologies, &loaded(&slower).topologies);
    let what = vec!["stage `generate`: lanes added".to_owned()];
    assert_eq!(all[2].kind, ChangeKind::Changed { what, source_changed: false });
}

#[test]
fn a_fingerprint_changes_with_everything_that_loading_reads() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let file = folder.path().join("pipelines.toml");
    let fingerprint = || loader().fingerprint(&file);
    let mut seen = vec![fingerprint()];
    let mut changed = |what: &str| {
        let now = fingerprint();
        assert!(!seen.contains(&now), "{what} goes unnoticed");
        assert_eq!(fingerprint(), now, "{what}: nothing has changed since");
        seen.push(now);
    };
    write("pipelines.toml", "include = ['more-*.toml', 'late.toml']\n");
    changed("a first file");
    write("more-1.toml", "[[pipeline]\n");
    changed("a file that comes to match a pattern, and is wrong");
    write("more-1.toml", "include = ['deep.toml']\n");
    changed("a wrong file that is mended");
    write("deep.toml", "\n");
    changed("a file that a file includes");
    write("late.toml", "\n");
    changed("an include that was missing");
    assert_eq!(loader().load(&file, super::NO_ENV).unwrap().fingerprint, fingerprint());
    write("late.test.toml", "\n");
    changed("the tests beside it");
    std::fs::rename(folder.path().join("more-1.toml"), folder.path().join("more-2.toml")).unwrap();
    changed("another name");
    write("unrelated.toml", "x = 1");
    assert_eq!(seen.last(), Some(&fingerprint()));
}

/// Every `$ref` of a schema.
fn references(schema: &Json, found: &mut Vec<String>) {
    match schema {
        Json::Object(map) => {
            found.extend(map.get("$ref").and_then(Json::as_str).map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Json::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn the_editor_schema_is_one_document() {
    let schema = loader().schema().to_value();
    let mut all = Vec::new();
    references(&schema, &mut all);
    assert!(all.len() > 10);
    for reference in all {
        assert!(schema.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference} leads nowhere");
    }
    let mut tables: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    tables.sort();
    assert_eq!(tables, ["connections", "edge", "include", "pipeline", "test"]);
    // What has a built-in value may be left out of the file.
    let edge = &schema["$defs"]["edge"];
    assert_eq!(edge["required"], serde_json::json!([]));
    assert_eq!(edge["properties"]["listen"]["default"], "127.0.0.1:8080");
}

#[test]
fn the_editor_schema_knows_each_kind() {
    let schema = loader().schema().to_value();
    let stage = &schema["$defs"]["pipeline.StageEntry"];
    let kinds: Vec<&Json> = stage["properties"]["kind"]["oneOf"].as_array().unwrap().iter().collect();
    assert_eq!(kinds[2]["const"], "file");
    assert_eq!(kinds[2]["description"], "source: Reads lines.\nsink: Writes lines.");
    let rule = stage["allOf"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["if"]["properties"]["kind"]["const"] == "publish");
    let then = &rule.unwrap()["then"];
    assert_eq!(then["required"][0], "params");
    let params = &schema["$defs"]["sink.publish"];
    assert_eq!(then["properties"]["params"]["$ref"], "#/$defs/sink.publish");
    assert_eq!(
        params["properties"]["topic"]["description"],
        "The topic it writes. Created if it does not exist."
    );
}
