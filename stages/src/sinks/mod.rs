//! Where records end.

pub mod blackhole;
pub mod file;
pub mod redis_deliver;
pub mod stdout;
