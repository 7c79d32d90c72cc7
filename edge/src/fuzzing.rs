//! What the fuzz targets in `fuzz/` call: the ways by which strangers' bytes come in, without a network. Only there with
//! `--cfg fuzzing`, which cargo-fuzz sets.

pub use crate::rest::fuzzing::rest;
pub use crate::ws::fuzzing::{frames, request};
