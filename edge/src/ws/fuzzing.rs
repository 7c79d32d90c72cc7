//! Frames and their text, as a socket reads them.

use super::codec::{Decoder, Heard, Violation};
use super::config::SocketConfig;
use super::request::{ClientFrame, Request, parse};

/// Reads bytes whole and in pieces, which must come to the same.
pub fn frames(bytes: &[u8], pieces: [u8; 4]) {
    let sizes = pieces.iter().cycle().map(|size| usize::from(*size) + 1);
    assert_eq!(heard(bytes, std::iter::once(usize::MAX)), heard(bytes, sizes));
}

fn heard(mut bytes: &[u8], sizes: impl Iterator<Item = usize>) -> (Vec<Request>, Result<(), Violation>) {
    let max_frame = usize::try_from(SocketConfig::default().max_frame.0).unwrap_or(usize::MAX);
    let (mut decoder, mut requests) = (Decoder::default(), Vec::new());
    for size in sizes {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        let mut hear = |heard: Heard<'_>| requests.extend(Request::of(heard));
        if let Err(violation) = decoder.decode(&mut piece.to_vec(), max_frame, &mut hear) {
            return (requests, Err(violation));
        }
        // A frame that is not whole and a message that is not, each in a vector that grows by doubling.
        assert!(decoder.kept() <= 4 * max_frame + 64, "{} bytes are kept", decoder.kept());
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    (requests, Ok(()))
}

/// Reads a frame the fast way, if its `type` comes first, and the way for any order, which must come to the same.
pub fn request(text: &[u8]) {
    let any_order = serde_json::from_slice::<ClientFrame<'_>>(text).map(ClientFrame::check);
    match (parse(text), any_order) {
        // Which of several mistakes is told depends on the way.
        (Request::Refuse { .. } | Request::NotJson, Err(_)) => {}
        (parsed, Ok(Ok(request) | Err(request))) => assert_eq!(parsed, request),
        (parsed, Err(error)) => panic!("{parsed:?} and {error}"),
    }
}
