//! A parameter's schema as rows for people: key, type, default, meaning.
//!
//! Nested tables follow their parent with the full key. Only what schemars makes of config structs is
//! understood; anything else shows as `any value` rather than not at all.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// One key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// With its tables: `batch.records`, `routes[].when`, `headers.<name>`.
    pub(super) key: String,
    pub(super) kind: String,
    pub(super) required: bool,
    /// As it would be written in TOML.
    pub(super) default: Option<String>,
    pub(super) docs: String,
    /// Named values with their meaning.
    pub(super) choices: Vec<(String, String)>,
}

/// A config's table nests a few levels; a schema that refers to itself would nest for ever.
const MAX_DEPTH: usize = 6;

pub(super) fn fields(schema: &Value) -> Vec<Field> {
    let reader = Reader { root: schema };
    let mut found = Vec::new();
    reader.table(schema, "", None, MAX_DEPTH, &mut found);
    found
}

struct Reader<'a> {
    root: &'a Value,
}

impl<'a> Reader<'a> {
    /// Adds the keys of a table and of the tables in it.
    fn table(
        &self,
        schema: &'a Value,
        prefix: &str,
        defaults: Option<&'a Value>,
        depth: usize,
        found: &mut Vec<Field>,
    ) {
        if depth == 0 {
            return;
        }
        let shapes = self.shapes(schema);
        let mut seen = BTreeSet::new();
        for shape in &shapes {
            let Some(properties) = shape.get("properties").and_then(Value::as_object) else { continue };
            for (name, property) in properties {
                let key = format!("{prefix}{name}");
                if !seen.insert(name) {
                    merge_kind(found, &key, &self.kind(property));
                    continue;
                }
                // A key of one variant among several is only needed by that variant.
                let required = shapes.iter().all(|shape| requires(shape, name));
                let default = defaults.and_then(|all| all.get(name)).or_else(|| property.get("default"));
                self.field(&key, property, required, default, depth, found);
            }
        }
    }

    fn field(
        &self,
        key: &str,
        schema: &'a Value,
        required: bool,
        default: Option<&'a Value>,
        depth: usize,
        found: &mut Vec<Field>,
    ) {
        let own = found.len();
        found.push(Field {
            key: key.to_owned(),
            kind: self.kind(schema),
            required,
            default: default.filter(|value| !value.is_null()).map(toml),
            docs: self.docs(schema),
            choices: self.choices(schema),
        });
        for shape in self.shapes(schema) {
            if let Some(items) = shape.get("items") {
                self.table(items, &format!("{key}[]."), None, depth - 1, found);
            } else if let Some(values @ Value::Object(_)) = shape.get("additionalProperties") {
                self.table(values, &format!("{key}.<name>."), None, depth - 1, found);
            }
        }
        let before_table = found.len();
        self.table(schema, &format!("{key}."), default, depth - 1, found);
        if found.len() > before_table {
            // The keys of the table show their defaults themselves.
            found[own].default = None;
        }
    }

    /// The schema without references, and without the `null` of an optional key; several if it may be any.
    fn shapes(&self, schema: &'a Value) -> Vec<&'a Value> {
        let mut shapes = Vec::new();
        self.collect_shapes(schema, MAX_DEPTH, &mut shapes);
        shapes
    }

    fn collect_shapes(&self, schema: &'a Value, depth: usize, shapes: &mut Vec<&'a Value>) {
        if depth == 0 || schema.get("type").is_some_and(|kind| kind == "null") {
            return;
        }
        if let Some(target) = self.target(schema) {
            return self.collect_shapes(target, depth - 1, shapes);
        }
        let own = schema.get("properties").is_some();
        match alternatives(schema) {
            Some(parts) => {
                // Common keys beside the variants, as flattened enums have them.
                shapes.extend(own.then_some(schema));
                for part in parts {
                    self.collect_shapes(part, depth - 1, shapes);
                }
            }
            None => shapes.push(schema),
        }
    }

    fn target(&self, schema: &Value) -> Option<&'a Value> {
        let reference = schema.get("$ref")?.as_str()?;
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn docs(&self, schema: &'a Value) -> String {
        let own = schema.get("description").or_else(|| self.target(schema)?.get("description"));
        let inner = || self.shapes(schema).into_iter().find_map(|shape| shape.get("description"));
        own.or_else(inner).and_then(Value::as_str).map(one_line).unwrap_or_default()
    }

    fn choices(&self, schema: &'a Value) -> Vec<(String, String)> {
        let shapes = self.shapes(schema);
        let choice = |shape: &Value| {
            let docs = shape.get("description").and_then(Value::as_str)?;
            Some((toml(shape.get("const")?), one_line(docs)))
        };
        shapes.into_iter().filter_map(choice).collect()
    }

    /// `string`, `integer ≥ 1`, `array of string`, `"oldest" or "newest"`.
    fn kind(&self, schema: &'a Value) -> String {
        let mut kinds = Vec::new();
        for shape in self.shapes(schema) {
            let kind = self.shape_kind(shape);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if kinds.is_empty() { "any value".to_owned() } else { kinds.join(" or ") }
    }

    fn shape_kind(&self, shape: &'a Value) -> String {
        if let Some(value) = shape.get("const") {
            return toml(value);
        }
        if let Some(values) = shape.get("enum").and_then(Value::as_array) {
            return values.iter().filter(|value| !value.is_null()).map(toml).collect::<Vec<_>>().join(" or ");
        }
        match type_name(shape) {
            Some("string") => match shape.get("format").and_then(Value::as_str) {
                Some("duration") => "duration".to_owned(),
                Some("size") => "size".to_owned(),
                _ => "string".to_owned(),
            },
            Some(number @ ("integer" | "number")) => match shape.get("minimum").and_then(Value::as_f64) {
                Some(least) => format!("{number} ≥ {least}"),
                None => number.to_owned(),
            },
            Some("array") => {
                format!(
                    "array of {}",
                    shape.get("items").map_or("any value".to_owned(), |items| self.kind(items))
                )
            }
            Some("object") => match shape.get("additionalProperties") {
                Some(values @ Value::Object(_)) => format!("table of {}", self.kind(values)),
                _ => "table".to_owned(),
            },
            Some(other) => other.to_owned(),
            None => "any value".to_owned(),
        }
    }
}

/// A key of several variants may be of several types, such as the one that tells them apart.
fn merge_kind(found: &mut [Field], key: &str, kind: &str) {
    if let Some(field) = found.iter_mut().find(|field| field.key == key && field.kind != kind) {
        field.kind = format!("{} or {kind}", field.kind);
    }
}

fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    ["oneOf", "anyOf", "allOf"].into_iter().find_map(|key| schema.get(key)?.as_array())
}

fn requires(shape: &Value, name: &str) -> bool {
    let required = shape.get("required").and_then(Value::as_array);
    required.is_some_and(|names| names.iter().any(|required| required == name))
}

/// The type besides `null`.
fn type_name(shape: &Value) -> Option<&str> {
    match shape.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

/// Doc comments are wrapped at the width of the source; paragraphs stay apart by a space.
fn one_line(docs: &str) -> String {
    docs.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A value as it stands in TOML.
fn toml(value: &Value) -> String {
    let pair = |(key, value): (&String, &Value)| format!("{key} = {}", toml(value));
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(table) if table.is_empty() => "{}".to_owned(),
        Value::Object(table) => format!("{{ {} }}", set(table).map(pair).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// Keys that have a value; TOML has no `null`.
fn set(table: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    table.iter().filter(|(_, value)| !value.is_null())
}
