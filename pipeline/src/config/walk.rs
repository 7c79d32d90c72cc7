//! Checks a value against a schema and goes on after every mistake.
//!
//! serde stops at the first error and knows no positions; a general JSON Schema validator knows neither lines
//! nor what was meant. This walk reports each key and value at its own place, suggests what is near, and
//! hands back the value without what was wrong, so that later checks see as much of it as possible.

use serde_json::Value as Json;

use super::env;
use super::report::Report;
use super::secret;
use super::shape::{Choice, Others, Shape, type_fits};
use super::source::Spot;
use super::suggest::{self, quote};
use super::tree::{Field, Node, Value};
use crate::units::{Size, Span};

/// Where the walk is, for messages.
#[derive(Debug, Clone)]
pub(super) struct At {
    pub(super) path: String,
    /// The last key, with indexes: `topics[1]`.
    name: String,
    /// The value, or something around it, has a secret's name.
    secret: bool,
}

impl At {
    pub(super) fn new(path: impl Into<String>) -> Self {
        let path = path.into();
        let name = path.rsplit('.').next().unwrap_or_default().to_owned();
        Self { path, name, secret: false }
    }

    pub(super) fn key(&self, key: &str) -> Self {
        let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        let shown = if bare && key.len() < 64 { key.to_owned() } else { quote(key).replace('`', "\"") };
        let dot = if self.path.is_empty() { "" } else { "." };
        let secret = self.secret || secret::is_secret(key);
        Self { path: format!("{}{dot}{shown}", self.path), name: shown, secret }
    }

    pub(super) fn index(&self, index: usize) -> Self {
        let (path, name) = (format!("{}[{index}]", self.path), format!("{}[{index}]", self.name));
        Self { path, name, secret: self.secret }
    }

    /// The user's text in a message, unless nobody may see it.
    fn shown(&self, text: &str) -> String {
        if self.secret { "the value".to_owned() } else { quote(&secret::without_url_passwords(text)) }
    }
}

pub(super) struct Walker<'r, 's> {
    /// The document that references lead into.
    root: &'s Json,
    report: &'r mut Report,
}

impl<'r, 's> Walker<'r, 's> {
    pub(super) fn new(root: &'s Json, report: &'r mut Report) -> Self {
        Self { root, report }
    }

    /// Checks a value against the whole schema. What is wrong is left out of the result, or null in an array.
    pub(super) fn check(&mut self, node: &Node, at: &At) -> Json {
        self.walk(node, self.root, at)
    }

    fn walk(&mut self, node: &Node, schema: &'s Json, at: &At) -> Json {
        let shape = Shape::of(self.root, schema, node);
        if let Some(read) = from_environment(node, &shape) {
            // The text may choose another alternative once it is read as what it stands for.
            return self.walk(&read, schema, at);
        }
        let written = node.type_name();
        if !shape.types.is_empty() && !shape.types.iter().any(|name| type_fits(name, written)) {
            let message = format!("`{}` must be {}, not {}", at.name, expected(&shape), noun(written));
            self.report.error(&node.at, &at.path, message, None);
            return Json::Null;
        }
        match &node.value {
            Value::Table(fields) => self.table(node, fields, &shape, at),
            Value::Array(nodes) => self.array(node, nodes, &shape, at),
            Value::Text(text) => self.text(node, text, &shape, at),
            Value::Number(number) => self.number(node, number, &shape, at),
            Value::Bool(flag) => Json::Bool(*flag),
            Value::NotFinite => {
                self.report.error(&node.at, &at.path, format!("`{}` must be a finite number", at.name), None);
                Json::Null
            }
        }
    }

    fn table(&mut self, node: &Node, fields: &[Field], shape: &Shape<'s>, at: &At) -> Json {
        if let Some(choice) = &shape.open_choice {
            self.open_choice(node, choice, at);
            return Json::Null;
        }
        let mut table = serde_json::Map::new();
        let mut meant = Vec::new();
        for field in fields {
            let below = at.key(&field.name);
            let checked = match (shape.field(&field.name), shape.others) {
                (Some(schema), _) | (None, Others::Each(schema)) => self.walk(&field.node, schema, &below),
                (None, Others::Anything) => field.node.to_json(),
                (None, Others::Denied) => {
                    if !self.belongs_to_other_choice(field, node, shape, &below) {
                        meant.extend(self.unknown_key(field, shape, &below));
                    }
                    Json::Null
                }
            };
            if !checked.is_null() {
                table.insert(field.name.clone(), checked);
            }
        }
        for key in &shape.required {
            // A misspelt key is one mistake, not an unknown and a missing one.
            if node.field(key).is_none() && !meant.contains(key) {
                self.missing_key(node, key, shape, at);
            }
        }
        Json::Object(table)
    }

    /// Whether a key is left from an earlier layer whose alternative a later one replaced: the defaults say
    /// `embedded` with a path, the file says `redis`.
    fn belongs_to_other_choice(&mut self, field: &Field, node: &Node, shape: &Shape<'s>, at: &At) -> bool {
        if field.name_at == Spot::Default {
            return true;
        }
        let Some(Spot::Env(variable)) = shape.tag.and_then(|tag| node.get(tag)).map(|tag| &tag.at) else {
            return false;
        };
        if let Spot::File(..) = field.name_at {
            let message = format!("{} is left out, because of {variable}", quote(&field.name));
            self.report.warning(&field.name_at, &at.path, message, None);
            return true;
        }
        false
    }

    /// Returns the key that was probably meant.
    fn unknown_key(&mut self, field: &Field, shape: &Shape<'s>, at: &At) -> Option<&'s str> {
        let known: Vec<&'s str> = shape.fields.iter().map(|(name, _)| *name).collect();
        let near = suggest::nearest(&field.name, known.iter().copied());
        let help = match (near, &field.name_at) {
            (Some(near), Spot::Env(variable)) => {
                Some(format!("did you mean `{}`?", env::with_last_key(variable, near)))
            }
            (Some(near), _) => Some(format!("did you mean `{near}`?")),
            (None, _) => suggest::help(&field.name, &known),
        };
        self.report.error(&field.name_at, &at.path, format!("unknown key {}", quote(&field.name)), help);
        near
    }

    fn missing_key(&mut self, node: &Node, key: &str, shape: &Shape<'s>, at: &At) {
        let help = shape.field(key).and_then(|schema| description(self.root, schema));
        let help = help.map(|text| format!("`{key}`: {text}"));
        self.missing(node, key, at, help);
    }

    fn missing(&mut self, node: &Node, key: &str, at: &At, help: Option<String>) {
        // In a table that no layer wrote, it is missing in the first file as a whole.
        let nowhere = Spot::file(0, 0..0);
        let spot = if node.at == Spot::Default { &nowhere } else { &node.at };
        self.report.error(spot, &at.key(key).path, format!("missing key `{key}`"), help);
    }

    fn open_choice(&mut self, node: &Node, choice: &Choice<'_>, at: &At) {
        match choice {
            Choice::Tag { key, values } => {
                let below = at.key(key);
                let values: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
                if let Some(tag) = node.get(key) {
                    self.unknown_value(tag, &values, &below);
                } else {
                    let help = Some(format!("expected {}", suggest::list(&values, "or")));
                    self.missing(node, key, at, help);
                }
            }
            Choice::Key(keys) => {
                let message =
                    format!("`{}` must have one of the keys {}", at.name, suggest::list(keys, "or"));
                self.report.error(&node.at, &at.path, message, None);
            }
        }
    }

    fn unknown_value(&mut self, node: &Node, known: &[&str], at: &At) {
        let written = node.text().map_or_else(|| node.to_json().to_string(), str::to_owned);
        let message = format!("{} is not a value of `{}`", at.shown(&written), at.name);
        self.report.error(&node.at, &at.path, message, suggest::help(&written, known));
    }

    fn array(&mut self, node: &Node, nodes: &[Node], shape: &Shape<'s>, at: &At) -> Json {
        let (least, most) = shape.item_count;
        let count = nodes.len() as u64;
        if least.is_some_and(|least| count < least) || most.is_some_and(|most| count > most) {
            let message = format!("`{}` must have {}, not {count}", at.name, bounds(least, most, "element"));
            self.report.error(&node.at, &at.path, message, None);
            return Json::Null;
        }
        let walked = nodes.iter().enumerate().map(|(index, node)| {
            match shape.leading_items.get(index).or(shape.items) {
                Some(schema) => self.walk(node, schema, &at.index(index)),
                None => node.to_json(),
            }
        });
        Json::Array(walked.collect())
    }

    fn text(&mut self, node: &Node, text: &str, shape: &Shape<'s>, at: &At) -> Json {
        let written = Json::String(text.to_owned());
        if !shape.values.is_empty() && !shape.values.contains(&&written) {
            let known: Vec<&str> = shape.values.iter().filter_map(|value| value.as_str()).collect();
            self.unknown_value(node, &known, at);
            return Json::Null;
        }
        if shape.shortest.is_some_and(|shortest| (text.chars().count() as u64) < shortest) {
            self.report.error(&node.at, &at.path, format!("`{}` is too short", at.name), None);
            return Json::Null;
        }
        let problem = match shape.format {
            Some("duration") => text.parse::<Span>().err(),
            Some("size") => text.parse::<Size>().err(),
            _ => None,
        };
        let Some(problem) = problem else { return written };
        let (what, help) = problem.split_once("; ").unwrap_or((&problem, ""));
        let what = what.replace(&format!("`{text}`"), &at.shown(text));
        self.report.error(&node.at, &at.path, what, (!help.is_empty()).then(|| help.to_owned()));
        Json::Null
    }

    fn number(&mut self, node: &Node, number: &serde_json::Number, shape: &Shape<'s>, at: &At) -> Json {
        let value = number.as_f64().unwrap_or_default();
        let (least, most) = shape.range;
        if least.is_some_and(|least| value < least) || most.is_some_and(|most| value > most) {
            let message = format!("`{}` must be {}", at.name, bounds(least, most, ""));
            self.report.error(&node.at, &at.path, message, None);
            return Json::Null;
        }
        Json::Number(number.clone())
    }
}

/// A variable's text read as what the schema expects; none if it stays text.
fn from_environment(node: &Node, shape: &Shape<'_>) -> Option<Node> {
    let (Spot::Env(_), Some(text)) = (&node.at, node.text()) else { return None };
    if shape.allows("string") {
        return None;
    }
    let parsed = text.trim().parse::<toml_edit::Value>().ok();
    let node_of = |value: &toml_edit::Value| Node::from_toml(value, &node.at);
    match parsed {
        Some(value) if !value.is_str() => Some(node_of(&value)),
        _ if shape.types.contains(&"array") => {
            let element =
                |part: &str| Node { value: Value::Text(part.trim().to_owned()), at: node.at.clone() };
            Some(Node { value: Value::Array(text.split(',').map(element).collect()), at: node.at.clone() })
        }
        _ => None,
    }
}

/// What a value should have been.
fn expected(shape: &Shape<'_>) -> String {
    match shape.format {
        Some("duration") => "a length of time such as \"250ms\"".to_owned(),
        Some("size") => "a size such as \"64 KiB\"".to_owned(),
        _ => {
            let nouns: Vec<&str> = shape.types.iter().map(|name| noun(name)).collect();
            nouns.join(" or ")
        }
    }
}

fn noun(type_name: &str) -> &str {
    match type_name {
        "object" => "a table",
        "array" => "an array",
        "string" => "a string",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        _ => "infinite or nan",
    }
}

/// `at least 1`, `between 1 and 65535`, `2 elements`.
fn bounds<N: std::fmt::Display + PartialEq>(least: Option<N>, most: Option<N>, unit: &str) -> String {
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}s") };
    match (least, most) {
        (Some(least), Some(most)) if least == most => format!("{least}{unit}"),
        (Some(least), Some(most)) => format!("between {least} and {most}{unit}"),
        (Some(least), None) => format!("at least {least}{unit}"),
        (None, Some(most)) => format!("at most {most}{unit}"),
        (None, None) => format!("any number of{unit}"),
    }
}

/// The first sentence of what the schema says about a key.
fn description(root: &Json, schema: &Json) -> Option<String> {
    let own = schema.get("description").and_then(Json::as_str);
    let target =
        || root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)?.get("description")?.as_str();
    let text = own.or_else(target)?;
    let sentence = text.split("\n\n").next().unwrap_or(text).replace('\n', " ");
    let end = sentence.find(". ").unwrap_or(sentence.len());
    Some(sentence[..end].trim_end_matches('.').to_owned())
}
