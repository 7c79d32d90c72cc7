//! On the embedded engine: who signs up and in, who is guessing, and what is left when something fails on the way.

mod phones;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::live::{Channel, Connection, Heard, Listener};
use courant_connectors::model::commands::{
    EndSessions, InUseFrom, OpenSession, Register, RotateSession, SendMessage, VerifyPhone,
};
use courant_connectors::model::frames::Revoked;
use courant_connectors::model::tables::users::Credentials;
use courant_connectors::model::{DeviceId, SessionId, UserId};
use courant_connectors::store::StoreError;
use courant_pipeline::{Payload, Record, Stage};

use super::*;
use crate::testing::embedded::{Embedded, Told, carry, record, told};
use crate::testing::faulty::Fault;

const PHONE: &str = "+41791234567";

struct World {
    embedded: Embedded,
    stage: Arc<dyn Stage>,
}

impl World {
    async fn new() -> Self {
        let embedded = Embedded::new().await;
        let stage = embedded.stage(&SPEC);
        Self { embedded, stage }
    }

    async fn ask(&self, command: impl Into<Record>) -> Told {
        carry(&*self.stage, command).await
    }

    async fn credentials(&self, phone: &str) -> Option<Credentials> {
        users::credentials(&*self.embedded.store, phone).await.unwrap()
    }

    async fn is_signed_in(&self, session: &str) -> bool {
        let found = session_table::current(&*self.embedded.store, &session.into(), now()).await;
        found.unwrap().is_some()
    }

    /// A socket of a user's device.
    async fn connect(&self, user: &str, device: &str) -> Connection {
        let connection = Connection {
            id: format!("conn_{user}_{device}").into(),
            user: user.into(),
            device: device.into(),
            gateway: "gw_1".into(),
            connected_at: clock::now(),
        };
        self.embedded.connected.live.register(&connection).await.unwrap();
        connection
    }

    /// The devices that a user is connected with.
    async fn connected(&self, user: &str) -> Vec<String> {
        let found = self.embedded.connected.live.connections_of(&[user.into()]).await.unwrap();
        let mut devices: Vec<_> = found[0].iter().map(|connection| connection.device.to_string()).collect();
        devices.sort();
        devices
    }

    /// A gateway's ear.
    async fn listen(&self) -> Box<dyn Listener> {
        self.embedded.connected.live.subscribe(&[Channel::revoked_sessions()]).await.unwrap()
    }
}

async fn heard(listener: &mut dyn Listener) -> (String, Vec<String>) {
    let heard = tokio::time::timeout(Duration::from_secs(30), listener.next()).await.expect("told").unwrap();
    let Heard::Message { payload, .. } = heard else { panic!("{heard:?}") };
    let Revoked { user_id, session_ids } = serde_json::from_slice(&payload).unwrap();
    (user_id.to_string(), session_ids.iter().map(ToString::to_string).collect())
}

fn registration(user: &str, phone: &str, code: &str) -> Register {
    Register {
        user_id: user.into(),
        phone_number: phone.to_owned(),
        display_name: format!("the one of {user}"),
        password_hash: format!("$argon2id${user}"),
        code: code.to_owned(),
        code_expires_at: now().plus(Duration::from_secs(600)),
        in_use_from: InUseFrom::Verification,
    }
}

/// Registered so long ago that the code has expired.
fn registered_before(user: &str, phone: &str, code: &str) -> Record {
    let code_expires_at = Timestamp::from_unix_millis(1);
    record(Command::Register(Register { code_expires_at, ..registration(user, phone, code) }))
}

fn register(user: &str, phone: &str, code: &str) -> Record {
    record(Command::Register(registration(user, phone, code)))
}

fn verify(phone: &str, code: &str) -> Record {
    record(Command::VerifyPhone(VerifyPhone { phone_number: phone.to_owned(), code: code.to_owned() }))
}

fn open(session: &str, user: &str, device: &str) -> Record {
    record(Command::OpenSession(OpenSession {
        session_id: session.into(),
        user_id: user.into(),
        device_id: device.into(),
        device_name: Some("phone".to_owned()),
        refresh_token_hash: format!("{session}-0"),
        expires_at: now().plus(Duration::from_secs(3600)),
    }))
}

/// Spends one token of a session for another.
fn rotate(session: &str, spent: u32, new: u32) -> Record {
    record(Command::RotateSession(RotateSession {
        session_id: session.into(),
        spent_hash: format!("{session}-{spent}"),
        new_hash: format!("{session}-{new}"),
        expires_at: now().plus(Duration::from_secs(7200)),
    }))
}

fn end(user: &str, session: Option<&str>) -> Record {
    let session_id = session.map(SessionId::from);
    record(Command::EndSessions(EndSessions { user_id: user.into(), session_id }))
}

fn rename(user: &str, name: &str) -> Record {
    let (user_id, display_name) = (UserId::from(user), name.to_owned());
    record(Command::EditProfile(EditProfile { user_id, display_name }))
}

#[tokio::test]
async fn people_rename_themselves() {
    let world = World::new().await;
    world.ask(register("user_1", PHONE, "042137")).await;
    let told = world.ask(rename("user_1", "Countess")).await;
    let Told::Done(Answer::User(profile)) = &told else { panic!("{told:?}") };
    assert_eq!(profile.display_name, "Countess");
    let stored = users::get(&*world.embedded.store, &"user_1".into()).await.unwrap().unwrap();
    assert_eq!(stored.display_name, "Countess");
    assert_eq!(world.credentials(PHONE).await.unwrap().password_hash, "$argon2id$user_1", "nothing else");
    assert_eq!(world.ask(rename("user_9", "Nobody")).await.code(), Some(Code::NotFound));
    let number = format!("phone#{PHONE}");
    assert_eq!(world.ask(rename(&number, "Nobody")).await.code(), Some(Code::NotFound));
    for name in ["", " ", &"x".repeat(257)] {
        assert_eq!(world.ask(rename("user_1", name)).await.code(), Some(Code::BadRequest));
    }
}

#[tokio::test]
async fn what_belongs_elsewhere_is_rejected_by_name() {
    let world = World::new().await;
    let send = SendMessage {
        chat_id: "chat_1".into(),
        sender_id: "user_1".into(),
        client_message_id: "c-1".into(),
        content: "hello".into(),
        content_type: "text/plain".into(),
    };
    let told = world.ask(record(Command::SendMessage(send))).await;
    let Told::Failed("reject", why) = told else { panic!("{told:?}") };
    assert!(why.contains("send_message"), "{why}");
}

/// A record that failed is what a dead letter is made of.
#[tokio::test]
async fn no_secret_is_left_in_a_record_that_failed() {
    let world = World::new().await;
    let secrets = ["$argon2id$user_1", "042137", "sess_1-0", "sess_1-1"];
    for asked in [register("user_1", PHONE, "042137"), open("sess_1", "user_1", "dev_1")] {
        // As it comes from another process, and as it comes from this one.
        let text = Record::new(Payload::Text(asked.payload.to_json())).with_key("key");
        for asked in [text, asked] {
            let down = StoreError::Unavailable("connection refused".to_owned());
            world.embedded.faulty.nth(1, Fault::Refuse(down));
            let mut batch = Batch::from(vec![asked]);
            world.stage.process(&mut batch).await.unwrap();
            assert!(told(&batch.slots()[0]).has_to_wait());
            let letter = batch.slots()[0].record().payload.to_json();
            let shown = String::from_utf8(letter.to_vec()).unwrap();
            assert!(shown.contains("user_1"), "{shown}");
            assert!(!secrets.iter().any(|secret| shown.contains(secret)), "{shown}");
            assert!(!format!("{batch:?}").contains("042137"));

            let again = carry(&*world.stage, Record::new(Payload::Text(letter))).await;
            assert!(matches!(again, Told::Failed("reject", _)), "it cannot be run without them: {again:?}");
            let retried = batch.slots()[0].record().clone();
            assert!(matches!(
                carry(&*world.stage, retried).await.answer(),
                Answer::User(_) | Answer::Session(_)
            ));
        }
    }
}
