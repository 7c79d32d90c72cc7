//! What holds for every kind: its file, its example and its documentation.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use courant_pipeline::Services;
use courant_pipeline::config::StageEntry;
use courant_pipeline::spec::{BuildContext, Part, Place, Role};
use courant_stages::host::DeadLetterStore;
use courant_stages::{STAGES, registry};
use serde_json::{Value, json};
use toml_edit::{DocumentMut, Item};

#[test]
fn the_folders_and_the_registry_agree() {
    // asked of cargo now: what was compiled may come from another checkout that shares the target folder
    let this_crate = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let mut files = BTreeSet::new();
    for role in ["source", "transform", "sink"] {
        let folder = this_crate.join(format!("src/{role}s"));
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let kind = name.strip_suffix(".rs").unwrap_or(&name).replace('_', "-");
            files.insert((role, kind));
        }
        assert!(files.remove(&(role, "mod".to_owned())));
    }
    let registered: BTreeSet<_> =
        STAGES.iter().map(|spec| (spec.role.name(), spec.kind.to_owned())).collect();
    assert_eq!(files, registered);
    assert_eq!(registered.len(), STAGES.len(), "a kind is registered once for its role");
}

#[test]
fn a_kind_is_found_by_name_and_place() {
    assert_eq!(registry().find("file", Place::First).unwrap().role, Role::Source);
    assert_eq!(registry().find("file", Place::Later).unwrap().role, Role::Sink);
    assert!(registry().find("filter", Place::First).is_none());
}

#[tokio::test]
async fn every_example_builds() {
    let folder = tempfile::tempdir().unwrap();
    let letters = DeadLetterStore::open(folder.path()).await.unwrap();
    let services = Services::default().with(Arc::new(letters));
    for spec in STAGES {
        let kind = spec.kind;
        let file: DocumentMut = spec.example.parse().unwrap_or_else(|error| panic!("{kind}: {error}"));
        let stages = to_json(&file["pipeline"]["stage"]);
        let [stage] = &stages.as_array().unwrap()[..] else { panic!("{kind}: one stage is enough") };
        let entry: StageEntry =
            serde_json::from_value(stage.clone()).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(entry.kind, kind);
        let context = BuildContext { pipeline: "example", stage: kind, services: &services };
        match (spec.build)(Value::Object(entry.params), &context) {
            Ok(built) => {
                assert_eq!(matches!(built.part, Part::Source(_)), spec.role == Role::Source, "{kind}");
            }
            Err(problems) => panic!("{kind}: {problems:?}"),
        }
    }
}

#[test]
fn every_kind_and_every_field_is_documented() {
    for spec in STAGES {
        assert!(!spec.summary.is_empty() && !spec.summary.ends_with('.'), "{}: summary", spec.kind);
        let schema = serde_json::to_value((spec.schema)()).unwrap();
        assert_eq!(schema["additionalProperties"], json!(false), "{} takes any parameter", spec.kind);
        check_descriptions(spec.kind, &schema);
    }
}

#[test]
fn unknown_parameters_are_refused_by_name() {
    let services = Services::default();
    for spec in STAGES {
        let context = BuildContext { pipeline: "example", stage: spec.kind, services: &services };
        let Err(problems) = (spec.build)(json!({"no_such_key": 1}), &context) else {
            panic!("{}", spec.kind)
        };
        assert!(problems[0].message.contains("no_such_key"), "{}: {problems:?}", spec.kind);
    }
}

/// Properties at any depth, and the values of enumerations.
fn check_descriptions(path: &str, schema: &Value) {
    match schema {
        Value::Object(parts) => {
            // Values without a doc comment are lumped together in an `enum`.
            let is_choice = parts.contains_key("const") || parts.contains_key("enum");
            assert!(!is_choice || parts.contains_key("description"), "{path}: {schema} has no doc comment");
            for (name, part) in parts {
                if let ("properties", Value::Object(properties)) = (name.as_str(), part) {
                    // A choice that holds a value is an object of one property, and documented as a whole.
                    let is_choice = properties.len() == 1 && parts.contains_key("description");
                    for (name, property) in properties {
                        let documented = is_choice || property["description"].is_string();
                        assert!(documented, "{path}.{name} has no doc comment");
                    }
                }
                check_descriptions(&format!("{path}.{name}"), part);
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| check_descriptions(path, part)),
        _ => {}
    }
}

fn to_json(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => value_to_json(value),
        Item::Table(table) => table.iter().map(|(key, item)| (key.to_owned(), to_json(item))).collect(),
        Item::ArrayOfTables(tables) => {
            tables.iter().map(|table| to_json(&Item::Table(table.clone()))).collect::<Vec<_>>().into()
        }
    }
}

fn value_to_json(value: &toml_edit::Value) -> Value {
    use toml_edit::Value as Toml;
    match value {
        Toml::String(text) => text.value().as_str().into(),
        Toml::Integer(number) => (*number.value()).into(),
        Toml::Float(number) => (*number.value()).into(),
        Toml::Boolean(flag) => (*flag.value()).into(),
        Toml::Datetime(time) => time.value().to_string().into(),
        Toml::Array(items) => items.iter().map(value_to_json).collect::<Vec<_>>().into(),
        Toml::InlineTable(table) => {
            table.iter().map(|(key, value)| (key.to_owned(), value_to_json(value))).collect()
        }
    }
}
