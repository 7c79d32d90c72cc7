//! The published document.

use courant_connectors::model::frames::{ChatCreatedFrame, MembershipChangedFrame, ReplyFrame, ReplyStatus};
use courant_connectors::model::topics::memberships_changed::ChangeType;

use super::*;

fn pushed_frames() -> [Frame; 4] {
    let at = Timestamp::from_unix_millis(1_769_783_400_000);
    let created = ChatCreatedFrame {
        chat_id: "chat_1".into(),
        chat_type: ChatType::Direct,
        name: None,
        created_by: "user_1".into(),
        created_at: at,
    };
    let changed = MembershipChangedFrame {
        chat_id: "chat_1".into(),
        user_id: "user_2".into(),
        change_type: ChangeType::RoleChanged,
        role: Role::Admin,
        changed_by: "user_1".into(),
        changed_at: at,
    };
    let reply = ReplyFrame {
        chat_id: "chat_1".into(),
        sender_id: "agent_helper".into(),
        reply_to: "msg_1".into(),
        status: ReplyStatus::Writing,
        content: "Well".to_owned(),
        content_type: "text/plain".to_owned(),
    };
    [message(7, "hi"), Frame::ChatCreated(created), Frame::MembershipChanged(changed), Frame::Reply(reply)]
}

/// What passes through unread is what the document says.
#[test]
fn frames_that_are_fanned_out_are_as_published() {
    for frame in pushed_frames() {
        conforms::check(&serde_json::from_slice(&frame.encode()).unwrap());
    }
}

#[test]
fn it_names_everything() {
    let document = asyncapi();
    assert_eq!(document["asyncapi"], "3.0.0");
    let names: Vec<_> = document["components"]["messages"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        names.join(" "),
        "client.send_message client.ack client.sync_request client.heartbeat server.welcome server.ack \
         server.error server.sync_batch server.heartbeat server.drain server.message server.chat_created \
         server.membership_changed server.reply"
    );
    let send = &document["components"]["messages"]["client.send_message"]["payload"];
    assert_eq!(send["required"], json!(["type", "client_message_id", "chat_id", "content"]));
    assert_eq!(send["additionalProperties"], false, "a typo is an error");
    for code in [4400, 4401, 4408, 4409, 4413, 4429, 4503, 4504] {
        assert!(document["info"]["description"].as_str().unwrap().contains(&code.to_string()), "{code}");
    }
}

/// Every reference leads somewhere.
#[test]
fn references_hold() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
                }
                fields.values().for_each(|value| walk(document, value));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    let document = asyncapi();
    walk(&document, &document);
}
