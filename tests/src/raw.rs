//! Clients that do as they like: bytes over TCP, from any address of this machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::LIMIT;

/// Connects from `127.0.0.<host>`.
pub async fn connect_from(host: u8, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into())?;
    socket.connect(to).await
}

/// Lets this process open as many files as it may; how many that are.
pub fn raise_open_files() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("a process may use what it is allowed");
    limit.current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// A request for a socket, with further headers such as a token.
pub fn upgrade_request(path: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "GET {path} HTTP/1.1\r\nhost: courant\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// A request whose answer ends the connection.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: courant\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

/// What a request is answered with.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: Value,
}

/// Sends a request and reads its answer to the end of the connection.
pub async fn ask(stream: &mut TcpStream, request: &str) -> RawAnswer {
    stream.write_all(request.as_bytes()).await.expect("the server listens");
    let mut text = String::new();
    timeout(LIMIT, stream.read_to_string(&mut text)).await.expect("an answer ends").expect("it is text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head[9..12].parse().expect("an answer begins with its status");
    RawAnswer { status, head: head.to_lowercase(), body: serde_json::from_str(body).unwrap_or(Value::Null) }
}

/// The code of a WebSocket frame, in its first byte.
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
/// The bit that says that a frame is the last of its message.
pub const FINAL: u8 = 0x80;

/// A frame as clients send it, under a mask that changes nothing.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame_head(first, payload.len() as u64);
    bytes.extend_from_slice(payload);
    bytes
}

/// The head of a masked frame that says how long it will be.
pub fn frame_head(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..=125), _) => bytes.push(0x80 | short),
        (_, Ok(medium)) => {
            bytes.push(0xfe);
            bytes.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            bytes.push(0xff);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

/// A socket whose every byte is the test's.
pub struct RawSocket {
    pub stream: TcpStream,
    unread: Vec<u8>,
}

impl RawSocket {
    /// Upgrades a connection; the status of the answer if that is refused.
    pub async fn open(mut stream: TcpStream, headers: &[(&str, &str)]) -> Result<Self, u16> {
        let request = upgrade_request("/ws", headers);
        stream.write_all(request.as_bytes()).await.expect("the server listens");
        let mut socket = Self { stream, unread: Vec::new() };
        let end = loop {
            if let Some(at) = socket.unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(socket.read().await, "no answer to an upgrade");
        };
        let head: Vec<u8> = socket.unread.drain(..end).collect();
        let status = String::from_utf8_lossy(&head[9..12]).parse().expect("an answer begins with its status");
        if status == 101 { Ok(socket) } else { Err(status) }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The server may have closed at the first of them.
        let _ = self.stream.write_all(bytes).await;
    }

    /// The next frame: its code and payload; `None` once the connection has ended.
    pub async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((code, payload, length)) = first_frame(&self.unread) {
                self.unread.drain(..length);
                return Some((code, payload));
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// The next text frame.
    pub async fn next_json(&mut self) -> Value {
        loop {
            let (code, payload) = self.next().await.expect("the socket is open");
            if code == TEXT {
                return serde_json::from_slice(&payload).expect("frames are JSON");
            }
        }
    }

    /// Reads until the server closes; its code.
    pub async fn closed(&mut self) -> Option<u16> {
        loop {
            if let (CLOSE, payload) = self.next().await? {
                return Some(u16::from_be_bytes([*payload.first()?, *payload.get(1)?]));
            }
        }
    }

    /// Whether more has come.
    async fn read(&mut self) -> bool {
        let read = timeout(LIMIT, self.stream.read_buf(&mut self.unread)).await.expect("something comes");
        matches!(read, Ok(1..))
    }
}

/// Code, payload and length of the frame that bytes from a server begin with, if it is whole.
fn first_frame(bytes: &[u8]) -> Option<(u8, Vec<u8>, usize)> {
    let (head, length) = match *bytes.get(1)? {
        126 => (4, u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)),
        short => (2, u64::from(short)),
    };
    let end = head + usize::try_from(length).ok()?;
    Some((bytes[0] & 0x0f, bytes.get(head..end)?.to_vec(), end))
}
