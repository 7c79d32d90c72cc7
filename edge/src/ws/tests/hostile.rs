//! Clients that do what they should not.

use tokio_tungstenite::tungstenite::Message as WsMessage;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame as WsFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};

use super::*;

/// The code a socket is closed with after it has said this.
async fn closed_after(world: &World, user: &str, said: Vec<WsMessage>) -> Option<u16> {
    let (socket, _) = world.connect(user).await;
    let (mut sender, mut heard) = socket.split();
    for message in said {
        // The server may have closed at the first.
        let _ = sender.send_raw(message).await;
    }
    loop {
        match timeout(LIMIT, futures::StreamExt::next(&mut heard)).await.expect("it is closed") {
            Some(Heard::Closed(code)) => return code,
            Some(Heard::Frame(_)) => {}
            None => return None,
        }
    }
}

fn part(opcode: Data, text: &str, is_final: bool) -> WsMessage {
    WsMessage::Frame(WsFrame::message(text.to_owned(), OpCode::Data(opcode), is_final))
}

#[tokio::test]
async fn what_is_no_frame_of_json_closes_with_4400() {
    let world = world().await;
    let cases = [
        ("not JSON", vec![WsMessage::text("hello")]),
        ("cut off", vec![WsMessage::text(r#"{"type":"heartbeat""#)]),
        ("binary", vec![WsMessage::binary(br#"{"type":"heartbeat"}"#.to_vec())]),
        ("a fragment of nothing", vec![part(Data::Continue, "x", true)]),
        ("two messages in one", vec![part(Data::Text, "x", false), part(Data::Text, "x", true)]),
    ];
    for (n, (what, said)) in cases.into_iter().enumerate() {
        assert_eq!(closed_after(&world, &format!("user_{n}"), said).await, Some(4400), "{what}");
    }
}

#[tokio::test]
async fn too_large_closes_with_4413() {
    let world = world().await;
    let large = WsMessage::text(format!(r#"{{"type":"heartbeat","x":"{}"}}"#, "x".repeat(40_000)));
    assert_eq!(closed_after(&world, "user_1", vec![large]).await, Some(4413));
    let parts =
        (0..20).map(|n| part(if n == 0 { Data::Text } else { Data::Continue }, &"x".repeat(4000), false));
    assert_eq!(closed_after(&world, "user_2", parts.collect()).await, Some(4413));
}

#[tokio::test]
async fn typos_are_answered_and_forgiven_a_few_times() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    for n in 1..=9 {
        socket.send(&json!({"type": "heartbeat", "sequnce": n})).await.unwrap();
        let error = frame(&mut socket).await;
        assert_eq!((&error["code"], &error["client_message_id"]), (&json!("BAD_FRAME"), &Value::Null));
        assert!(error["message"].as_str().unwrap().contains("sequnce"), "{error}");
    }
    assert_eq!(closed(&mut socket).await, Some(4400), "the ninth is one too many, and was answered");
}

#[tokio::test]
async fn typos_among_right_frames_are_forgiven_for_ever() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    for _ in 0..30 {
        socket.send(&json!({"type": "heratbeat"})).await.unwrap();
        assert_eq!(frame(&mut socket).await["code"], "BAD_FRAME");
        socket.send(&json!({"type": "heartbeat"})).await.unwrap();
        assert_eq!(frame(&mut socket).await["type"], "heartbeat");
    }
}

#[tokio::test]
async fn text_that_is_no_json_is_told_so_before_the_end() {
    let world = world().await;
    let (socket, _) = world.connect("user_1").await;
    let (mut sender, mut heard) = socket.split();
    sender.send_raw(WsMessage::text("hello")).await.unwrap();
    sender.send_raw(WsMessage::text(r#"{"type":"heartbeat"}"#)).await.unwrap();
    let mut next = async || timeout(LIMIT, futures::StreamExt::next(&mut heard)).await.expect("it goes on");
    let Some(Heard::Frame(text)) = next().await else { panic!("closed without a word") };
    let error: Value = serde_json::from_slice(&text).unwrap();
    conforms::check(&error);
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("BAD_FRAME")));
    assert_eq!(next().await, Some(Heard::Closed(Some(4400))), "and nothing after it is heard");
}

#[tokio::test]
async fn a_refused_message_is_named() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    let mut typo = send_frame("c-1", "chat_1", "x");
    typo["contnet"] = json!("y");
    socket.send(&typo).await.unwrap();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["client_message_id"]), (&json!("BAD_FRAME"), &json!("c-1")));
}

#[tokio::test]
async fn large_content_is_refused_by_name_and_the_socket_goes_on() {
    let world = world().await;
    world.answer_all();
    let (mut socket, _) = world.connect("user_1").await;
    socket.send(&send_frame("c-1", "chat_1", &"x".repeat(4097))).await.unwrap();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["client_message_id"]), (&json!("TOO_LARGE"), &json!("c-1")));
    socket.send(&send_frame("c-2", "chat_1", &"\u{1}".repeat(4096))).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "ack", "bytes of content count, not how they are escaped");
}

#[tokio::test]
async fn fragments_make_a_frame_and_pings_in_between_are_answered() {
    let world = world().await;
    let (socket, _) = world.connect("user_1").await;
    let (mut sender, mut heard) = socket.split();
    sender.send_raw(part(Data::Text, r#"{"type":"#, false)).await.unwrap();
    sender.send_raw(WsMessage::Ping(vec![1, 2].into())).await.unwrap();
    sender.send_raw(part(Data::Continue, r#""heartbeat"}"#, true)).await.unwrap();
    let answer = timeout(LIMIT, futures::StreamExt::next(&mut heard)).await.unwrap();
    assert_eq!(answer, Some(Heard::Frame(br#"{"type":"heartbeat"}"#.to_vec().into())));
}

#[tokio::test]
async fn a_client_that_closes_is_answered() {
    let world = world().await;
    for (n, (said, answered)) in
        [(Some(CloseFrame { code: CloseCode::Normal, reason: "bye".into() }), Some(1000)), (None, None)]
            .into_iter()
            .enumerate()
    {
        let code = closed_after(&world, &format!("user_{n}"), vec![WsMessage::Close(said)]).await;
        assert_eq!(code, answered);
    }
    world.until_sockets(0).await;
}

/// Answers that a client does not take bound what it can ask for.
#[tokio::test]
async fn a_flood_of_requests_without_reading_is_bounded() {
    let world = world().await;
    let (socket, id) = world.connect("user_1").await;
    let peer = world.gateway.shared().registry.read().get(&id).cloned().unwrap();
    let (mut sender, _unread) = socket.split();
    let flood = async {
        loop {
            let beats = (0..1000).map(|_| r#"{"type":"heartbeat"}"#.to_owned());
            if sender.send_all(beats).await.is_err() {
                return;
            }
        }
    };
    let stalled = until(async || peer.outbox.stalled_since().is_some() || !peer.outbox.is_open());
    tokio::select! {
        () = flood => {}
        () = stalled => {}
    }
    assert!(peer.outbox.waiting_bytes() <= 1 << 20, "{}", peer.outbox.waiting_bytes());
}

/// Whoever is told to slow down and does not is shown out.
#[tokio::test]
async fn too_many_messages_are_refused_and_then_close_with_4429() {
    let limits = LimitsConfig { messages: "3/min".parse().unwrap(), ..LimitsConfig::default() };
    let world = world_of(EdgeConfig { limits, ..EdgeConfig::default() }).await;
    world.answer_all();
    let (mut socket, _) = world.connect("user_1").await;
    let mut codes = Vec::new();
    for n in 0..20 {
        socket.send(&send_frame(&format!("c-{n}"), "chat_1", "x")).await.unwrap();
        let answer = frame(&mut socket).await;
        assert_eq!(answer["client_message_id"], format!("c-{n}"));
        if answer["type"] == "error" {
            assert!(answer["retryable"] == true && answer["retry_after_ms"].as_u64() > Some(0), "{answer}");
            codes.push(answer["code"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(codes, vec!["RATE_LIMITED"; 17], "three were allowed");
    assert_eq!(closed(&mut socket).await, Some(4429));
}

#[tokio::test]
async fn new_sockets_are_counted_by_address() {
    let limits = LimitsConfig { anonymous: "2/min".parse().unwrap(), ..LimitsConfig::default() };
    let world = world_of(EdgeConfig { limits, ..EdgeConfig::default() }).await;
    let client = world.sign_in("user_1", "sess_1").await;
    let _two = (welcomed(&client).await, welcomed(&client).await);
    match client.connect().await.err() {
        Some(courant_client::ClientError::Refused { status, body }) => {
            assert_eq!((status, &body["error"]["code"]), (429, &json!("RATE_LIMITED")));
        }
        other => panic!("{other:?}"),
    }
}
