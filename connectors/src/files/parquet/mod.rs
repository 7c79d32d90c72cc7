//! A table of Parquet files that any program can read with a glob, and that is never seen half written.
//!
//! `<folder>/current/*.parquet` is the table. `current` is a link to a *snapshot*, a folder with exactly the files that
//! count; every write makes the next snapshot beside it (new files, hard links to those that stay, and a note of the
//! writer's) and replaces the link in one step. So rows, the merging of small files, the removal of rows that newer
//! ones replace, and how far the writer has come all become visible and durable together, or not at all after a crash.
//!
//! Rejected: a list of files beside them, as lake formats have, which plain readers do not follow; and merging in
//! place, which shows rows twice or not at all for a moment.
//!
//! - `schema`: columns, rows, and what tells rows apart. `file`: one Parquet file. `snapshot`: the folders and the link.
//! - `table`: writing. `merge`: which files become one.

mod file;
mod merge;
mod schema;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use schema::{Cell, Column, Row, Schema, SchemaError, Type};
pub use table::{Table, walk};
