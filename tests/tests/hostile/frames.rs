//! Frames that no client should send.

use std::time::Duration;

use courant_tests::chat::Talk;
use courant_tests::home;
use courant_tests::raw::{BINARY, FINAL, PING, TEXT, frame, frame_head};
use tokio::time::timeout;

use super::{raw_socket, start};

/// Nonsense is answered as soon as it is heard; whoever waits for more of it does not close within this.
const SOON: Duration = Duration::from_secs(10);

/// More than a hundred sockets of nonsense may cost.
const ROOM_KIB: u64 = 64 << 10;

/// What is said, what it is, and the code the socket is closed with.
fn nonsense() -> Vec<(&'static str, Vec<u8>, u16)> {
    let text = |text: &str| frame(FINAL | TEXT, text.as_bytes());
    let unmasked = [&[FINAL | TEXT, 20][..], br#"{"type":"heartbeat"}"#].concat();
    let mut endless = frame(TEXT, &[b' '; 4000]);
    for _ in 0..20 {
        endless.extend(frame(0, &[b' '; 4000]));
    }
    vec![
        ("a frame that is too large", frame(FINAL | TEXT, &vec![b' '; 40_000]), 4413),
        ("one that says it will be", frame_head(FINAL | TEXT, 1 << 40), 4413),
        ("one that says it will be endless", frame_head(FINAL | TEXT, u64::MAX), 4413),
        ("fragments without an end", endless, 4413),
        ("no JSON", text("hello"), 4400),
        ("half of it", text(r#"{"type":"heartbeat""#), 4400),
        ("no text", frame(FINAL | TEXT, b"\xff\xfe"), 4400),
        ("brackets without an end", text(&"[".repeat(30_000)), 4400),
        ("objects without an end", text(&r#"{"a":"#.repeat(6000)), 4400),
        (
            "deep JSON before its type",
            text(&format!(r#"{{"x":{}{}}}"#, "[".repeat(9000), "]".repeat(9000))),
            4400,
        ),
        ("a binary frame", frame(FINAL | BINARY, br#"{"type":"heartbeat"}"#), 4400),
        ("no mask", unmasked, 4400),
        ("an extension nobody asked for", frame(FINAL | 0x40 | TEXT, b"x"), 4400),
        ("an unknown code", frame(FINAL | 0x3, b"x"), 4400),
        ("the rest of nothing", frame(FINAL, b"x"), 4400),
        ("half a ping", frame(PING, b"x"), 4400),
        ("a long ping", frame(FINAL | PING, &[0; 126]), 4400),
        ("half a close", frame(FINAL | 8, b"x"), 4400),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_closes_its_socket_with_its_code_and_nobody_else_notices() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let eve = courant.person("Eve").await;
    let before = courant.resident_kib();
    let sent = async {
        for _ in 0..5 {
            for (what, bytes, expected) in nonsense() {
                let mut socket = raw_socket(&mut courant, &eve).await;
                socket.send(&bytes).await;
                let closed = timeout(SOON, socket.closed()).await;
                assert_eq!(closed, Ok(Some(expected)), "{what}");
            }
        }
    };
    talk.goes_on(sent).await;
    let after = courant.resident_kib();
    assert!(after < before + ROOM_KIB, "{before} KiB became {after}");
}

/// Strange but right, or wrong and forgiven.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strange_frames_are_understood_and_typos_forgiven() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let eve = courant.person("Eve").await;
    let mut socket = raw_socket(&mut courant, &eve).await;
    let beat = br#"{"type":"heartbeat"}"#;
    let mut fragments = frame(TEXT, &beat[..1]);
    for byte in &beat[1..beat.len() - 1] {
        fragments.extend(frame(0, &[*byte]));
        fragments.extend(frame(FINAL | PING, b""));
    }
    fragments.extend(frame(FINAL, &beat[beat.len() - 1..]));
    // One byte at a time, each in a packet of its own if the system likes.
    for byte in fragments {
        socket.send(&[byte]).await;
    }
    assert_eq!(socket.next_json().await["type"], "heartbeat");
    let deep = format!(r#"{{"type":"heartbeat","x":{}{}}}"#, "[".repeat(9000), "]".repeat(9000));
    socket.send(&frame(FINAL | TEXT, deep.as_bytes())).await;
    assert_eq!(socket.next_json().await["code"], "BAD_FRAME");
    socket.send(&frame(FINAL | TEXT, beat)).await;
    assert_eq!(socket.next_json().await["type"], "heartbeat");
}
