//! Where records end.

pub mod blackhole;
pub mod file;
pub mod stdout;
