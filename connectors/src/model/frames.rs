//! What connected clients are told, and how it travels to the gateway they are connected to.
//!
//! A frame is written once, by whoever fans an event out, and its bytes are sent as they are to every socket it is for.
//! On its way to a gateway it is part of a line of JSON with the connections it goes to; a publish holds many lines, and
//! the gateway cuts the frames out of it without copying or understanding them.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::tables::chat_memberships::Role;
use super::tables::chats::ChatType;
use super::topics::memberships_changed::ChangeType;
use super::{ChatId, ConnectionId, MessageId, SessionId, Timestamp, UserId};

/// A frame that a client gets without having asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Frame {
    Message(MessageFrame),
    ChatCreated(ChatCreatedFrame),
    MembershipChanged(MembershipChangedFrame),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageFrame {
    pub message_id: MessageId,
    pub chat_id: ChatId,
    pub sequence: u64,
    pub sender_id: UserId,
    pub content: String,
    pub content_type: String,
    pub created_at: Timestamp,
    /// Of the message before this one; a client that has not seen it asks for what it missed.
    pub previous_sequence: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatCreatedFrame {
    pub chat_id: ChatId,
    pub chat_type: ChatType,
    pub name: Option<String>,
    pub created_by: UserId,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipChangedFrame {
    pub chat_id: ChatId,
    pub user_id: UserId,
    pub change_type: ChangeType,
    pub role: Role,
    pub changed_by: UserId,
    pub changed_at: Timestamp,
}

impl Frame {
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a frame has text keys, so it has a JSON form").into()
    }
}

/// A frame and the connections of one gateway that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub chat_id: ChatId,
    /// Of a message; frames of one chat reach a connection in this order or not at all.
    pub sequence: Option<u64>,
    pub connections: Vec<ConnectionId>,
    /// The frame's JSON.
    pub frame: Bytes,
}

#[derive(Serialize)]
struct WrittenDelivery<'a> {
    r#type: &'static str,
    chat_id: &'a ChatId,
    sequence: Option<u64>,
    connection_ids: &'a [ConnectionId],
    message: &'a RawValue,
}

#[derive(Deserialize)]
struct ReadDelivery<'a> {
    chat_id: ChatId,
    sequence: Option<u64>,
    connection_ids: Vec<ConnectionId>,
    #[serde(borrow)]
    message: &'a RawValue,
}

/// A publish to a gateway could not be read.
#[derive(Debug, thiserror::Error)]
#[error("not a delivery: {0}")]
pub struct NotADelivery(#[from] serde_json::Error);

/// Adds a delivery to what will be published, as one line.
pub fn write_delivery(
    out: &mut BytesMut,
    chat_id: &ChatId,
    sequence: Option<u64>,
    connection_ids: &[ConnectionId],
    frame: &Bytes,
) -> Result<(), NotADelivery> {
    let message: &RawValue = serde_json::from_slice(frame)?;
    let written = WrittenDelivery { r#type: "deliver", chat_id, sequence, connection_ids, message };
    serde_json::to_writer(out.writer(), &written)?;
    out.put_u8(b'\n');
    Ok(())
}

/// The deliveries of a publish. Frames are parts of it, not copies.
pub fn read_deliveries(publish: &Bytes) -> impl Iterator<Item = Result<Delivery, NotADelivery>> {
    publish.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| {
        let read: ReadDelivery<'_> = serde_json::from_slice(line)?;
        Ok(Delivery {
            chat_id: read.chat_id,
            sequence: read.sequence,
            connections: read.connection_ids,
            frame: publish.slice_ref(read.message.get().as_bytes()),
        })
    })
}

/// Sessions that have ended: told to every gateway, which closes their sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    pub user_id: UserId,
    /// All of the user's if empty.
    pub session_ids: Vec<SessionId>,
}

/// Chats whose members changed: told to every process that remembers members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invalidated {
    pub chat_ids: Arc<[ChatId]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(sequence: u64) -> Bytes {
        Frame::Message(MessageFrame {
            message_id: "msg_1".into(),
            chat_id: "chat_1".into(),
            sequence,
            sender_id: "user_1".into(),
            content: "line\nbreak \"quoted\"".to_owned(),
            content_type: "text/plain".to_owned(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
            previous_sequence: sequence - 1,
        })
        .encode()
    }

    #[test]
    fn a_frame_starts_with_its_type() {
        assert!(frame(7).starts_with(b"{\"type\":\"message\",\"message_id\":\"msg_1\""));
    }

    #[test]
    fn frames_are_cut_out_of_a_publish() {
        let mut out = BytesMut::new();
        let to: Vec<ConnectionId> = vec!["conn_1".into(), "conn_2".into()];
        write_delivery(&mut out, &"chat_1".into(), Some(7), &to, &frame(7)).unwrap();
        write_delivery(&mut out, &"chat_2".into(), None, &to[..1], &frame(8)).unwrap();
        let publish = out.freeze();
        let read: Vec<_> = read_deliveries(&publish).map(Result::unwrap).collect();
        assert_eq!(
            (read[0].sequence, read[0].frame.clone(), read[0].connections.len()),
            (Some(7), frame(7), 2)
        );
        assert_eq!((read[1].chat_id.as_str(), read[1].sequence, &read[1].frame), ("chat_2", None, &frame(8)));
        let inside = publish.as_ptr_range();
        assert!(inside.contains(&read[0].frame.as_ptr()), "not copied");
    }

    #[test]
    fn garbage_is_an_error_and_the_rest_is_read() {
        let mut out = BytesMut::from(&b"{nope\n"[..]);
        write_delivery(&mut out, &"chat_1".into(), Some(7), &[], &frame(7)).unwrap();
        let read: Vec<_> = read_deliveries(&out.freeze()).map(|read| read.is_ok()).collect();
        assert_eq!(read, [false, true]);
    }
}
