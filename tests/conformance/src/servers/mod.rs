//! Real servers, started by the tests that need them and ended with them.

pub mod redis;
