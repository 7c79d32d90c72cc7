//! Where records come from.

pub mod generate;
