//! What a JSON Schema says about one value, with references followed and alternatives chosen.
//!
//! Knows the part of JSON Schema that schemars writes for config structs. Alternatives are chosen by looking
//! at the value: by the tag of a tagged enum, by the key of an externally tagged one, by type for the rest.
//! That is what makes the errors good; a general validator would say "matches none of the alternatives".

use serde_json::Value as Json;

use super::tree::Node;

/// References and alternatives inside each other at one value; stops a schema that refers to itself.
const DEEPEST_SCHEMA: usize = 16;

/// A schema applied to a value.
#[derive(Debug, Default)]
pub(super) struct Shape<'s> {
    /// Allowed types; none means any.
    pub(super) types: Vec<&'s str>,
    /// Allowed values; none means any.
    pub(super) values: Vec<&'s Json>,
    pub(super) fields: Vec<(&'s str, &'s Json)>,
    pub(super) required: Vec<&'s str>,
    pub(super) others: Others<'s>,
    pub(super) items: Option<&'s Json>,
    pub(super) leading_items: &'s [Json],
    pub(super) item_count: (Option<u64>, Option<u64>),
    pub(super) range: (Option<f64>, Option<f64>),
    pub(super) shortest: Option<u64>,
    pub(super) format: Option<&'s str>,
    /// The key by which the value says what it is.
    pub(super) tag: Option<&'s str>,
    /// The choice the value does not make, so that nothing more can be said about it.
    pub(super) open_choice: Option<Choice<'s>>,
}

/// How a table says which alternative it is.
#[derive(Debug)]
pub(super) enum Choice<'s> {
    /// By the value of a key: `kind = "redis"`.
    Tag { key: &'s str, values: Vec<&'s Json> },
    /// By having one of these keys.
    Key(Vec<&'s str>),
}

/// Keys that are not listed.
#[derive(Debug, Default, Clone, Copy)]
pub(super) enum Others<'s> {
    #[default]
    Anything,
    Denied,
    Each(&'s Json),
}

impl<'s> Shape<'s> {
    pub(super) fn of(root: &'s Json, schema: &'s Json, node: &Node) -> Self {
        let mut shape = Self::default();
        Builder { root, node, shape: &mut shape }.add(schema, DEEPEST_SCHEMA);
        shape
    }

    pub(super) fn field(&self, name: &str) -> Option<&'s Json> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, schema)| *schema)
    }

    pub(super) fn allows(&self, type_name: &str) -> bool {
        self.types.is_empty() || self.types.contains(&type_name)
    }

    fn add_own(&mut self, schema: &'s Json) {
        let types = types_of(schema);
        if !types.is_empty() {
            self.types = types;
        }
        self.values.extend(values_of(schema));
        if let Some(fields) = properties_of(schema) {
            self.fields.extend(fields.iter().map(|(name, schema)| (name.as_str(), schema)));
        }
        self.required.extend(list_of(schema, "required").iter().filter_map(Json::as_str));
        for key in ["additionalProperties", "unevaluatedProperties"] {
            match schema.get(key) {
                Some(Json::Bool(false)) => self.others = Others::Denied,
                Some(each @ Json::Object(_)) => self.others = Others::Each(each),
                _ => {}
            }
        }
        self.add_limits(schema);
    }

    fn add_limits(&mut self, schema: &'s Json) {
        let number = |key: &str| schema.get(key).and_then(Json::as_f64);
        let count = |key: &str| schema.get(key).and_then(Json::as_u64);
        self.range = (number("minimum").or(self.range.0), number("maximum").or(self.range.1));
        self.item_count = (count("minItems").or(self.item_count.0), count("maxItems").or(self.item_count.1));
        self.shortest = count("minLength").or(self.shortest);
        self.format = schema.get("format").and_then(Json::as_str).or(self.format);
        self.items = schema.get("items").or(self.items);
        if let Some(leading) = schema.get("prefixItems").and_then(Json::as_array) {
            self.leading_items = leading;
        }
    }
}

struct Builder<'b, 's> {
    root: &'s Json,
    node: &'b Node,
    shape: &'b mut Shape<'s>,
}

impl<'s> Builder<'_, 's> {
    /// Adds a schema with all it consists of; `depth` counts down.
    fn add(&mut self, schema: &'s Json, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        // A reference may have a description or a default beside it; what is said here goes before it.
        if let Some(target) = reference(self.root, schema) {
            self.add(target, depth);
        }
        self.shape.add_own(schema);
        for part in list_of(schema, "allOf") {
            self.add(part, depth);
        }
        for key in ["anyOf", "oneOf"] {
            let branches = list_of(schema, key);
            if !branches.is_empty() {
                self.add_alternatives(branches, depth);
            }
        }
    }

    fn add_alternatives(&mut self, branches: &'s [Json], depth: usize) {
        // TOML has no null, so an optional value is just the value.
        let branches: Vec<&'s Json> = branches
            .iter()
            .map(|branch| if branch.get("type").is_some() { branch } else { resolve(self.root, branch) })
            .filter(|branch| branch.get("type").and_then(Json::as_str) != Some("null"))
            .collect();
        let written = self.node.type_name();
        let fits = |branch: &&&'s Json| {
            let types = types_of(branch);
            types.is_empty() || types.iter().any(|name| type_fits(name, written))
        };
        let fitting: Vec<&'s Json> = branches.iter().filter(fits).copied().collect();
        match fitting[..] {
            [] => {
                self.shape.types = branches.iter().flat_map(|branch| types_of(branch)).collect();
                self.shape.types.dedup();
            }
            [only] => self.add(only, depth),
            _ => self.add_fitting(&fitting, depth),
        }
    }

    /// Several alternatives have the value's type.
    fn add_fitting(&mut self, branches: &[&'s Json], depth: usize) {
        if branches.iter().all(|branch| !values_of(branch).is_empty()) {
            self.shape.values.extend(branches.iter().flat_map(|branch| values_of(branch)));
            self.shape.types = types_of(branches[0]);
        } else if let Some(key) = tag_of(branches) {
            self.add_tagged(branches, key, depth);
        } else if let Some(keys) = outer_keys(branches) {
            match branches.iter().zip(&keys).find(|(_, key)| self.node.get(key).is_some()) {
                Some((chosen, _)) => self.add(chosen, depth),
                None => self.shape.open_choice = Some(Choice::Key(keys)),
            }
        } else {
            self.add_nearest(branches, depth);
        }
    }

    fn add_tagged(&mut self, branches: &[&'s Json], key: &'s str, depth: usize) {
        let written = self.node.get(key).map(Node::to_json);
        if let Some(chosen) = branches.iter().find(|branch| tag_value(branch, key) == written.as_ref()) {
            self.shape.tag = Some(key);
            self.add(chosen, depth);
        } else {
            let values = branches.iter().filter_map(|branch| tag_value(branch, key)).collect();
            self.shape.open_choice = Some(Choice::Tag { key, values });
        }
    }

    /// Nothing tells them apart: the first that knows most of the keys.
    fn add_nearest(&mut self, branches: &[&'s Json], depth: usize) {
        let known_keys = |branch: &&&'s Json| {
            let fields = properties_of(resolve(self.root, branch));
            fields.map_or(0, |fields| fields.keys().filter(|name| self.node.get(name).is_some()).count())
        };
        if let Some(best) = branches.iter().rev().max_by_key(known_keys) {
            self.add(best, depth);
        }
    }
}

fn reference<'s>(root: &'s Json, schema: &Json) -> Option<&'s Json> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn resolve<'s>(root: &'s Json, schema: &'s Json) -> &'s Json {
    let mut schema = schema;
    for _ in 0..DEEPEST_SCHEMA {
        match reference(root, schema) {
            Some(target) if schema.get("properties").is_none() => schema = target,
            _ => break,
        }
    }
    schema
}

fn list_of<'s>(schema: &'s Json, key: &str) -> &'s [Json] {
    schema.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn properties_of(schema: &Json) -> Option<&serde_json::Map<String, Json>> {
    schema.get("properties")?.as_object()
}

fn types_of(schema: &Json) -> Vec<&str> {
    match schema.get("type") {
        Some(Json::String(name)) => vec![name],
        Some(Json::Array(names)) => {
            names.iter().filter_map(Json::as_str).filter(|name| *name != "null").collect()
        }
        _ => Vec::new(),
    }
}

fn values_of(schema: &Json) -> Vec<&Json> {
    let listed = list_of(schema, "enum").iter().filter(|value| !value.is_null());
    schema.get("const").into_iter().chain(listed).collect()
}

/// Whether a value of a type can stand where a schema asks for a type: whole numbers are numbers.
pub(super) fn type_fits(asked: &str, written: &str) -> bool {
    asked == written || (asked == "number" && written == "integer")
}

/// The key whose constant tells tagged alternatives apart.
fn tag_of<'s>(branches: &[&'s Json]) -> Option<&'s str> {
    let (first, rest) = branches.split_first()?;
    properties_of(first)?
        .keys()
        .find(|key| {
            tag_value(first, key).is_some() && rest.iter().all(|branch| tag_value(branch, key).is_some())
        })
        .map(String::as_str)
}

fn tag_value<'s>(branch: &'s Json, key: &str) -> Option<&'s Json> {
    properties_of(branch)?.get(key)?.get("const")
}

/// The keys of alternatives that are tables with one key each.
fn outer_keys<'s>(branches: &[&'s Json]) -> Option<Vec<&'s str>> {
    let key_of = |branch: &&'s Json| match list_of(branch, "required") {
        [Json::String(key)] if properties_of(branch)?.len() == 1 => Some(key.as_str()),
        _ => None,
    };
    branches.iter().map(key_of).collect()
}
