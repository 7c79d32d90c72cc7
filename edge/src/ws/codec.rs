//! WebSocket frames on the wire, without a buffer per connection.
//!
//! Libraries keep a read and a write buffer for each socket; at tens of thousands of idle sockets those are most of the
//! memory. Here a read goes into a buffer of the thread, frames are taken out of it where they lie, and a connection
//! owns only the beginning of a frame whose end has not come. Headers are read and written by tungstenite.
//!
//! Everything a client sends that RFC 6455 forbids is a [`Violation`], and nothing it sends can panic.

use std::io::Cursor;

use bytes::{BufMut as _, Bytes, BytesMut};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::close::Close;

/// The longest payload of a control frame.
const MAX_CONTROL: usize = 125;
/// The longest header a server writes.
const MAX_HEADER: usize = 10;

/// One whole message, unmasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard<'a> {
    Text(&'a [u8]),
    Ping(&'a [u8]),
    Pong,
    /// With the code, if the client gave one.
    Close(Option<u16>),
}

/// What ends a socket at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    Protocol,
    TooLarge,
}

impl From<Violation> for Close {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Protocol => Self::BadFrame,
            Violation::TooLarge => Self::TooLarge,
        }
    }
}

/// What of one connection has come and is not yet whole. Empty and without memory of its own most of the time.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The beginning of a frame, as it came.
    partial: Vec<u8>,
    /// The fragments of a message so far, unmasked. Rare, so it costs one word.
    #[allow(clippy::box_collection, reason = "a thin pointer: fragments are rare and idle sockets many")]
    fragments: Option<Box<Vec<u8>>>,
}

impl Decoder {
    /// Hands every message that is now whole to `hear`, in order; `read` is unmasked where it lies. Messages before a
    /// violation are heard.
    pub(super) fn decode(
        &mut self,
        read: &mut [u8],
        max_message: usize,
        hear: &mut dyn FnMut(Heard<'_>),
    ) -> Result<(), Violation> {
        if self.partial.is_empty() {
            let used = self.frames(read, max_message, hear)?;
            self.partial = read[used..].to_vec();
            return Ok(());
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(read);
        let used = self.frames(&mut joined, max_message, hear)?;
        if used > 0 {
            joined.drain(..used);
            joined.shrink_to_fit();
        }
        self.partial = joined;
        Ok(())
    }

    /// How much memory it has of its own.
    #[cfg(fuzzing)]
    pub(super) fn kept(&self) -> usize {
        self.partial.capacity() + self.fragments.as_ref().map_or(0, |fragments| fragments.capacity())
    }

    /// Decodes whole frames; how many bytes they were.
    fn frames(
        &mut self,
        bytes: &mut [u8],
        max_message: usize,
        hear: &mut dyn FnMut(Heard<'_>),
    ) -> Result<usize, Violation> {
        let mut at = 0;
        loop {
            let mut cursor = Cursor::new(&bytes[at..]);
            let parsed = FrameHeader::parse(&mut cursor).map_err(|_| Violation::Protocol)?;
            let Some((header, length)) = parsed else { return Ok(at) };
            let mask = check(&header, length)?;
            // Said before it has come: nobody waits for what will be refused.
            if length > max_message as u64 {
                return Err(Violation::TooLarge);
            }
            let start = at + usize::try_from(cursor.position()).map_err(|_| Violation::Protocol)?;
            let end = start + usize::try_from(length).map_err(|_| Violation::TooLarge)?;
            let Some(payload) = bytes.get_mut(start..end) else { return Ok(at) };
            unmask(payload, mask);
            self.frame(&header, payload, max_message, hear)?;
            at = end;
        }
    }

    fn frame(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        max_message: usize,
        hear: &mut dyn FnMut(Heard<'_>),
    ) -> Result<(), Violation> {
        match header.opcode {
            OpCode::Control(Control::Ping) => hear(Heard::Ping(payload)),
            OpCode::Control(Control::Pong) => hear(Heard::Pong),
            OpCode::Control(Control::Close) => hear(Heard::Close(close_code(payload)?)),
            OpCode::Data(Data::Text) if self.fragments.is_none() => {
                if header.is_final {
                    hear(Heard::Text(payload));
                } else {
                    self.fragments = Some(Box::new(payload.to_vec()));
                }
            }
            OpCode::Data(Data::Continue) => {
                let mut message = self.fragments.take().ok_or(Violation::Protocol)?;
                if message.len() + payload.len() > max_message {
                    return Err(Violation::TooLarge);
                }
                message.extend_from_slice(payload);
                if header.is_final {
                    hear(Heard::Text(&message));
                } else {
                    self.fragments = Some(message);
                }
            }
            // Binary, a text within another, or an opcode that nobody has agreed on.
            _ => return Err(Violation::Protocol),
        }
        Ok(())
    }
}

/// The mask of a frame that a client may send.
fn check(header: &FrameHeader, length: u64) -> Result<[u8; 4], Violation> {
    let extended = header.rsv1 || header.rsv2 || header.rsv3;
    let control = matches!(header.opcode, OpCode::Control(_));
    if extended || (control && (!header.is_final || length > MAX_CONTROL as u64)) {
        return Err(Violation::Protocol);
    }
    header.mask.ok_or(Violation::Protocol)
}

fn close_code(payload: &[u8]) -> Result<Option<u16>, Violation> {
    match payload {
        [] => Ok(None),
        [_] => Err(Violation::Protocol),
        [high, low, ..] => Ok(Some(u16::from_be_bytes([*high, *low]))),
    }
}

/// In steps of the mask, which the compiler makes wide ones of.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let mut steps = payload.chunks_exact_mut(mask.len());
    for step in &mut steps {
        for (byte, mask) in step.iter_mut().zip(mask) {
            *byte ^= mask;
        }
    }
    for (byte, mask) in steps.into_remainder().iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

/// A text frame as it goes over the wire: made once and shared by every socket it is for. A copy, so that it does not
/// keep alive whatever it was a part of.
pub(super) fn text(payload: &[u8]) -> Bytes {
    wire(OpCode::Data(Data::Text), &[payload])
}

pub(super) fn pong(payload: &[u8]) -> Bytes {
    wire(OpCode::Control(Control::Pong), &[payload])
}

pub(super) fn close(code: u16, reason: &str) -> Bytes {
    wire(OpCode::Control(Control::Close), &[&code.to_be_bytes(), reason.as_bytes()])
}

/// The answer to a client that closed without a code.
pub(super) fn close_without_code() -> Bytes {
    wire(OpCode::Control(Control::Close), &[])
}

fn wire(opcode: OpCode, parts: &[&[u8]]) -> Bytes {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = BytesMut::with_capacity(MAX_HEADER + length);
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    header.format(length as u64, &mut (&mut out).writer()).expect("memory can be written to");
    for part in parts {
        out.put_slice(part);
    }
    out.freeze()
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
