//! What happens to records on their way.

pub mod account_mutate;
pub mod chat_mutate;
pub mod dedupe;
pub mod filter;
pub mod map;
pub mod route;
pub mod throttle;
