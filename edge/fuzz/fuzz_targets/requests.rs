//! The text of a frame: nothing panics, and it is the same request wherever its `type` stands.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| courant_edge::fuzzing::request(text));
