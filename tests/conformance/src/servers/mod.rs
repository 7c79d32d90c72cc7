//! The servers that suites run on, each started by the test that needs it, and a proxy that does them harm.

mod dynoxide;
mod proxy;

pub use dynoxide::{Dynoxide, connect};
pub use proxy::{Fault, FaultyProxy};
