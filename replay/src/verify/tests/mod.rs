//! A healthy deployment is found to be in order, at rest and while it is written to; each kind of damage is found, and
//! nothing else is said.

mod healthy;
mod lies;
mod live;
mod mutations;
mod property;
pub(crate) mod retention;
pub(crate) mod world;
