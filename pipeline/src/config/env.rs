//! `COURANT_EDGE__LISTEN=…`: the environment as the last layer.
//!
//! Two underscores separate keys, since one is part of many names. Variables without them are not
//! configuration (`COURANT_LOG=debug` belongs to the program), but one that only lacks an underscore is
//! pointed out: a setting that is silently not applied is worse than a wrong one. Values stay text until the
//! schema says what they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider};
use serde_json::Value as Json;

use super::report::Report;
use super::section::Section;
use super::source::Spot;
use super::suggest::{self, quote};

pub(super) const LAYER: &str = "environment";
const PREFIX: &str = "COURANT_";
const SEPARATOR: &str = "__";
/// Deeper than any schema; bounds the recursion over what a stranger may put there.
const MOST_KEYS: usize = 16;

/// Variables that set something, by key path.
#[derive(Default)]
pub(super) struct Environment(BTreeMap<Vec<String>, (Arc<str>, String)>);

impl Environment {
    pub(super) fn read(
        variables: impl IntoIterator<Item = (String, String)>,
        sections: &[Section],
        report: &mut Report,
    ) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else { continue };
            if !rest.contains(SEPARATOR) {
                warn_of_missing_underscore(&name, rest, sections, report);
                continue;
            }
            let keys: Vec<String> = rest.split(SEPARATOR).map(str::to_ascii_lowercase).collect();
            if let Some((message, help)) = refusal(&name, &keys, sections) {
                report.error(&Spot::Env(name.into()), &keys.join("."), message, help);
            } else {
                environment.0.insert(keys, (name.into(), value));
            }
        }
        environment
    }

    /// The variable that sets a key, or the first that sets something below it.
    pub(super) fn spot(&self, path: &[&str]) -> Spot {
        let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        match self.0.range(path.clone()..).next().filter(|(keys, _)| keys.starts_with(&path)) {
            Some((_, (name, _))) => Spot::Env(Arc::clone(name)),
            None => Spot::Default,
        }
    }
}

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        Metadata::named(LAYER)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut root = Dict::new();
        for (keys, (_, value)) in &self.0 {
            insert(&mut root, keys, value);
        }
        Ok(Profile::Default.collect(root))
    }
}

fn insert(dict: &mut Dict, keys: &[String], value: &str) {
    match keys {
        [] => {}
        [key] => {
            dict.insert(key.clone(), Value::from(value));
        }
        [key, below @ ..] => {
            let child = dict.entry(key.clone()).or_insert_with(|| Value::from(Dict::new()));
            if !matches!(child, Value::Dict(..)) {
                *child = Value::from(Dict::new());
            }
            if let Value::Dict(_, child) = child {
                insert(child, below, value);
            }
        }
    }
}

/// Why a variable cannot be a setting at all.
fn refusal(name: &str, keys: &[String], sections: &[Section]) -> Option<(String, Option<String>)> {
    if keys.iter().any(String::is_empty) || keys.len() > MOST_KEYS {
        return Some((format!("{} is not a name of a setting", quote(name)), None));
    }
    let [table, below @ ..] = keys else { return None };
    if sections.iter().any(|section| section.name == table) {
        return None;
    }
    if table == "pipeline" || table == "test" {
        let help = Some("change the file, or include another one".to_owned());
        return Some((format!("{} cannot be set by the environment", quote(table)), help));
    }
    let names: Vec<&str> = sections.iter().map(|section| section.name).collect();
    let help = match suggest::nearest(table, names.iter().copied()) {
        Some(near) => Some(format!("did you mean `{}`?", variable(&[&[near.to_owned()], below].concat()))),
        None => suggest::help(table, &names),
    };
    Some((format!("unknown table {}", quote(table)), help))
}

fn variable(keys: &[String]) -> String {
    format!("{PREFIX}{}", keys.join(SEPARATOR).to_ascii_uppercase())
}

/// `COURANT_EGDE__LISTEN` with its last key replaced by the one that was meant.
pub(super) fn with_last_key(name: &str, key: &str) -> String {
    let kept = name.rfind(SEPARATOR).map_or(name, |at| &name[..at]);
    format!("{kept}{SEPARATOR}{}", key.to_ascii_uppercase())
}

fn warn_of_missing_underscore(name: &str, rest: &str, sections: &[Section], report: &mut Report) {
    let rest = rest.to_ascii_lowercase();
    let meant = sections.iter().find_map(|section| {
        let below = rest.strip_prefix(section.name)?.strip_prefix('_')?;
        let schema = (section.schema)().to_value();
        let mut keys = vec![section.name.to_owned()];
        keys.extend(split_by_schema(&schema, &schema, below)?);
        Some(variable(&keys))
    });
    if let Some(meant) = meant {
        let message = format!("{} sets nothing", quote(name));
        let help = Some(format!("two underscores separate keys: `{meant}`"));
        report.warning(&Spot::Env(name.into()), "", message, help);
    }
}

/// Reads `store_path` as `store`, `path` if the schema has such keys.
fn split_by_schema(root: &Json, schema: &Json, words: &str) -> Option<Vec<String>> {
    let schema = match schema.get("$ref").and_then(Json::as_str) {
        Some(reference) => root.pointer(reference.strip_prefix('#')?)?,
        None => schema,
    };
    schema.get("properties")?.as_object()?.iter().find_map(|(key, below)| {
        let rest = words.strip_prefix(key.as_str())?;
        if rest.is_empty() {
            return Some(vec![key.clone()]);
        }
        let mut keys = vec![key.clone()];
        keys.extend(split_by_schema(root, below, rest.strip_prefix('_')?)?);
        Some(keys)
    })
}
