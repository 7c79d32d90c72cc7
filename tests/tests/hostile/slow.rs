//! Clients that take their time.

use std::collections::BTreeSet;
use std::time::Duration;

use courant_client::{Heard, SignedIn, Socket};
use courant_tests::chat::{Talk, connect, group, next_of};
use courant_tests::raw::{RawSocket, connect_from, frame_head, upgrade_request};
use courant_tests::{Courant, LIMIT, home, until};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::{address, bearer, raw_socket, start};

/// Between two bytes of somebody who takes their time.
const DRIBBLE: Duration = Duration::from_millis(200);
/// Slow clients of each kind.
const OF_EACH: usize = 50;
/// How much later than its time a connection may be cut on a busy machine.
const LATE: Duration = Duration::from_secs(10);
/// Room for the outboxes of a few slow readers, and for what a busy server needs anyway.
const ROOM_KIB: u64 = 96 << 10;

/// Sends byte by byte until the server has had enough; what it said, and how long that took.
async fn dribble(mut stream: TcpStream, at_once: &str, then: u8) -> (String, Duration) {
    let begun = Instant::now();
    stream.write_all(at_once.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let dribbling = async {
        loop {
            sleep(DRIBBLE).await;
            if writer.write_all(&[then]).await.is_err() {
                // The rest is heard.
                std::future::pending::<()>().await;
            }
        }
    };
    let mut said = Vec::new();
    let ended = timeout(LIMIT, reader.read_to_end(&mut said));
    tokio::select! {
        ended = ended => drop(ended.expect("it is cut off")),
        () = dribbling => unreachable!("it goes on"),
    }
    (String::from_utf8_lossy(&said).into_owned(), begun.elapsed())
}

/// A head, a body and an upgrade that never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dribbles_a_request_is_cut_off_in_time() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let (to, before) = (address(&mut courant), courant.resident_kib());
    let head = "GET /health/live HTTP/1.1\r\nhost: courant\r\nx-slow: ";
    let body = "POST /api/v1/auth/login HTTP/1.1\r\nhost: courant\r\ncontent-type: application/json\r\n\
                content-length: 1000\r\n\r\n{";
    let upgrade = upgrade_request("/ws", &[("x-slow", "")]);
    let upgrade = upgrade.trim_end();
    let (in_15, in_10) = (Duration::from_secs(15), Duration::from_secs(10));
    let kinds =
        [(head, b'x', in_15, None), (upgrade, b'x', in_15, None), (body, b' ', in_10, Some("BAD_REQUEST"))];
    let slow = kinds.iter().flat_map(|kind| std::iter::repeat_n(kind, OF_EACH)).map(
        async |&(at_once, then, limit, expected)| {
            let (said, took) = dribble(connect_from(7, to).await.unwrap(), at_once, then).await;
            assert!(took + Duration::from_secs(1) >= limit && took <= limit + LATE, "{took:?} for {at_once}");
            match expected {
                Some(code) => assert!(said.contains(code), "{said}"),
                None => assert!(!said.contains("HTTP/1.1 2"), "{said}"),
            }
        },
    );
    talk.goes_on(join_all(slow)).await;
    let after = courant.resident_kib();
    assert!(after < before + ROOM_KIB, "{before} KiB became {after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dribbled_frame_is_silence() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[("COURANT_EDGE__SOCKET__HEARTBEAT", "2s")]);
    let eve = courant.person("Eve").await;
    let mut socket = raw_socket(&mut courant, &eve).await;
    socket.send(&frame_head(0x81, 30_000)).await;
    let begun = Instant::now();
    let closed = async {
        while timeout(DRIBBLE, socket.stream.readable()).await.is_err() {
            socket.send(b" ").await;
        }
        socket.closed().await
    };
    assert_eq!(timeout(LIMIT, closed).await.unwrap(), Some(4408));
    assert!(begun.elapsed() < Duration::from_secs(4) + LATE, "{:?}", begun.elapsed());
}

/// Asks over one connection again and again and reads no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_not_piled_up() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let (to, before) = (address(&mut courant), courant.resident_kib());
    let requests = "OPTIONS /api/v1/chats HTTP/1.1\r\nhost: courant\r\n\r\n".repeat(1000);
    let deaf = join_all((0..4).map(async |_| {
        let mut stream = connect_from(7, to).await.unwrap();
        // Until it is cut off.
        while stream.write_all(requests.as_bytes()).await.is_ok() {}
    }));
    timeout(LIMIT, talk.goes_on(deaf)).await.expect("it is cut off");
    let after = courant.resident_kib();
    assert!(after < before + ROOM_KIB, "{before} KiB became {after}");
}

/// A socket of somebody who will not read: the system keeps little for them.
async fn deaf_socket(courant: &mut Courant, who: &SignedIn) -> RawSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address(courant)).await.unwrap();
    let mut socket = RawSocket::open(stream, &[("authorization", &bearer(who))]).await.unwrap();
    assert_eq!(socket.next_json().await["type"], "welcome");
    socket
}

/// Sends large messages until `enough`; how many were sent and acknowledged.
async fn chatter(from: Socket, chat: &str, mut enough: impl FnMut() -> bool) -> u64 {
    let (mut sender, mut heard) = from.split();
    let content = "x".repeat(4000);
    let mut sent = 0_u64;
    loop {
        let batch = (sent..sent + 50).map(|n| {
            json!({"type": "send_message", "client_message_id": format!("m-{n}"), "chat_id": chat, "content": content})
                .to_string()
        });
        sender.send_all(batch).await.unwrap();
        let mut acked = 0;
        while acked < 50 {
            let next = timeout(LIMIT, futures::StreamExt::next(&mut heard)).await.unwrap();
            let Some(Heard::Frame(text)) = next else { panic!("{next:?}") };
            let frame: Value = serde_json::from_slice(&text).unwrap();
            assert_ne!(frame["type"], "error", "{frame}");
            acked += u32::from(frame["type"] == "ack");
        }
        sent += 50;
        if enough() {
            return sent;
        }
        assert!(sent < 20_000, "nobody was found to be slow");
    }
}

/// Everything of a chat by `sync_request`, as a client that comes back does.
async fn catch_up(socket: &mut Socket, chat: &str, mut after: u64) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    loop {
        let request =
            json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": after, "limit": 500});
        socket.send(&request).await.unwrap();
        let mut got = 0;
        loop {
            let batch = next_of(socket, "sync_batch").await;
            let messages = batch["messages"].as_array().unwrap();
            got += messages.len();
            all.extend(messages.iter().map(|message| message["sequence"].as_u64().unwrap()));
            if batch["has_more"] == false {
                return all;
            }
            if got == 500 {
                break;
            }
        }
        after = all.last().copied().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_closed_and_catches_up_with_nothing_lost() {
    let home = home!().with_shipped_pipelines();
    let mut courant = start(&home, &[]);
    let mut talk = Talk::begin(&mut courant).await;
    let (ann, eve, bob) =
        (courant.person("Ann").await, courant.person("Eve").await, courant.person("Bob").await);
    let chat = group(&[&ann, &eve, &bob]).await;
    let (anns, mut bobs) = (connect(&ann).await, connect(&bob).await);
    let mut comes_back = deaf_socket(&mut courant, &eve).await;
    let _never_reads = deaf_socket(&mut courant, &eve).await;
    let before = courant.resident_kib();
    let hearing = tokio::spawn(async move {
        let mut heard = BTreeSet::new();
        while let Some(frame) = bobs.next_json().await {
            if frame["type"] == "message" {
                heard.insert(frame["sequence"].as_u64().unwrap());
            }
            if frame["content"] == "the end" {
                return heard;
            }
        }
        panic!("a member who reads was closed");
    });
    let are_slow = || courant.metric("courant_ws_deliveries_total", "overflowed") >= 2.0;
    let sent = talk.goes_on(chatter(anns, &chat, are_slow)).await;
    assert_eq!(comes_back.closed().await, Some(4504));
    let most = courant.resident_kib();
    assert!(most < before + ROOM_KIB, "{before} KiB became {most}");

    let mut anns = connect(&ann).await;
    anns.send_message(&chat, "the-end", "the end").await.unwrap();
    next_of(&mut anns, "ack").await;
    let everything: BTreeSet<u64> = (1..=sent + 1).collect();
    assert_eq!(timeout(LIMIT, hearing).await.unwrap().unwrap(), everything, "who reads hears everything");
    let mut again = connect(&eve).await;
    assert_eq!(catch_up(&mut again, &chat, 0).await, everything);
    // Who never reads is cut: they are not even told. Left are those who talk, Ann and Eve.
    until("the other is cut off", LIMIT, || {
        (courant.metric("courant_ws_connections", "") <= 4.0).then_some(())
    });
    assert!(courant.metric("courant_ws_closes_total", "4504") >= 2.0);
}
