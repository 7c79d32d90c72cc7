//! The columns of a table, its rows, and what tells rows apart.

use std::fmt::Write as _;

use serde_json::json;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    String,
    Int64,
    Double,
    Bool,
    /// Milliseconds since 1970, in UTC.
    Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: Type,
    /// Whether rows may lack it.
    pub optional: bool,
}

/// A value; the kind that its column says.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Text(Box<str>),
    /// Of `int64` and `timestamp`.
    Int(i64),
    Double(f64),
    Bool(bool),
}

/// One value per column, in their order.
pub type Row = Vec<Option<Cell>>;

/// What a table's rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    columns: Vec<Column>,
    /// Indexes of the columns of which there is one row each; empty if rows are only ever added.
    key: Vec<usize>,
    /// Index of the column that says which of two rows of a key is the newer; the later one if there is none.
    version: Option<usize>,
}

/// Columns that make no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("a table needs at least one column")]
    Empty,
    #[error("two columns are called `{0}`")]
    SameName(String),
    #[error("`{0}` is no column name; write letters, digits and `_`")]
    Name(String),
    #[error("there is no column `{0}`")]
    Unknown(String),
    #[error("column `{0}` is part of the key and cannot be optional")]
    OptionalKey(String),
    #[error(
        "column `{0}` cannot say which row is newer; it must be an int64 or a timestamp that every row has"
    )]
    Version(String),
}

impl Schema {
    pub fn new(columns: Vec<Column>, key: &[String], version: Option<&str>) -> Result<Self, SchemaError> {
        if columns.is_empty() {
            return Err(SchemaError::Empty);
        }
        for (index, column) in columns.iter().enumerate() {
            let named = !column.name.is_empty()
                && column.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !column.name.starts_with(|c: char| c.is_ascii_digit());
            if !named {
                return Err(SchemaError::Name(column.name.clone()));
            }
            if columns[..index].iter().any(|other| other.name == column.name) {
                return Err(SchemaError::SameName(column.name.clone()));
            }
        }
        let find = |name: &str| {
            let found = columns.iter().position(|column| column.name == name);
            found.ok_or_else(|| SchemaError::Unknown(name.to_owned()))
        };
        let key = key.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(index) = key.iter().find(|index| columns[**index].optional) {
            return Err(SchemaError::OptionalKey(columns[*index].name.clone()));
        }
        let version = version.map(find).transpose()?;
        if let Some(column) = version.map(|index| &columns[index])
            && (column.optional || !matches!(column.kind, Type::Int64 | Type::Timestamp))
        {
            return Err(SchemaError::Version(column.name.clone()));
        }
        Ok(Self { columns, key, version })
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn index_of(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|found| found.name == column)
    }

    /// Whether a later row replaces an earlier one.
    pub fn has_key(&self) -> bool {
        !self.key.is_empty()
    }

    /// The columns that a look for earlier rows has to read.
    pub(super) fn telling(&self) -> Vec<usize> {
        let mut columns: Vec<usize> = self.key.iter().copied().chain(self.version).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// What tells the row from others: a JSON array of the key's values.
    pub fn key_of(&self, row: &Row) -> Box<str> {
        let cells = self.key.iter().map(|index| match &row[*index] {
            None => json!(null),
            Some(Cell::Text(text)) => json!(text),
            Some(Cell::Int(number)) => json!(number),
            Some(Cell::Double(number)) => json!(number),
            Some(Cell::Bool(truth)) => json!(truth),
        });
        serde_json::Value::Array(cells.collect()).to_string().into()
    }

    /// The key in 64 bits; two keys may share one.
    pub(super) fn fingerprint(key: &str) -> u64 {
        xxh3_64(key.as_bytes())
    }

    /// Whether a column says which of two rows of a key is the newer.
    pub fn has_version(&self) -> bool {
        self.version.is_some()
    }

    /// Which of two rows of a key counts: the greater; zero if the later one does.
    pub fn version_of(&self, row: &Row) -> i64 {
        match self.version.and_then(|index| row[index].as_ref()) {
            Some(Cell::Int(version)) => *version,
            _ => 0,
        }
    }

    /// The same for the same values, on every machine.
    pub fn digest_of(&self, row: &Row) -> u64 {
        let mut hasher = Xxh3::new();
        for cell in row {
            match cell {
                None => hasher.update(&[0]),
                Some(Cell::Text(text)) => {
                    hasher.update(&[1]);
                    hasher.update(&(text.len() as u64).to_le_bytes());
                    hasher.update(text.as_bytes());
                }
                Some(Cell::Int(number)) => {
                    hasher.update(&[2]);
                    hasher.update(&number.to_le_bytes());
                }
                Some(Cell::Double(number)) => {
                    hasher.update(&[3]);
                    hasher.update(&number.to_bits().to_le_bytes());
                }
                Some(Cell::Bool(truth)) => hasher.update(&[4, u8::from(*truth)]),
            }
        }
        hasher.digest()
    }

    /// As the format's own language says it.
    pub(super) fn message(&self) -> String {
        let mut text = String::from("message row {\n");
        for column in &self.columns {
            let presence = if column.optional { "optional" } else { "required" };
            let (physical, logical) = match column.kind {
                Type::String => ("binary", " (STRING)"),
                Type::Int64 => ("int64", ""),
                Type::Double => ("double", ""),
                Type::Bool => ("boolean", ""),
                Type::Timestamp => ("int64", " (TIMESTAMP(MILLIS,true))"),
            };
            let name = &column.name;
            writeln!(text, "  {presence} {physical} {name}{logical};")
                .expect("writing to a string does not fail");
        }
        text + "}"
    }
}
