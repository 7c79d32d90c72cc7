//! A table as the engine below has it: what scans are measured against.

use fjall::Readable as _;

use super::super::Engine;
use super::read_error;
use crate::store::{Name, Result};

/// What was gone through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlainRows {
    pub rows: u64,
    /// Of their keys and values.
    pub bytes: u64,
}

impl Engine {
    /// Goes through all rows of a table at one moment, reads their keys and values and makes nothing of them. Blocks.
    pub fn plain_rows(&self, table: &Name) -> Result<PlainRows> {
        let (table, moment) = (self.table(table)?, self.shared.moment());
        let mut passed = PlainRows::default();
        for row in moment.iter(&table.rows) {
            let (key, value) = row.into_inner().map_err(read_error)?;
            passed.rows += 1;
            passed.bytes += (key.len() + value.len()) as u64;
        }
        Ok(passed)
    }
}
