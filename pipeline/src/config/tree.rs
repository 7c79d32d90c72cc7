//! The merged configuration with the place of every key and value.
//!
//! figment says which layer a value came from, the files' syntax trees say where in it. Both are walked side
//! by side once, so that checks only see [`Node`]s. Merged tables stand where the last file wrote them;
//! elements of a concatenated array are counted per file. Keys keep the order they were written in, which
//! figment's sorted maps do not: the order of a `route`'s outputs has a meaning.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use figment::Figment;
use figment::value::{Empty, Num, Tag, Value as Merged};
use serde_json::Value as Json;
use toml_edit::{Item, Table, TableLike, Value as TomlValue};

use super::env::{self, Environment};
use super::source::{FileId, Sources, Spot};

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) at: Spot,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Table(Vec<Field>),
    Array(Vec<Node>),
    Text(String),
    Number(serde_json::Number),
    Bool(bool),
    /// `nan` or `inf`, which nothing here accepts.
    NotFinite,
}

#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) name_at: Spot,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn empty_table(at: Spot) -> Self {
        Self { value: Value::Table(Vec::new()), at }
    }

    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields().iter().find(|field| field.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.field(name).map(|field| &field.node)
    }

    pub(super) fn fields(&self) -> &[Field] {
        match &self.value {
            Value::Table(fields) => fields,
            _ => &[],
        }
    }

    pub(super) fn elements(&self) -> &[Node] {
        match &self.value {
            Value::Array(nodes) => nodes,
            _ => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value's type in the words of JSON Schema.
    pub(super) fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Table(_) => "object",
            Value::Array(_) => "array",
            Value::Text(_) => "string",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::Bool(_) => "boolean",
            Value::NotFinite => "not-finite",
        }
    }

    pub(super) fn to_json(&self) -> Json {
        match &self.value {
            Value::Table(fields) => {
                Json::Object(fields.iter().map(|field| (field.name.clone(), field.node.to_json())).collect())
            }
            Value::Array(nodes) => Json::Array(nodes.iter().map(Node::to_json).collect()),
            Value::Text(text) => Json::String(text.clone()),
            Value::Number(number) => Json::Number(number.clone()),
            Value::Bool(flag) => Json::Bool(*flag),
            Value::NotFinite => Json::Null,
        }
    }

    /// A value written in TOML syntax, all of it at one place.
    pub(super) fn from_toml(value: &TomlValue, at: &Spot) -> Self {
        let merged = super::layers::value_of(value);
        Self { value: plain(&merged, at), at: at.clone() }
    }
}

fn plain(merged: &Merged, at: &Spot) -> Value {
    match merged {
        Merged::Dict(_, dict) => {
            let field = |(name, value): (&String, &Merged)| Field {
                name: name.clone(),
                name_at: at.clone(),
                node: Node { value: plain(value, at), at: at.clone() },
            };
            Value::Table(dict.iter().map(field).collect())
        }
        Merged::Array(_, values) => Value::Array(
            values.iter().map(|value| Node { value: plain(value, at), at: at.clone() }).collect(),
        ),
        leaf => leaf_value(leaf),
    }
}

fn leaf_value(merged: &Merged) -> Value {
    match merged {
        Merged::String(_, text) => Value::Text(text.clone()),
        Merged::Char(_, c) => Value::Text(c.to_string()),
        Merged::Bool(_, flag) => Value::Bool(*flag),
        Merged::Num(_, number) => number_value(*number),
        Merged::Empty(..) | Merged::Dict(..) | Merged::Array(..) => Value::NotFinite,
    }
}

fn number_value(number: Num) -> Value {
    let whole = number.to_i128().or_else(|| number.to_u128().and_then(|n| i128::try_from(n).ok()));
    let json = match whole {
        Some(whole) => serde_json::Number::from_i128(whole),
        None => number.to_f64().and_then(serde_json::Number::from_f64),
    };
    json.map_or(Value::NotFinite, Value::Number)
}

/// The merged value of all layers as a tree of places.
pub(super) fn locate(
    figment: &Figment,
    sources: &Sources,
    environment: &Environment,
) -> Result<Node, String> {
    let merged = figment.find_value("").map_err(|error| error.to_string())?;
    let files = sources.0.iter().enumerate().map(|(file, source)| (source.path.as_path(), file)).collect();
    let locator = Locator { figment, files, environment };
    let roots = sources.0.iter().enumerate().filter_map(|(file, source)| {
        let table = source.document.as_ref()?.as_table();
        Some(Cursor { file, key: 0..0, item: Place::Table(table) })
    });
    Ok(locator.node(&merged, &roots.collect::<Vec<_>>(), &mut Vec::new()))
}

struct Locator<'a> {
    figment: &'a Figment,
    files: BTreeMap<&'a Path, FileId>,
    environment: &'a Environment,
}

/// Where a path leads in one file.
#[derive(Clone)]
struct Cursor<'a> {
    file: FileId,
    key: Range<usize>,
    item: Place<'a>,
}

#[derive(Clone, Copy)]
enum Place<'a> {
    Item(&'a Item),
    Value(&'a TomlValue),
    Table(&'a Table),
}

impl<'a> Place<'a> {
    fn table(self) -> Option<&'a dyn TableLike> {
        match self {
            Self::Item(item) => item.as_table_like(),
            Self::Value(value) => value.as_inline_table().map(|table| table as &dyn TableLike),
            Self::Table(table) => Some(table),
        }
    }

    fn element(self, index: usize) -> Option<Place<'a>> {
        match self {
            Self::Item(Item::ArrayOfTables(tables)) => tables.get(index).map(Place::Table),
            Self::Item(Item::Value(value)) | Self::Value(value) => {
                value.as_array()?.get(index).map(Place::Value)
            }
            Self::Item(_) | Self::Table(_) => None,
        }
    }

    fn span(self) -> Option<Range<usize>> {
        match self {
            Self::Item(item) => item.span(),
            Self::Value(value) => value.span(),
            Self::Table(table) => table.span(),
        }
    }
}

impl Cursor<'_> {
    fn below(&self, key: &str) -> Option<Self> {
        let (written, item) = self.item.table()?.get_key_value(key)?;
        Some(Self {
            file: self.file,
            key: written.span().unwrap_or(self.key.clone()),
            item: Place::Item(item),
        })
    }

    fn spot(&self) -> Spot {
        Spot::file(self.file, self.item.span().unwrap_or(self.key.clone()))
    }

    fn key_spot(&self) -> Spot {
        Spot::file(self.file, self.key.clone())
    }
}

impl Locator<'_> {
    fn node<'p>(&self, merged: &'p Merged, cursors: &[Cursor<'_>], path: &mut Vec<&'p str>) -> Node {
        match merged {
            Merged::Dict(_, dict) => {
                let at = cursors.iter().rfind(|cursor| cursor.item.table().is_some());
                let at = at.map_or_else(|| self.environment.spot(path), Cursor::spot);
                let mut fields: Vec<Field> = dict
                    .iter()
                    .filter(|(_, value)| !matches!(value, Merged::Empty(_, Empty::None | Empty::Unit)))
                    .map(|(name, value)| self.field(name, value, cursors, path))
                    .collect();
                fields.sort_by(|a, b| a.name_at.cmp(&b.name_at));
                Node { value: Value::Table(fields), at }
            }
            Merged::Array(tag, values) => self.array(*tag, values, cursors, path),
            leaf => Node { value: leaf_value(leaf), at: self.spot(leaf.tag(), cursors, path) },
        }
    }

    fn field<'p>(
        &self,
        name: &'p str,
        value: &'p Merged,
        cursors: &[Cursor<'_>],
        path: &mut Vec<&'p str>,
    ) -> Field {
        let below: Vec<Cursor<'_>> = cursors.iter().filter_map(|cursor| cursor.below(name)).collect();
        path.push(name);
        let node = self.node(value, &below, path);
        let name_at = match &node.at {
            Spot::File(file, ..) => {
                below.iter().rfind(|cursor| cursor.file == *file).map_or(Spot::Default, Cursor::key_spot)
            }
            other => other.clone(),
        };
        path.pop();
        Field { name: name.to_owned(), name_at, node }
    }

    fn array<'p>(
        &self,
        tag: Tag,
        values: &'p [Merged],
        cursors: &[Cursor<'_>],
        path: &mut Vec<&'p str>,
    ) -> Node {
        let mut counted: BTreeMap<FileId, usize> = BTreeMap::new();
        let mut nodes = Vec::with_capacity(values.len());
        for value in values {
            let owner = self.file_of(value.tag());
            let cursor = owner.and_then(|file| {
                let next = counted.entry(file).or_default();
                let cursor = cursors.iter().find(|cursor| cursor.file == file)?;
                let item = cursor.item.element(*next)?;
                *next += 1;
                Some(Cursor { file, key: cursor.key.clone(), item })
            });
            nodes.push(self.node(value, cursor.as_slice(), path));
        }
        Node { value: Value::Array(nodes), at: self.spot(tag, cursors, path) }
    }

    fn spot(&self, tag: Tag, cursors: &[Cursor<'_>], path: &[&str]) -> Spot {
        if let Some(file) = self.file_of(tag) {
            return cursors.iter().rfind(|cursor| cursor.file == file).map_or(Spot::Default, Cursor::spot);
        }
        match self.figment.get_metadata(tag) {
            Some(layer) if layer.name == env::LAYER => self.environment.spot(path),
            _ => Spot::Default,
        }
    }

    fn file_of(&self, tag: Tag) -> Option<FileId> {
        let path = self.figment.get_metadata(tag)?.source.as_ref()?.file_path()?;
        self.files.get(path).copied()
    }
}
