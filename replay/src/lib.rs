//! The same stages from another start, and whether what there is is as it should be.
//!
//! [`redrive`] runs dead letters again from the stage that gave up on them; it does no stage's work itself: a topology is
//! given another source and run as it is. [`rebuild`] does the same with the whole history of a pipeline, into a store beside
//! the live one. [`positions`] sets where a pipeline goes on in the log. [`verify`] checks a deployment against the
//! invariants of its design; [`reconcile`] and [`counters`] put right what it can find and only a person may decide on.

pub mod counters;
pub mod positions;
pub mod rebuild;
pub mod reconcile;
pub mod redrive;
pub mod verify;
mod writes;
