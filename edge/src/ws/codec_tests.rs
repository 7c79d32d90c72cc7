use proptest::prelude::*;

use super::*;

const MAX: usize = 1000;

/// A frame as a client would send it.
fn client(first: u8, payload: &[u8]) -> Vec<u8> {
    let (header, mask) = (FrameHeader::default(), [7, 0, 250, 31]);
    let mut out = Vec::new();
    FrameHeader { mask: Some(mask), ..header }.format(payload.len() as u64, &mut out).unwrap();
    out[0] = first;
    let at = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[at..], mask);
    out
}

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// What is heard when the bytes come in pieces of this size.
fn heard(bytes: &[u8], piece: usize) -> (Vec<String>, Result<(), Violation>) {
    let (mut decoder, mut heard) = (Decoder::default(), Vec::new());
    for piece in bytes.to_vec().chunks_mut(piece) {
        let mut hear = |message: Heard<'_>| {
            heard.push(match message {
                Heard::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            });
        };
        if let Err(violation) = decoder.decode(piece, MAX, &mut hear) {
            return (heard, Err(violation));
        }
    }
    (heard, Ok(()))
}

#[test]
fn frames_are_heard_however_they_are_cut() {
    let bytes = [
        client(FINAL | TEXT, b"one"),
        client(TEXT, b"t"),
        client(FINAL | PING, b"?"),
        client(CONTINUE, b""),
        client(FINAL | CONTINUE, b"wo"),
        client(FINAL | TEXT, &[b'x'; 300]),
        client(FINAL | CLOSE, &1000_u16.to_be_bytes()),
    ]
    .concat();
    let expected = ["one", "Ping([63])", "two", &"x".repeat(300), "Close(Some(1000))"];
    for piece in [1, 2, 3, 7, bytes.len()] {
        assert_eq!(heard(&bytes, piece), (expected.map(str::to_owned).to_vec(), Ok(())), "pieces of {piece}");
    }
}

#[test]
fn nothing_is_kept_between_whole_frames() {
    let mut decoder = Decoder::default();
    let frame = client(FINAL | TEXT, b"hello");
    let (first, second) = frame.split_at(4);
    decoder.decode(&mut first.to_vec(), MAX, &mut |_| panic!("it is not whole")).unwrap();
    assert!(!decoder.partial.is_empty());
    decoder.decode(&mut second.to_vec(), MAX, &mut |_| {}).unwrap();
    assert_eq!((decoder.partial.capacity(), decoder.fragments.is_none()), (0, true));
}

#[test]
fn what_the_protocol_forbids_is_a_violation() {
    let unmasked = [FINAL | TEXT, 2, b'h', b'i'];
    let long_ping = client(FINAL | PING, &[0; 126]);
    let cases: [(&str, &[u8]); 9] = [
        ("unmasked", &unmasked),
        ("binary", &client(FINAL | BINARY, b"x")),
        ("an extension", &client(FINAL | 0x40 | TEXT, b"x")),
        ("an unknown opcode", &client(FINAL | 0x3, b"x")),
        ("an unknown control frame", &client(FINAL | 0xb, b"x")),
        ("half a ping", &client(PING, b"x")),
        ("a long ping", &long_ping),
        ("the rest of nothing", &client(FINAL | CONTINUE, b"x")),
        ("half a close code", &client(FINAL | CLOSE, b"x")),
    ];
    for (what, bytes) in cases {
        assert_eq!(heard(bytes, 99), (vec![], Err(Violation::Protocol)), "{what}");
    }
    let nested = [client(TEXT, b"a"), client(FINAL | TEXT, b"b")].concat();
    assert_eq!(heard(&nested, 99).1, Err(Violation::Protocol), "a message within another");
}

#[test]
fn too_large_is_said_before_it_has_come() {
    let mut header = Vec::new();
    FrameHeader { mask: Some([0; 4]), opcode: OpCode::Data(Data::Text), ..FrameHeader::default() }
        .format(1 << 40, &mut header)
        .unwrap();
    assert_eq!(heard(&header, 99).1, Err(Violation::TooLarge));
    let pieces = [client(TEXT, &[b'x'; MAX]), client(FINAL | CONTINUE, b"y")].concat();
    assert_eq!(heard(&pieces, 4096).1, Err(Violation::TooLarge), "pieces count together");
    assert_eq!(heard(&client(FINAL | TEXT, &[b'x'; MAX]), 4096).1, Ok(()));
}

#[test]
fn what_came_before_a_violation_is_heard() {
    let bytes = [client(FINAL | TEXT, b"good"), client(FINAL | BINARY, b"bad")].concat();
    assert_eq!(heard(&bytes, 99), (vec!["good".to_owned()], Err(Violation::Protocol)));
}

#[test]
fn written_frames_have_the_shortest_header() {
    assert_eq!(&text(b"hi")[..], b"\x81\x02hi");
    assert_eq!(text(&[b'x'; 126])[..4], [0x81, 126, 0, 126]);
    assert_eq!(&close(4504, "slow")[..], b"\x88\x06\x11\x98slow");
    assert_eq!(&pong(b"")[..], b"\x8a\x00");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), piece in 1_usize..500) {
        let _ = heard(&bytes, piece);
    }

    /// The same, past the first header: a valid one with anything behind it.
    #[test]
    fn random_frames_never_panic(
        frames in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..20),
        piece in 1_usize..500,
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| client(*first, payload)).collect();
        let whole = heard(&bytes, bytes.len().max(1));
        prop_assert_eq!(heard(&bytes, piece), whole, "pieces make no difference");
    }
}
