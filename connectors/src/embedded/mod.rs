//! What stands in for the servers on a machine that has none.

pub mod live;

pub use live::MemoryLive;
