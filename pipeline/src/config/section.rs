//! Top-level tables that other crates own, such as `[edge]`.

use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::spec::Problem;

/// One top-level table: its name, what may stand in it, and what holds when it does not.
#[derive(Clone, Copy)]
pub struct Section {
    pub name: &'static str,
    pub schema: fn() -> Schema,
    /// A table; values of the file and the environment replace its values.
    pub defaults: fn() -> Json,
    /// What the schema cannot say. Keys of the problems are paths below the table.
    pub check: fn(&Json) -> Result<(), Vec<Problem>>,
}

impl Section {
    /// The table that `T` reads. Its `Default` is the built-in layer, so `T` needs no `#[serde(default)]`.
    pub const fn of<T>(name: &'static str) -> Self
    where
        T: DeserializeOwned + Serialize + JsonSchema + Default,
    {
        Self { name, schema: schema_of::<T>, defaults: defaults_of::<T>, check: reads_as::<T> }
    }

    /// The same without built-in values: what `T` requires, the file must say.
    pub const fn without_defaults<T>(name: &'static str) -> Self
    where
        T: DeserializeOwned + JsonSchema,
    {
        Self { name, schema: schema_of::<T>, defaults: nothing, check: reads_as::<T> }
    }

    /// Replaces the check; it runs on tables that fit the schema.
    #[must_use]
    pub const fn check(mut self, check: fn(&Json) -> Result<(), Vec<Problem>>) -> Self {
        self.check = check;
        self
    }
}

fn schema_of<T: JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

fn defaults_of<T: Serialize + Default>() -> Json {
    // A table that cannot be written as JSON has no defaults; its tests see that at once.
    serde_json::to_value(T::default()).unwrap_or_default()
}

fn nothing() -> Json {
    Json::Object(serde_json::Map::new())
}

/// Whether a table reads as `T`.
pub fn reads_as<T: DeserializeOwned>(table: &Json) -> Result<(), Vec<Problem>> {
    T::deserialize(table).map(drop).map_err(|error| vec![Problem::new("", error.to_string())])
}
