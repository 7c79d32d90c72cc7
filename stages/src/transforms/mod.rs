//! What happens to records on their way.

pub mod filter;
pub mod map;
