//! The layers as figment providers: built-in defaults, files, environment.
//!
//! Among files, arrays are concatenated, so each file can bring pipelines, and a later file wins on other
//! values (`admerge`). Over the defaults, and for the environment, an array replaces the array (`merge`):
//! nobody who lists allowed origins wants the built-in ones besides.

use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider};
use toml_edit::{Item, TableLike};

use super::env::Environment;
use super::section::Section;
use super::source::{FileRole, SourceFile, Sources};

/// Merges all layers; each value's tag leads to the metadata of the layer it came from.
pub(super) fn merge(sections: &[Section], sources: &Sources, environment: &Environment) -> Figment {
    let files = sources.0.iter().fold(Figment::new(), |files, file| files.admerge(FileLayer(file)));
    Figment::from(Defaults(sections)).merge(files).merge(environment)
}

struct Defaults<'a>(&'a [Section]);

impl Provider for Defaults<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("defaults")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut tables = Dict::new();
        for section in self.0 {
            tables.insert(section.name.to_owned(), Value::serialize((section.defaults)())?);
        }
        Ok(Profile::Default.collect(tables))
    }
}

struct FileLayer<'a>(&'a SourceFile);

impl Provider for FileLayer<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::from("file", self.0.path.as_path())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut dict =
            self.0.document.as_ref().map(|document| dict_of(document.as_table())).unwrap_or_default();
        match self.0.role {
            FileRole::Config => drop(dict.remove("include")),
            FileRole::Tests => dict.retain(|key, _| key == "test"),
        }
        Ok(Profile::Default.collect(dict))
    }
}

fn dict_of(table: &dyn TableLike) -> Dict {
    table.iter().map(|(key, item)| (key.to_owned(), value_of_item(item))).collect()
}

fn value_of_item(item: &Item) -> Value {
    match item {
        Item::None => Value::from(Dict::new()),
        Item::Value(value) => value_of(value),
        Item::Table(table) => Value::from(dict_of(table)),
        Item::ArrayOfTables(tables) => {
            Value::from(tables.iter().map(|table| Value::from(dict_of(table))).collect::<Vec<_>>())
        }
    }
}

pub(super) fn value_of(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::from(text.value().as_str()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(flag) => Value::from(*flag.value()),
        toml_edit::Value::Datetime(time) => Value::from(time.value().to_string()),
        toml_edit::Value::Array(array) => Value::from(array.iter().map(value_of).collect::<Vec<_>>()),
        toml_edit::Value::InlineTable(table) => Value::from(dict_of(table)),
    }
}
