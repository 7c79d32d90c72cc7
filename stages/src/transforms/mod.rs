//! What happens to records on their way.

pub mod dedupe;
pub mod dynamo_persist;
pub mod filter;
pub mod map;
pub mod route;
pub mod throttle;
