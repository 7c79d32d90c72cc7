//! The servers that suites run on, each started by the test that needs it.

mod dynoxide;

pub use dynoxide::{Dynoxide, connect};
