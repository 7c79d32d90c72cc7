//! From records to rows.

use std::sync::Arc;

use courant_connectors::files::parquet::{Cell, Column, Row, Schema, SchemaError, Type};
use courant_pipeline::derived::Entry;
use courant_pipeline::spec::Problem;
use courant_pipeline::{Record, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::jq::{Expr, Json, Scalar};
use crate::times;

/// One column.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ColumnConfig {
    /// Letters, digits and `_`.
    pub name: String,
    /// What it holds.
    #[serde(rename = "type")]
    pub kind: ColumnType,
    /// Where its value comes from, in jq: `.` is the payload, `$key` the key, `$headers` the headers. The payload's field
    /// of the same name if left out.
    #[serde(default)]
    pub from: Option<String>,
    /// Whether a record may lack it, or have null. One that lacks any other is refused.
    #[serde(default)]
    pub optional: bool,
}

/// What a column holds. A record with something else is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnType {
    /// Text.
    String,
    /// A whole number of 64 bits.
    Int64,
    /// Any number.
    Double,
    /// True or false.
    Bool,
    /// ISO 8601 text such as `2026-01-30T14:30:00.000Z`, or milliseconds since 1970. Kept in milliseconds, UTC.
    Timestamp,
}

/// A table's columns and where their values come from.
pub(super) struct Columns {
    schema: Arc<Schema>,
    from: Vec<Expr>,
    /// Index of the column with the time that a row is about.
    time: Option<usize>,
}

impl Columns {
    pub(super) fn new(
        columns: Vec<ColumnConfig>,
        key: &[String],
        version: Option<&str>,
        time: Option<&str>,
    ) -> Result<Self, Vec<Problem>> {
        let (from, mut problems) = compile(&columns);
        let described = columns.into_iter().map(|ColumnConfig { name, kind, optional, .. }| {
            let kind = match kind {
                ColumnType::String => Type::String,
                ColumnType::Int64 => Type::Int64,
                ColumnType::Double => Type::Double,
                ColumnType::Bool => Type::Bool,
                ColumnType::Timestamp => Type::Timestamp,
            };
            Column { name, kind, optional }
        });
        let schema = match Schema::new(described.collect(), key, version) {
            Ok(schema) if problems.is_empty() => schema,
            Ok(_) => return Err(problems),
            Err(error) => {
                problems.push(Problem::new(key_at_fault(&error, key, version), error.to_string()));
                return Err(problems);
            }
        };
        if version.is_some() && key.is_empty() {
            return Err(vec![Problem::new("version", "rows replace each other only if there is a `key`")]);
        }
        let found = time.and_then(|name| schema.index_of(name));
        let is_time = found.is_some_and(|index| schema.columns()[index].kind == Type::Timestamp);
        if let (Some(name), false) = (time, is_time) {
            return Err(vec![Problem::new("time", format!("there is no timestamp column `{name}`"))]);
        }
        Ok(Self { schema: Arc::new(schema), from, time: found })
    }

    pub(super) fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    pub(super) fn row(&self, record: &mut Record) -> Result<Row, StageError> {
        let mut row = Vec::with_capacity(self.from.len());
        for (column, from) in self.schema.columns().iter().zip(&self.from) {
            let value = from.first(record)?;
            let cell = cell(column, value.as_ref())
                .map_err(|reason| StageError::reject(format!("fill column `{}`", column.name), reason))?;
            row.push(cell);
        }
        Ok(row)
    }

    pub(super) fn entry(&self, row: &Row) -> Entry {
        let at = match self.time.and_then(|index| row[index].as_ref()) {
            Some(Cell::Int(millis)) => u64::try_from(*millis).unwrap_or(0),
            _ => 0,
        };
        // the order of versions is kept, below zero as well
        let version = self.schema.version_of(row).cast_unsigned() ^ (1 << 63);
        Entry {
            key: self.schema.key_of(row),
            digest: self.schema.digest_of(row),
            version: if self.schema.has_version() { version } else { 0 },
            at,
        }
    }
}

/// Where values come from, and what is wrong with that.
fn compile(columns: &[ColumnConfig]) -> (Vec<Expr>, Vec<Problem>) {
    let (mut from, mut problems) = (Vec::with_capacity(columns.len()), Vec::new());
    for (index, column) in columns.iter().enumerate() {
        let code = column.from.clone().unwrap_or_else(|| format!(".{}", column.name));
        match Expr::on_record(format!("columns.{index}.from"), &code) {
            Ok(expr) => from.push(expr),
            Err(_) if column.from.is_none() => {} // the name is at fault, which the schema tells
            Err(more) => problems.extend(more),
        }
    }
    (from, problems)
}

/// The parameter that a person has to look at.
fn key_at_fault(error: &SchemaError, key: &[String], version: Option<&str>) -> &'static str {
    match error {
        SchemaError::Empty | SchemaError::SameName(_) | SchemaError::Name(_) => "columns",
        SchemaError::OptionalKey(_) => "key",
        SchemaError::Unknown(name) if key.contains(name) && version != Some(name) => "key",
        SchemaError::Unknown(_) | SchemaError::Version(_) => "version",
    }
}

/// Whole numbers that a floating-point number holds exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn cell(column: &Column, value: Option<&Json>) -> Result<Option<Cell>, String> {
    let value = value.map_or(Scalar::Null, Json::scalar);
    let cell = match (column.kind, &value) {
        (_, Scalar::Null) if column.optional => return Ok(None),
        (_, Scalar::Null) => {
            return Err("the record does not have it; say `optional` if that is right".to_owned());
        }
        (Type::String, Scalar::Text(text)) => Cell::Text(text.as_ref().into()),
        (Type::Int64, Scalar::Int(number)) => Cell::Int(*number),
        #[allow(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
        (Type::Int64, Scalar::Float(number)) if number.fract() == 0.0 && number.abs() <= EXACT => {
            Cell::Int(*number as i64)
        }
        (Type::Double, Scalar::Int(number)) => Cell::Double(*number as f64),
        (Type::Double, Scalar::Float(number)) => Cell::Double(*number),
        (Type::Bool, Scalar::Bool(truth)) => Cell::Bool(*truth),
        (Type::Timestamp, value) => {
            let millis = times::millis(value)?;
            Cell::Int(i64::try_from(millis).map_err(|_| "it is too far in the future".to_owned())?)
        }
        (kind, _) => return Err(format!("it is not {}", in_words(kind))),
    };
    Ok(Some(cell))
}

fn in_words(kind: Type) -> &'static str {
    match kind {
        Type::String => "text",
        Type::Int64 => "a whole number of 64 bits",
        Type::Double => "a number",
        Type::Bool => "true or false",
        Type::Timestamp => "a time",
    }
}
