//! Sending, acking, catching up and hearing of others.

use courant_connectors::model::commands::{Ack, Beyond};

use super::*;

#[tokio::test]
async fn an_ack_tells_what_became_of_a_message() {
    let world = world().await;
    world.answer_all();
    world.make_chat("chat_no").await;
    let (mut socket, _) = world.connect("user_1").await;
    socket.send(&send_frame("c-1", "chat_1", "hello")).await.unwrap();
    assert_eq!(
        frame(&mut socket).await,
        json!({
            "type": "ack", "client_message_id": "c-1", "chat_id": "chat_1", "sequence": 1, "message_id": "msg_1",
            "created_at": "2026-01-30T14:30:00.000Z", "deduplicated": false,
        })
    );
    socket.send(&send_frame("c-2", "chat_no", "hello")).await.unwrap();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["client_message_id"]), (&json!("NOT_A_MEMBER"), &json!("c-2")));
    assert_eq!((&error["retryable"], &error["retry_after_ms"]), (&json!(false), &Value::Null));
    socket.send(&send_frame("c-3", "chat_nowhere", "hello")).await.unwrap();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["client_message_id"]), (&json!("NOT_FOUND"), &json!("c-3")));
}

#[tokio::test]
async fn a_message_names_its_sender_and_its_connection() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    let full = json!({
        "type": "send_message", "client_message_id": "c-1", "chat_id": "chat_1", "content": "{}",
        "content_type": "application/json",
    });
    socket.send(&full).await.unwrap();
    let (command, to) = timeout(LIMIT, commands.recv()).await.unwrap().unwrap();
    let Command::SendMessage(send) = &command else { panic!("{command:?}") };
    assert_eq!((send.sender_id.as_str(), send.content.as_str()), ("user_1", "{}"));
    assert_eq!(send.content_type, "application/json");
    reply(to, sent(&command, 9));
    assert_eq!(frame(&mut socket).await["sequence"], 9);
}

/// Answers come when they come; a slow one holds up none behind it.
#[tokio::test]
async fn many_messages_are_under_way_and_answered_as_they_end() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    for n in 0..100 {
        socket.send(&send_frame(&format!("c-{n}"), "chat_1", "x")).await.unwrap();
    }
    let mut held = Vec::new();
    while held.len() < 100 {
        held.push(timeout(LIMIT, commands.recv()).await.unwrap().unwrap());
    }
    let id = |command: &Command| match command {
        Command::SendMessage(send) => send.client_message_id.to_string(),
        other => panic!("{other:?}"),
    };
    let order: Vec<_> = held.iter().map(|(command, _)| id(command)).collect();
    assert_eq!(order, (0..100).map(|n| format!("c-{n}")).collect::<Vec<_>>(), "handed in as they came");
    for (command, to) in held.into_iter().rev() {
        reply(to, sent(&command, 1));
    }
    let mut answered = Vec::new();
    while answered.len() < 100 {
        answered.push(frame(&mut socket).await["client_message_id"].as_str().unwrap().to_owned());
    }
    answered.sort_unstable();
    answered.dedup();
    assert_eq!(answered.len(), 100, "each once");
}

#[tokio::test]
async fn beyond_its_bound_a_socket_is_not_read() {
    let world = world_with(SocketConfig { max_in_flight: limit(3), ..SocketConfig::default() }).await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    for n in 0..5 {
        socket.send(&send_frame(&format!("c-{n}"), "chat_1", "x")).await.unwrap();
    }
    let mut held = Vec::new();
    while held.len() < 3 {
        held.push(timeout(LIMIT, commands.recv()).await.unwrap().unwrap());
    }
    let fourth = timeout(Duration::from_millis(100), commands.recv()).await;
    assert!(fourth.is_err(), "three wait for their answers");
    let (command, to) = held.remove(0);
    reply(to, sent(&command, 1));
    timeout(LIMIT, commands.recv()).await.expect("one was answered").unwrap();
    assert_eq!(frame(&mut socket).await["client_message_id"], "c-0");
}

#[tokio::test]
async fn a_message_that_takes_too_long_is_answered_once() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    socket.send(&send_frame("c-1", "chat_1", "x")).await.unwrap();
    let (command, to) = timeout(LIMIT, commands.recv()).await.unwrap().unwrap();
    tokio::time::pause();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["client_message_id"]), (&json!("TIMEOUT"), &json!("c-1")));
    assert_eq!(error["retryable"], true);
    reply(to, sent(&command, 1));
    socket.send(&json!({"type": "heartbeat"})).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "heartbeat", "the late answer is not told");
}

#[tokio::test]
async fn a_server_without_the_pipeline_says_so() {
    let world = world().await;
    drop(world.commands());
    let (mut socket, _) = world.connect("user_1").await;
    // Its source is gone, and another serves only acks.
    until(async || world.intake.serve(WEBSOCKET, &["ack".to_owned()]).await.is_ok()).await;
    socket.send(&send_frame("c-1", "chat_1", "x")).await.unwrap();
    let error = frame(&mut socket).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("UNAVAILABLE"), &json!(true)), "{error}");
}

#[tokio::test]
async fn of_many_acks_the_highest_is_handed_in() {
    let world = world().await;
    let mut commands = world.commands();
    let (mut socket, _) = world.connect("user_1").await;
    for sequence in [3, 9, 4] {
        socket.send(&json!({"type": "ack", "chat_id": "chat_1", "sequence": sequence})).await.unwrap();
    }
    socket.send(&json!({"type": "ack", "chat_id": "chat_2", "sequence": 1})).await.unwrap();
    let mut acks = Vec::new();
    while acks.len() < 2 {
        let (command, to) = timeout(LIMIT, commands.recv()).await.unwrap().unwrap();
        let Command::Ack(Ack { chat_id, user_id, sequence, beyond }) = command else { panic!("{command:?}") };
        assert_eq!(beyond, Beyond::AllThereIs, "a wrong one undoes none that came with it");
        acks.push((chat_id.to_string(), user_id.to_string(), sequence));
        drop(to);
    }
    acks.sort();
    let user = || "user_1".to_owned();
    assert_eq!(acks, [("chat_1".to_owned(), user(), 9), ("chat_2".to_owned(), user(), 1)]);
    socket.send(&json!({"type": "heartbeat"})).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "heartbeat", "acks are not answered");
}

fn sync(chat: &str, after: u64, limit: Option<u32>) -> Value {
    let mut frame = json!({"type": "sync_request", "chat_id": chat, "last_acked_sequence": after});
    if let Some(limit) = limit {
        frame["limit"] = limit.into();
    }
    frame
}

/// The sequences of a batch, and whether there are more.
fn batch(frame: &Value) -> (Vec<u64>, bool) {
    assert_eq!(frame["type"], "sync_batch", "{frame}");
    let messages = frame["messages"].as_array().unwrap();
    let sequences = messages.iter().map(|message| message["sequence"].as_u64().unwrap());
    (sequences.collect(), frame["has_more"].as_bool().unwrap())
}

#[tokio::test]
async fn catching_up_reads_the_store() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    world.join("chat_1", "user_1").await;
    world.store_messages("chat_1", (1..=250).filter(|n| n % 50 != 0), "x").await;
    socket.send(&sync("chat_1", 240, None)).await.unwrap();
    let first = frame(&mut socket).await;
    assert_eq!(batch(&first), ((241..250).collect(), false));
    assert_eq!(first["messages"][0]["message_id"], "msg_241");
    assert!(first["messages"][0].get("client_message_id").is_none(), "that is between sender and server");
    socket.send(&sync("chat_1", 0, Some(150))).await.unwrap();
    let (one, two) = (batch(&frame(&mut socket).await), batch(&frame(&mut socket).await));
    assert_eq!((one.0.len(), one.1, two.0.len(), two.1), (100, true, 50, true));
    assert_eq!((one.0[0], two.0[49]), (1, 153), "gaps are no messages");
    socket.send(&sync("chat_1", 153, Some(96))).await.unwrap();
    assert_eq!(batch(&frame(&mut socket).await), ((154..250).filter(|n| n % 50 != 0).collect(), false));
    socket.send(&sync("chat_1", 250, None)).await.unwrap();
    assert_eq!(batch(&frame(&mut socket).await), (vec![], false));
}

#[tokio::test]
async fn who_is_not_in_a_chat_reads_nothing_of_it() {
    let world = world().await;
    let (mut socket, _) = world.connect("user_1").await;
    world.make_chat("chat_1").await;
    world.store_messages("chat_1", 1..=3, "secret").await;
    for (chat, code) in [("chat_1", "NOT_A_MEMBER"), ("chat_2", "NOT_FOUND")] {
        socket.send(&sync(chat, 0, None)).await.unwrap();
        let error = frame(&mut socket).await;
        assert_eq!((&error["code"], &error["chat_id"]), (&json!(code), &json!(chat)));
    }
}

/// More than an outbox holds: it comes at the speed of the reader and does not close the socket.
#[tokio::test]
async fn a_long_answer_waits_for_room() {
    let small = SocketConfig {
        outbox_frames: limit(4),
        outbox_bytes: courant_pipeline::units::Size(256 << 10),
        ..SocketConfig::default()
    };
    let world = world_with(small).await;
    let (mut socket, _) = world.connect("user_1").await;
    world.join("chat_1", "user_1").await;
    world.store_messages("chat_1", 1..=1000, &"x".repeat(4096)).await;
    for _ in 0..3 {
        socket.send(&sync("chat_1", 0, Some(1000))).await.unwrap();
    }
    for _ in 0..3 {
        let mut got = Vec::new();
        while got.len() < 1000 {
            let (sequences, has_more) = batch(&frame(&mut socket).await);
            got.extend(sequences);
            assert_eq!(has_more, got.len() < 1000);
        }
        assert_eq!(got, (1..=1000).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn messages_reach_those_they_are_for_and_never_go_backwards() {
    let world = world().await;
    let ((mut one, first), (mut two, second)) =
        (world.connect("user_1").await, world.connect("user_2").await);
    world.publish(&[first.clone(), second.clone()], &[5, 6], "hi").await;
    world.publish(std::slice::from_ref(&first), &[4, 6, 5], "late").await;
    world.publish(&[first, second, "conn_elsewhere".into()], &[8], "hi").await;
    for socket in [&mut one, &mut two] {
        for (sequence, previous) in [(5, 4), (6, 5), (8, 7)] {
            let message = frame(socket).await;
            assert_eq!(message["sequence"], sequence, "{message}");
            assert_eq!(
                (&message["previous_sequence"], &message["content"]),
                (&json!(previous), &json!("hi"))
            );
        }
    }
}
