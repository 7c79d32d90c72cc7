//! Bytes of a socket, in pieces of any size: nothing panics, memory is bounded, and how they are cut makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[derive(Debug, arbitrary::Arbitrary)]
struct Came<'a> {
    pieces: [u8; 4],
    bytes: &'a [u8],
}

fuzz_target!(|came: Came<'_>| courant_edge::fuzzing::frames(came.bytes, came.pieces));
