//! The same stages from another start.
//!
//! [`redrive`] runs dead letters again from the stage that gave up on them. Nothing here does a stage's work itself:
//! a topology is given another source and run as it is.

pub mod redrive;
