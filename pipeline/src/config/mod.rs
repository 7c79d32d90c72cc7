//! From `pipelines.toml` to checked topologies.
//!
//! [`Loader`] reads the files and the environment (`reader`, `env`), merges them with figment (`layers`),
//! gives every value its place back (`tree`), checks it against the schemas (`walk`), wires the pipelines
//! (`pipelines`) and asks whether each may do what it does ([`authority`]). Every mistake becomes a
//! [`Diagnostic`]; nothing is opened but files.

pub mod authority;
mod changes;
mod diagnostic;
mod draft;
pub mod entry;
mod env;
mod followers;
mod glob;
mod layers;
mod letters;
mod loader;
mod pipelines;
mod problem;
mod reader;
mod render;
mod report;
mod schema;
mod secret;
mod section;
mod shape;
mod source;
mod suggest;
pub mod topology;
mod tree;
mod walk;
mod ways_in;
mod wiring;

#[cfg(test)]
mod tests;

pub(crate) use changes::is_same;
pub use changes::{Change, ChangeKind, changes};
pub use diagnostic::{Diagnostic, Diagnostics, Origin, Severity, Snippet};
pub use entry::{BatchLimits, OnError, PipelineEntry, Plane, RetryPolicy, StageEntry};
pub use loader::{Loaded, Loader, TestTable};
pub use render::{Style, render};
pub use section::{Section, reads_as};
pub use suggest::help as did_you_mean;
pub use topology::{Input, Policy, StageNode, Topology};
