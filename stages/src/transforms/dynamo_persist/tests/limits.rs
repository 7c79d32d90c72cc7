//! What cannot be a message, and how messages are put into transactions.

use courant_connectors::model::commands::{Ack, Beyond, Code};
use courant_pipeline::{Payload, spec::Level, spec::Mode};

use super::super::write::{MESSAGES_PER_TRANSACTION, pack};
use super::*;
use crate::testing::build;

/// A record as a file could hold it.
fn written(chat: &str, key: &str, change: impl Fn(&mut serde_json::Value)) -> Record {
    let mut command = json!({
        "command": "send_message", "chat_id": chat, "sender_id": ANN, "client_message_id": "c-1",
        "content": "hello", "content_type": "text/plain",
    });
    change(&mut command);
    Record::new(Payload::from(command.to_string())).with_key(key)
}

#[tokio::test]
async fn what_cannot_be_a_message_is_refused_and_the_rest_is_stored() {
    let (world, stage) = world().await;
    let chat = world.chat(&[ANN]).await;
    let with = |field: &'static str, text: String| {
        written(chat.as_str(), chat.as_str(), move |command| command[field] = text.clone().into())
    };
    let records = vec![
        with("content", String::new()),
        with("content", "x".repeat(4097)),
        with("content", "ä".repeat(2049)),
        with("client_message_id", String::new()),
        with("client_message_id", "x".repeat(129)),
        with("client_message_id", "line\nfeed".into()),
        with("client_message_id", "ä".into()),
        with("content_type", String::new()),
        with("content_type", "x".repeat(256)),
        with("sender_id", "x".repeat(129)),
        written(chat.as_str(), "another key", |_| {}),
        written("", "", |_| {}),
        commands::record(Command::Ack(Ack {
            chat_id: chat.clone(),
            user_id: ANN.into(),
            sequence: 1,
            beyond: Beyond::Refused,
        })),
        with("content", "x".repeat(4096)),
    ];
    let told = tell(&*stage, records).await;
    let (bad, large) = (Told::Refused(Code::BadRequest), Told::Refused(Code::TooLarge));
    assert_eq!(told[..3], [bad.clone(), large.clone(), large]);
    assert_eq!(told[3..13], vec![bad; 10]);
    assert_eq!(told[13], Told::Sent(1));
}

#[tokio::test]
async fn what_is_no_command_is_rejected_for_the_dead_letters() {
    let (_world, stage) = world().await;
    let told = tell(&*stage, vec![Record::new(Payload::from_static("{nope")).with_key("k")]).await;
    assert!(matches!(&told[0], Told::Rejected(error) if error.starts_with("read the command")), "{told:?}");
}

#[test]
fn what_it_touches_is_declared() {
    let built = build(&SPEC, json!({}), &courant_pipeline::Services::default()).unwrap();
    let declared: Vec<_> = built.access.iter().map(|access| (access.mode, access.name.as_str())).collect();
    assert_eq!(
        declared,
        [
            (Mode::Read, "chat_memberships"),
            (Mode::Read, "idempotency_keys"),
            (Mode::Write, "idempotency_keys"),
            (Mode::Write, "chat_counters"),
            (Mode::Write, "messages"),
        ]
    );
    assert!(built.access.iter().all(|access| access.level == Level::Store));
}

#[tokio::test]
async fn without_connections_it_does_not_open() {
    let stage = crate::testing::stage(&SPEC, json!({}));
    let error = stage.open().await.unwrap_err().to_string();
    assert_eq!(error, "use the connections: this process was started without connections");
}

#[test]
fn whole_chats_go_together_and_large_ones_alone() {
    let sizes = |chats: &[usize]| -> Vec<usize> {
        pack(chats.iter().map(|size| vec![(); *size]).collect()).iter().map(Vec::len).collect()
    };
    assert_eq!(MESSAGES_PER_TRANSACTION, 50);
    assert_eq!(sizes(&[30, 30, 20, 10, 10]), [50, 50]);
    assert_eq!(sizes(&[120, 1, 49]), [120, 50]);
    assert_eq!(sizes(&[50, 50]), [50, 50]);
    assert_eq!(sizes(&[]), [0usize; 0]);
}
