//! A body, a query or the id in a path, read as every route would.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| courant_edge::fuzzing::rest(input));
