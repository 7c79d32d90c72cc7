//! What happens to records on their way.

pub mod account_mutate;
pub mod agent;
pub mod cache_invalidate;
pub mod change_to_event;
pub mod chat_mutate;
pub mod dedupe;
pub mod dynamo_persist;
pub mod filter;
pub mod map;
pub mod membership_resolve;
pub mod route;
pub mod throttle;
pub mod window;
