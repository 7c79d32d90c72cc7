//! From `pipelines.toml` to checked topologies.

pub mod entry;
pub mod topology;

pub use entry::{BatchLimits, OnError, PipelineEntry, Plane, RetryPolicy, StageEntry};
pub use topology::{Input, Policy, StageNode, Topology};
