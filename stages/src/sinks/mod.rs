//! Where records end.

pub mod blackhole;
pub mod stdout;
