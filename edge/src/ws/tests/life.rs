//! How sockets go on and how they end.

use std::sync::atomic::{AtomicUsize, Ordering};

use courant_connectors::live::Connections;
use courant_connectors::model::tables::sessions::revoke;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::*;

fn heartbeat() -> Value {
    json!({"type": "heartbeat"})
}

#[tokio::test]
async fn two_missed_heartbeats_end_a_socket() {
    let world = world().await;
    let (mut silent, _) = world.connect("user_1").await;
    let (mut alive, _) = world.connect("user_2").await;
    tokio::time::pause();
    let began = Instant::now();
    let beating = async {
        loop {
            tokio::time::sleep(Duration::from_secs(29)).await;
            alive.send(&heartbeat()).await.unwrap();
            assert_eq!(alive.next_json().await.unwrap()["type"], "heartbeat");
        }
    };
    let code = tokio::select! {
        // Without the limit of `closed`: more time passes than that.
        heard = silent.next() => heard,
        () = beating => unreachable!("it goes on"),
    };
    assert_eq!(code, Heard::Closed(Some(4408)));
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(59) && waited <= Duration::from_secs(63), "{waited:?}");
    assert_eq!(world.gateway.sockets(), 1);
}

/// A frame that comes byte by byte and never ends does not keep its socket open.
#[tokio::test]
async fn a_dribbled_frame_is_silence() {
    let world = world().await;
    world.sign_in("user_1", "sess_1").await;
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(upgrade_request("user_1/sess_1").as_bytes()).await.unwrap();
    world.until_sockets(1).await;
    // The head of a masked text frame of 1000 bytes.
    stream.write_all(&[0x81, 0xfe, 0x03, 0xe8, 0, 0, 0, 0]).await.unwrap();
    tokio::time::pause();
    let began = Instant::now();
    let (mut reader, mut writer) = stream.split();
    let dribbling = async {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            // It may be closed already.
            let _ = writer.write_all(b" ").await;
        }
    };
    let mut heard = Vec::new();
    tokio::select! {
        read = reader.read_to_end(&mut heard) => drop(read),
        () = dribbling => unreachable!("it goes on"),
        () = tokio::time::sleep(Duration::from_secs(200)) => panic!("it keeps its socket open"),
    }
    let said = 4408_u16.to_be_bytes();
    assert!(heard.windows(2).any(|bytes| bytes == said), "{}", String::from_utf8_lossy(&heard));
    assert!(began.elapsed() <= Duration::from_secs(70), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_session_that_ends_closes_its_sockets_and_no_others() {
    let world = world().await;
    let (mut phone, _) = world.connect("user_1").await;
    let laptop = world.sign_in("user_1", "sess_laptop").await;
    let (mut laptop, _) = welcomed(&laptop).await;
    let (mut other, _) = world.connect("user_2").await;
    let began = Instant::now();
    world.revoke("user_1", &["sess_user_1"]).await;
    assert_eq!(closed(&mut phone).await, Some(4401));
    assert!(began.elapsed() < Duration::from_secs(1));
    for socket in [&mut laptop, &mut other] {
        socket.send(&heartbeat()).await.unwrap();
        assert_eq!(frame(socket).await["type"], "heartbeat");
    }
    world.revoke("user_1", &[]).await;
    assert_eq!(closed(&mut laptop).await, Some(4401), "all of the user's");
}

/// Nothing that was waiting for a client is written to it once its session has ended.
#[tokio::test]
async fn what_a_revoked_client_says_is_not_obeyed() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    world.revoke("user_1", &[]).await;
    world.until_sockets(0).await;
    let _ = socket.send(&send_frame("c-1", "chat_1", "x")).await;
    assert_eq!(closed(&mut socket).await, Some(4401));
    assert!(commands.try_recv().is_err());
}

/// Lets the gateway look at the sessions of new sockets. The clock goes on by itself again after that: the store answers from
/// a thread of its own, and a clock that stands still would jump over whatever limits the wait for it.
async fn past_the_first_look() {
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(11)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn after_live_state_was_wiped_connections_come_back() {
    let world = world().await;
    let (mut ended, ended_id) = world.connect("user_1").await;
    let (_alive, _) = world.connect("user_2").await;
    past_the_first_look().await;
    revoke(&*world.store, &"sess_user_1".into()).await.unwrap();
    let all: Vec<_> =
        world.gateway.shared().registry.read().all().map(|peer| peer.connection.clone()).collect();
    world.live.unregister(&all).await.unwrap();
    assert_eq!(world.known("user_2").await, 0);
    // On a clock that goes by itself, since the store is asked in between: with the next sweep.
    let come_back = async {
        while world.known("user_2").await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, come_back).await.expect("they come back by themselves");
    assert_eq!(closed(&mut ended).await, Some(4401), "{ended_id} is not brought back");
    assert_eq!(world.known("user_1").await, 0);
}

#[tokio::test]
async fn a_gap_in_what_is_heard_looks_every_session_up() {
    let world = world().await;
    let (mut ended, _) = world.connect("user_1").await;
    let (mut alive, _) = world.connect("user_2").await;
    past_the_first_look().await;
    revoke(&*world.store, &"sess_user_1".into()).await.unwrap();
    let began = Instant::now();
    world.gateway.shared().registrations.gap();
    assert_eq!(closed(&mut ended).await, Some(4401));
    assert!(began.elapsed() < Duration::from_secs(1), "at once, not with the next sweep");
    alive.send(&heartbeat()).await.unwrap();
    assert_eq!(frame(&mut alive).await["type"], "heartbeat");
}

/// As long as a socket lives it is known, however long that is.
#[tokio::test]
async fn connections_stay_known() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    tokio::time::pause();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(15)).await;
        socket.send(&heartbeat()).await.unwrap();
        assert_eq!(socket.next_json().await.unwrap()["type"], "heartbeat");
        assert_eq!(world.known("user_1").await, 1);
    }
}

#[tokio::test]
async fn draining_answers_what_is_under_way_and_sends_clients_elsewhere() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut idle, _) = world.connect("user_1").await;
    let (mut busy, _) = world.connect("user_2").await;
    busy.send(&send_frame("c-1", "chat_1", "x")).await.unwrap();
    let (command, to) = timeout(LIMIT, commands.recv()).await.unwrap().unwrap();
    until(async || world.gateway.shared().registry.read().all().any(|peer| peer.in_flight() == 1)).await;
    world.stop.cancel();
    let drain = frame(&mut idle).await;
    let after = drain["reconnect_after_ms"].as_u64().unwrap();
    assert!(drain["type"] == "drain" && (1000..=10_000).contains(&after), "{drain}");
    assert_eq!(closed(&mut idle).await, Some(4503));
    assert_eq!(frame(&mut busy).await["type"], "drain");
    reply(to, sent(&command, 7));
    assert_eq!(frame(&mut busy).await["sequence"], 7);
    assert_eq!(closed(&mut busy).await, Some(4503));
    timeout(LIMIT, world.running).await.expect("it ends").unwrap();
    assert!(world.live.connections_on(&world.id).await.unwrap().is_empty(), "nobody is said to be here");
}

#[tokio::test]
async fn draining_is_bounded_and_refuses_newcomers() {
    let world = world().await;
    let _held = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    let late = world.sign_in("user_2", "sess_2").await;
    socket.send(&send_frame("c-1", "chat_1", "never answered")).await.unwrap();
    until(async || world.gateway.shared().registry.read().all().any(|peer| peer.in_flight() == 1)).await;
    let began = Instant::now();
    world.stop.cancel();
    assert_eq!(frame(&mut socket).await["type"], "drain");
    assert!(matches!(late.connect().await, Err(courant_client::ClientError::Refused { status: 503, .. })));
    tokio::time::pause();
    assert_eq!(closed(&mut socket).await, Some(4503), "its answer is not waited for");
    timeout(LIMIT, world.running).await.expect("it ends").unwrap();
    assert!(began.elapsed() <= Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_slow_reader_is_closed_and_others_hear_everything() {
    let world = world_with(SocketConfig { outbox_frames: limit(64), ..SocketConfig::default() }).await;
    let ((mut slow, first), (mut quick, second)) =
        (world.connect("user_1").await, world.connect("user_2").await);
    let heard = AtomicUsize::new(0);
    let content = "x".repeat(4000);
    // Until the kernel's buffers and the outbox are full; nobody reads the first one meanwhile.
    let publishing = async {
        for sequence in 1..=20_000_u64 {
            world.publish(&[first.clone(), second.clone()], &[sequence], &content).await;
            until(async || heard.load(Ordering::Relaxed) as u64 == sequence).await;
            if world.gateway.shared().registry.read().all().any(|peer| !peer.outbox.is_open()) {
                return sequence;
            }
        }
        panic!("it never came to be full");
    };
    let reading = async {
        loop {
            assert_eq!(frame(&mut quick).await["sequence"], heard.load(Ordering::Relaxed) as u64 + 1);
            heard.fetch_add(1, Ordering::Relaxed);
        }
    };
    let published = tokio::select! {
        published = publishing => published,
        () = reading => unreachable!("it goes on"),
    };
    assert_eq!(heard.load(Ordering::Relaxed) as u64, published, "the quick one missed nothing");
    assert_eq!(closed(&mut slow).await, Some(4504));
}

/// Its heartbeats are not read meanwhile, so that it takes something has to do.
#[tokio::test]
async fn a_slow_reader_is_not_silent_while_it_is_answered() {
    let heartbeat = courant_pipeline::units::Span::secs(1).try_into().unwrap();
    let world = world_with(SocketConfig { heartbeat, ..SocketConfig::default() }).await;
    world.join("chat_1", "user_1").await;
    // More than is read below and waits in the kernel.
    world.store_messages("chat_1", 1..=1000, &"x".repeat(36_000)).await;
    world.sign_in("user_1", "sess_1").await;
    let socket = TcpSocket::new_v4().unwrap();
    // The kernel would take everything for the reader otherwise.
    socket.set_recv_buffer_size(256 << 10).unwrap();
    let mut stream = socket.connect(world.address).await.unwrap();
    stream.write_all(upgrade_request("user_1/sess_1").as_bytes()).await.unwrap();
    world.until_sockets(1).await;
    let peer = world.gateway.shared().registry.read().all().next().cloned().unwrap();
    let asked = br#"{"type":"sync_request","chat_id":"chat_1","last_acked_sequence":0,"limit":1000}"#;
    // The head of a masked text frame that is short.
    stream.write_all(&[0x81, 0x80 | u8::try_from(asked.len()).unwrap(), 0, 0, 0, 0]).await.unwrap();
    stream.write_all(asked).await.unwrap();
    let (began, mut buffer) = (Instant::now(), vec![0; 32 << 10]);
    // Two heartbeats, how late a look may be, and a second to spare.
    while began.elapsed() < Duration::from_secs(4) {
        let read = timeout(LIMIT, stream.read(&mut buffer)).await.expect("more comes").unwrap();
        assert!(read > 0, "it is cut off");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(peer.outbox.is_open(), "it is closed");
    // Else everything was answered before it could be silent.
    until(async || peer.outbox.waiting_bytes() > 0).await;
}

/// A client that takes nothing at all does not hold its socket for ever.
#[tokio::test]
async fn a_stalled_reader_is_cut_off() {
    let world = world().await;
    let (_stalled, id) = world.connect("user_1").await;
    let content = "x".repeat(4000);
    let peer = world.gateway.shared().registry.read().get(&id).cloned().unwrap();
    let mut sequence = 0;
    until(async || {
        sequence += 1;
        world.publish(std::slice::from_ref(&id), &[sequence], &content).await;
        tokio::task::yield_now().await;
        peer.outbox.stalled_since().is_some()
    })
    .await;
    assert_eq!(world.gateway.sockets(), 1);
    let began = Instant::now();
    tokio::time::pause();
    world.until_sockets_paused(0).await;
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(10) && waited <= Duration::from_secs(13), "{waited:?}");
}

impl World {
    /// Lets time pass until the gateway has this many sockets.
    async fn until_sockets_paused(&self, count: usize) {
        let waiting = async {
            while self.gateway.sockets() != count {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(Duration::from_secs(120), waiting).await.expect("it comes to hold");
    }
}

/// A client that vanishes without a word, as when its network goes away, is silent and nothing else.
#[tokio::test]
async fn a_half_open_connection_ends_like_a_silent_one() {
    let world = world().await;
    let (socket, _) = world.connect("user_1").await;
    tokio::time::pause();
    world.until_sockets_paused(0).await;
    until(async || world.known("user_1").await == 0).await;
    drop(socket);
}
