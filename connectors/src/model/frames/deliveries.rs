//! How frames travel to a gateway: lines of JSON, many to a publish.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::model::{ChatId, ConnectionId};

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

#[derive(Deserialize)]
struct ReadDelivery<'a> {
    chat_id: ChatId,
    sequence: Option<u64>,
    connection_ids: Vec<ConnectionId>,
    #[serde(borrow)]
    message: &'a RawValue,
}

/// What was to be published, or was heard, is no delivery.
#[derive(Debug, thiserror::Error)]
pub enum NotADelivery {
    #[error("not a delivery: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("not a delivery: {0}")]
    NotText(#[from] std::str::Utf8Error),
    #[error("a frame is a JSON object on one line")]
    Frame,
}

/// Adds a delivery to what will be published, as one line. The frame is one that [`Frame::encode`](super::Frame::encode)
/// or [`of_event`](super::of_event) made: it goes in as it is, and only what would break the lines is refused.
pub fn write_delivery<'a>(
    out: &mut BytesMut,
    chat_id: &ChatId,
    sequence: Option<u64>,
    connection_ids: impl IntoIterator<Item = &'a ConnectionId>,
    frame: &Bytes,
) -> Result<(), NotADelivery> {
    let is_object = frame.starts_with(b"{") && frame.ends_with(b"}");
    if !is_object || memchr::memchr(b'\n', frame).is_some() {
        return Err(NotADelivery::Frame);
    }
    out.put_slice(b"{\"type\":\"deliver\",\"chat_id\":");
    serde_json::to_writer(out.writer(), chat_id)?;
    out.put_slice(b",\"sequence\":");
    serde_json::to_writer(out.writer(), &sequence)?;
    out.put_slice(b",\"connection_ids\":[");
    for (index, id) in connection_ids.into_iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        serde_json::to_writer(out.writer(), id)?;
    }
    out.put_slice(b"],\"message\":");
    out.put_slice(frame);
    out.put_slice(b"}\n");
    Ok(())
}

/// The deliveries of a publish. Frames are parts of it, not copies.
pub fn read_deliveries(publish: &Bytes) -> impl Iterator<Item = Result<Delivery, NotADelivery>> {
    lines(publish).map(|line| {
        let read: ReadDelivery<'_> = serde_json::from_str(std::str::from_utf8(line)?)?;
        Ok(Delivery {
            chat_id: read.chat_id,
            sequence: read.sequence,
            connections: read.connection_ids,
            frame: publish.slice_ref(read.message.get().as_bytes()),
        })
    })
}

/// Those that are not empty.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let next = move || {
        let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
        let (line, rest) = text.split_at_checked(end).filter(|_| !text.is_empty())?;
        text = rest.get(1..).unwrap_or_default();
        Some(line)
    };
    std::iter::from_fn(next).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::model::frames::{Frame, MessageFrame};

    fn frame(sequence: u64) -> Bytes {
        Frame::Message(MessageFrame {
            message_id: "msg_1".into(),
            chat_id: "chat_1".into(),
            sequence,
            sender_id: "user_1".into(),
            content: "line\nbreak \"quoted\"".into(),
            content_type: "text/plain".into(),
            created_at: Timestamp::from_unix_millis(1_769_783_400_000),
            previous_sequence: sequence - 1,
        })
        .encode()
    }

    #[test]
    fn a_line_is_readable_json() {
        let mut out = BytesMut::new();
        let to: Vec<ConnectionId> = vec!["conn_1".into(), "conn_\"2\"".into()];
        write_delivery(&mut out, &"chat_1".into(), Some(7), &to, &frame(7)).unwrap();
        write_delivery(&mut out, &"chat_1".into(), None, [], &Bytes::from_static(b"{}")).unwrap();
        let lines: Vec<&str> = std::str::from_utf8(&out).unwrap().lines().collect();
        let line: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!(line["connection_ids"], serde_json::json!(["conn_1", "conn_\"2\""]));
        assert_eq!(line["message"]["content"], "line\nbreak \"quoted\"");
        assert_eq!(
            lines[1],
            r#"{"type":"deliver","chat_id":"chat_1","sequence":null,"connection_ids":[],"message":{}}"#
        );
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

    #[test]
    fn a_frame_that_would_break_the_lines_is_refused_and_leaves_no_trace() {
        for frame in ["", "\"text\"", "{\"a\":\n1}", "{\"cut\":"] {
            let mut out = BytesMut::new();
            let written = write_delivery(
                &mut out,
                &"chat_1".into(),
                None,
                &[],
                &Bytes::copy_from_slice(frame.as_bytes()),
            );
            assert!(matches!(written, Err(NotADelivery::Frame)), "{frame}");
            assert!(out.is_empty());
        }
    }
}
