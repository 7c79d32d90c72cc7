//! Sending and receiving, timed.
//!
//! A message's content begins with the moment it was sent, so whoever receives it knows how long it took. Frames are
//! looked at as bytes: understanding them would cost the load more than the server needs to make them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use courant_client::{Client, Heard, Socket, SocketSender};
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

/// The size of a message's content.
const CONTENT_BYTES: usize = 200;
/// What is sent before this is not measured: connections, caches and batches are still settling.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);
/// How long to wait for what is under way at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// How fast a sender sends.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) enum Pace {
    /// So many without an answer at any moment.
    InFlight(usize),
    /// One each so often, the first after a while.
    Every(Duration, Duration),
}

/// When measuring begins and sending ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) epoch: Instant,
    pub(super) from: Instant,
    pub(super) until: Instant,
}

impl Window {
    pub(super) fn lasting(lasting: Duration) -> Self {
        let epoch = Instant::now();
        Self { epoch, from: epoch + WARM_UP, until: epoch + WARM_UP + lasting }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    /// How long ago something was sent, if that counts.
    fn taken(&self, sent: u64, now: Instant) -> Option<u32> {
        let counts = sent >= self.micros(self.from) && now < self.until + DRAIN;
        counts.then(|| u32::try_from(self.micros(now).saturating_sub(sent)).unwrap_or(u32::MAX))
    }
}

/// Latencies in microseconds, of what counts.
#[derive(Default)]
pub(in crate::bench) struct Taken {
    pub(in crate::bench) micros: Vec<u32>,
    /// When each of these was sent, in the same order; of several senders one may share a moment with another.
    pub(in crate::bench) sent: Vec<u64>,
    /// Of these, how many came while sending went on.
    pub(in crate::bench) in_window: u64,
    pub(in crate::bench) refused: u64,
}

impl Taken {
    fn note(&mut self, window: &Window, sent: u64) {
        let now = Instant::now();
        if let Some(micros) = window.taken(sent, now) {
            self.micros.push(micros);
            self.sent.push(sent);
            self.in_window += u64::from(now < window.until);
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.micros.extend(other.micros);
        self.sent.extend(other.sent);
        self.in_window += other.in_window;
        self.refused += other.refused;
    }
}

/// Connects and waits for the welcome.
pub(super) async fn connect(client: &Client) -> anyhow::Result<Socket> {
    let mut socket = client.connect().await?;
    match timeout(DRAIN, socket.next()).await? {
        Heard::Frame(frame) if frame.starts_with(b"{\"type\":\"welcome\"") => Ok(socket),
        other => anyhow::bail!("instead of a welcome the server sent {other:?}"),
    }
}

/// One who sends into a chat; returns how long its acks took.
pub(super) async fn send(socket: Socket, chat: String, pace: Pace, window: Window) -> anyhow::Result<Taken> {
    let (socket, heard) = socket.split();
    let sender = Sender { socket, chat, window, next: 0, run: ulid::Ulid::generate().to_string() };
    match pace {
        Pace::InFlight(count) => sender.closed_loop(heard, count).await,
        Pace::Every(every, offset) => sender.open_loop(heard, every, offset).await,
    }
}

struct Sender {
    socket: SocketSender,
    chat: String,
    window: Window,
    next: u64,
    run: String,
}

impl Sender {
    /// The next message as a frame. Its id ends with the moment, so that its ack tells how long it took.
    fn frame(&mut self) -> String {
        self.next += 1;
        let sent = self.window.micros(Instant::now());
        let content = format!("{sent:016} {:x<1$}", "", CONTENT_BYTES - 17);
        format!(
            r#"{{"type":"send_message","client_message_id":"{}-{}-{sent:016}","chat_id":"{}","content":"{content}"}}"#,
            self.run, self.next, self.chat
        )
    }

    async fn closed_loop(
        mut self,
        mut heard: impl Stream<Item = Heard> + Send + Unpin,
        count: usize,
    ) -> anyhow::Result<Taken> {
        let mut taken = Taken::default();
        let first: Vec<String> = (0..count).map(|_| self.frame()).collect();
        self.socket.send_all(first).await?;
        let mut open = count;
        while open > 0 {
            let Some(one) = timeout(DRAIN, heard.next()).await? else { break };
            let mut answered = self.answered(&one, &mut taken)?;
            // What else has come already is answered together, as a client with a batch of acks would.
            while let Some(Some(more)) = heard.next().now_or_never() {
                answered += self.answered(&more, &mut taken)?;
            }
            open -= answered;
            if Instant::now() < self.window.until {
                let next: Vec<String> = (0..answered).map(|_| self.frame()).collect();
                open += answered;
                self.socket.send_all(next).await?;
            }
        }
        Ok(taken)
    }

    async fn open_loop(
        mut self,
        mut heard: impl Stream<Item = Heard> + Send + Unpin,
        every: Duration,
        offset: Duration,
    ) -> anyhow::Result<Taken> {
        let mut taken = Taken::default();
        let mut ticks = interval_at(self.window.epoch + offset, every);
        let (mut open, end) = (0usize, self.window.until + DRAIN);
        loop {
            let sending = Instant::now() < self.window.until;
            if !sending && open == 0 {
                return Ok(taken);
            }
            tokio::select! {
                _ = ticks.tick(), if sending => {
                    let frame = self.frame();
                    self.socket.send(frame).await?;
                    open += 1;
                }
                one = heard.next() => match one {
                    Some(one) => open -= self.answered(&one, &mut taken)?.min(open),
                    None => return Ok(taken),
                },
                () = sleep_until(end) => return Ok(taken),
            }
        }
    }

    /// How many sends this frame answers.
    fn answered(&self, heard: &Heard, taken: &mut Taken) -> anyhow::Result<usize> {
        let frame = match heard {
            Heard::Frame(frame) => frame,
            Heard::Closed(code) => anyhow::bail!("the server closed a socket with {code:?}"),
        };
        if frame.starts_with(b"{\"type\":\"ack\"") {
            if let Some(sent) = after(frame, b"\"client_message_id\":\"").and_then(last_number) {
                taken.note(&self.window, sent);
            }
            return Ok(1);
        }
        if frame.starts_with(b"{\"type\":\"error\"") {
            if taken.refused == 0 {
                eprintln!("note: a send was refused: {}", String::from_utf8_lossy(frame));
            }
            taken.refused += 1;
            return Ok(1);
        }
        Ok(0)
    }
}

/// One who only listens; returns how long messages took to arrive.
pub(super) async fn receive(socket: Socket, window: Window, stop: Arc<AtomicBool>) -> anyhow::Result<Taken> {
    let (_sender, mut heard) = socket.split();
    let mut taken = Taken::default();
    while !stop.load(Ordering::Relaxed) {
        // A timer for every frame would cost more than reading it.
        let mut next = match timeout(Duration::from_millis(100), heard.next()).await {
            Ok(None) => break,
            Ok(next) => next,
            Err(_nothing_came) => continue,
        };
        while let Some(one) = next {
            match one {
                Heard::Frame(frame) => {
                    if let Some(sent) = after(&frame, b"\"content\":\"").and_then(first_number) {
                        taken.note(&window, sent);
                    }
                }
                Heard::Closed(code) => anyhow::bail!("the server closed a socket with {code:?}"),
            }
            next = heard.next().now_or_never().flatten();
        }
    }
    Ok(taken)
}

/// What follows a marker in a frame.
fn after<'a>(frame: &'a Bytes, marker: &[u8]) -> Option<&'a [u8]> {
    let at = memchr::memmem::find(frame, marker)?;
    Some(&frame[at + marker.len()..])
}

fn first_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.get(..16)?).ok()?.parse().ok()
}

/// The number at the end of the text that a quote ends.
fn last_number(text: &[u8]) -> Option<u64> {
    let end = memchr::memchr(b'"', text)?;
    first_number(text.get(end.checked_sub(16)?..end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moments_are_found_in_frames() {
        let ack = Bytes::from_static(
            br#"{"type":"ack","client_message_id":"01X-7-0000000000000042","chat_id":"c","sequence":1}"#,
        );
        assert_eq!(after(&ack, b"\"client_message_id\":\"").and_then(last_number), Some(42));
        let message = Bytes::from_static(br#"{"type":"message","content":"0000000000000043 xx"}"#);
        assert_eq!(after(&message, b"\"content\":\"").and_then(first_number), Some(43));
        assert_eq!(after(&message, b"\"nothing\"").and_then(first_number), None);
    }
}
