//! One JSON Schema for the whole of `pipelines.toml`, for editors.
//!
//! Made from the same schemas that loading checks with, so an editor's completion and `courant check` cannot
//! disagree about keys. A stage's `params` depend on its `kind` through `if`/`then`. Every part brings its
//! own definitions; they are moved to the root under a prefix, because editors do not follow embedded
//! documents.

use schemars::Schema;
use serde_json::{Map, Value as Json, json};

use super::entry::PipelineEntry;
use super::loader::Loader;
use crate::spec::{Registry, StageSpec};

impl Loader {
    /// The schema of a file that this loader loads.
    pub fn schema(&self) -> Schema {
        let mut root = Root::default();
        root.properties.insert("include".to_owned(), include());
        for section in &self.sections {
            let mut schema = (section.schema)().to_value();
            fill_in_defaults(&mut schema, &(section.defaults)());
            let reference = root.define(section.name, schema);
            root.properties.insert(section.name.to_owned(), reference);
        }
        if let Some(schema) = self.test_schema {
            let reference = root.define("test", schema().to_value());
            root.properties.insert("test".to_owned(), json!({ "type": "array", "items": reference }));
        }
        let pipeline = root.define("pipeline", schemars::schema_for!(PipelineEntry).to_value());
        root.properties.insert(
            "pipeline".to_owned(),
            json!({ "description": "The pipelines.", "type": "array", "items": pipeline }),
        );
        root.specialise_stages(self.registry);
        root.finish()
    }
}

fn include() -> Json {
    json!({
        "description": "Further files, relative to this one; `*` and `?` match within a folder.",
        "type": "array",
        "items": { "type": "string" },
    })
}

#[derive(Default)]
struct Root {
    properties: Map<String, Json>,
    definitions: Map<String, Json>,
}

impl Root {
    /// Moves a schema and its definitions into the root's, and returns a reference to it.
    fn define(&mut self, name: &str, mut schema: Json) -> Json {
        rename_references(&mut schema, name);
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("$schema");
            if let Some(Json::Object(definitions)) = schema.remove("$defs") {
                let prefixed =
                    definitions.into_iter().map(|(inner, schema)| (format!("{name}.{inner}"), schema));
                self.definitions.extend(prefixed);
            }
        }
        self.definitions.insert(name.to_owned(), schema);
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    /// Lists the kinds, and says for each what its `params` may be.
    fn specialise_stages(&mut self, registry: Registry) {
        let mut kinds: Vec<&str> = registry.0.iter().map(|spec| spec.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let conditions: Vec<Json> = kinds.iter().map(|kind| self.condition(registry, kind)).collect();
        let choice: Vec<Json> = kinds.iter().map(|kind| constant(registry, kind)).collect();
        let Some(stage) = self.definitions.get_mut("pipeline.StageEntry").and_then(Json::as_object_mut)
        else {
            return;
        };
        if let Some(Json::Object(kind)) = stage.get_mut("properties").and_then(|all| all.get_mut("kind")) {
            kind.insert("oneOf".to_owned(), Json::Array(choice));
        }
        stage.insert("allOf".to_owned(), Json::Array(conditions));
    }

    fn condition(&mut self, registry: Registry, kind: &str) -> Json {
        let mut params: Vec<Json> = Vec::new();
        let mut required = true;
        for spec in registry.of_kind(kind) {
            let schema = (spec.schema)().to_value();
            required &= schema.get("required").and_then(Json::as_array).is_some_and(|keys| !keys.is_empty());
            params.push(self.define(&format!("{}.{kind}", spec.role.name()), schema));
        }
        // A kind that can stand first and elsewhere has two sets of parameters; the place decides.
        let params = if params.len() == 1 { params.remove(0) } else { json!({ "anyOf": params }) };
        let mut then = json!({ "properties": { "params": params } });
        if required {
            then["required"] = json!(["params"]);
        }
        json!({ "if": { "properties": { "kind": { "const": kind } }, "required": ["kind"] }, "then": then })
    }

    fn finish(self) -> Schema {
        let mut schema = Schema::default();
        for (key, value) in [
            ("$schema", json!("https://json-schema.org/draft/2020-12/schema")),
            ("title", json!("pipelines.toml")),
            ("type", json!("object")),
            ("properties", Json::Object(self.properties)),
            ("additionalProperties", json!(false)),
            ("$defs", Json::Object(self.definitions)),
        ] {
            schema.insert(key.to_owned(), value);
        }
        schema
    }
}

fn constant(registry: Registry, kind: &str) -> Json {
    let describe = |spec: &StageSpec| format!("{}: {}", spec.role.name(), spec.summary);
    let descriptions: Vec<String> = registry.of_kind(kind).map(describe).collect();
    json!({ "const": kind, "description": descriptions.join("\n") })
}

/// What the built-in layer says need not be in the file; the editor shows it instead.
fn fill_in_defaults(schema: &mut Json, defaults: &Json) {
    let Some(defaults) = defaults.as_object() else { return };
    if let Some(required) = schema.get_mut("required").and_then(Json::as_array_mut) {
        required.retain(|key| key.as_str().is_none_or(|key| !defaults.contains_key(key)));
    }
    let Some(properties) = schema.get_mut("properties").and_then(Json::as_object_mut) else { return };
    for (key, value) in defaults.iter().filter(|(_, value)| !value.is_null()) {
        if let Some(property) = properties.get_mut(key).and_then(Json::as_object_mut) {
            property.entry("default").or_insert_with(|| value.clone());
        }
    }
}

/// `#` becomes `#/$defs/<name>` and `#/$defs/X` becomes `#/$defs/<name>.X`.
fn rename_references(schema: &mut Json, name: &str) {
    match schema {
        Json::Object(map) => {
            if let Some(Json::String(reference)) = map.get_mut("$ref") {
                *reference = match reference.strip_prefix("#/$defs/") {
                    Some(inner) => format!("#/$defs/{name}.{inner}"),
                    None => format!("#/$defs/{name}"),
                };
            }
            map.values_mut().for_each(|value| rename_references(value, name));
        }
        Json::Array(values) => values.iter_mut().for_each(|value| rename_references(value, name)),
        _ => {}
    }
}
