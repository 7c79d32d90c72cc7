//! One client's socket: a single task that reads, obeys and writes.
//!
//! While nothing happens the task is a few words: it owns no buffer, no timer and no queue, and what it needs to work on a
//! request is boxed for as long as that takes. Frames that come together are read, parsed and obeyed together, and
//! everything there is to say by then goes out with one write.
//!
//! A client that takes nothing is not read either, so that it cannot pile up answers.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::close::Close;
use super::codec::{self, Decoder};
use super::gateway::{Registered, Shared};
use super::outbox::Next;
use super::peer::Peer;
use super::request::Request;
use super::ticks;

/// One read or write at most: twice the largest frame, and as much as a socket usually takes.
const BUFFER: usize = 64 << 10;
/// Frames of one socket that are obeyed within a tick. Most cost next to nothing, and no client has this many to send;
/// one that has waits for the next tick, so that it does not cost others their turn.
const FRAMES_PER_TICK: usize = 1000;
/// How long a client may take to answer a close before the connection is dropped.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

thread_local! {
    // Borrowed between two waits only, so one of each is enough for all sockets of a thread.
    static READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into());
    static WRITE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(BUFFER));
}

/// Why a socket is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client was told.
    Closed(Close),
    /// The client takes nothing, so it was not.
    Cut(Close),
    ByClient,
    /// The connection broke, or the client left without a word.
    Lost,
}

pub(super) struct Socket {
    stream: TcpStream,
    decoder: Decoder,
    pub(super) registered: Registered,
    pub(super) strikes: Strikes,
    pace: Pace,
}

/// How many frames have come within the current tick.
#[derive(Debug, Default)]
struct Pace {
    tick: u32,
    frames: u32,
}

impl Pace {
    /// Counts frames; whether they are too many.
    fn exceeds(&mut self, frames: usize, now: u32) -> bool {
        if self.tick != now {
            *self = Self { tick: now, frames: 0 };
        }
        self.frames = self.frames.saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
        self.frames as usize > FRAMES_PER_TICK
    }
}

/// What a client did wrong so far.
#[derive(Debug, Default)]
pub(super) struct Strikes {
    /// Frames that were JSON and nothing else, one after another.
    pub(super) bad_frames: u8,
    /// Messages beyond the limit, one after another.
    pub(super) excess: u8,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, registered: Registered) -> Self {
        let (strikes, pace) = (Strikes::default(), Pace::default());
        Self { stream, decoder: Decoder::default(), registered, strikes, pace }
    }

    /// Runs until the socket is over. `early` is what came with the upgrade.
    pub(super) async fn run(mut self, early: Vec<u8>) {
        let mut ended = if early.is_empty() { None } else { Box::pin(self.obey_early(early)).await.err() };
        while ended.is_none() {
            ended = match poll_fn(|cx| self.poll_next(cx)).await {
                Ok(requests) => Box::pin(self.obey(requests)).await.err(),
                Err(ended) => Some(ended),
            };
        }
        Box::pin(self.finish(ended)).await;
    }

    async fn obey_early(&mut self, mut early: Vec<u8>) -> Result<(), Ended> {
        let requests = self.decode(&mut early);
        drop(early);
        self.obey(requests).await
    }

    async fn obey(&mut self, requests: Vec<Request>) -> Result<(), Ended> {
        self.shared().metrics.frames_in.increment(requests.len() as u64);
        let now = self.shared().ticks.now();
        if self.pace.exceeds(requests.len(), now) {
            self.while_writing(tokio::time::sleep(ticks::TICK)).await?;
        }
        for request in requests {
            // Whoever was shut out while this waited is not obeyed any more.
            if !self.peer().outbox.is_open() {
                break;
            }
            self.obey_one(request).await?;
            // It may have waited for us, and then it was not silent.
            self.peer().heard(self.shared().ticks.now());
        }
        Ok(())
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.registered.peer
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.registered.shared
    }

    /// Says something to the client, after whatever waits.
    pub(super) fn say(&self, frame: Bytes) {
        // A client that is too slow is being closed by this; nothing else is to be done about it.
        let _ = self.peer().outbox.push_own(frame, self.shared().bounds);
    }

    /// Says something that was asked for, once there is room: a client gets its answer at its own speed.
    pub(super) async fn say_when_room(&mut self, frame: Bytes) -> Result<(), Ended> {
        let bounds = self.shared().bounds;
        poll_fn(|cx| {
            if self.peer().outbox.push_own_if_room(&frame, bounds) {
                return Poll::Ready(Ok(()));
            }
            match self.poll_write(cx) {
                Poll::Ready(Err(ended)) => Poll::Ready(Err(ended)),
                _ if self.peer().outbox.push_own_if_room(&frame, bounds) => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for something while writing goes on.
    pub(super) async fn while_writing<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Ended> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Work first: what is ready at once is written together with what comes after it.
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            match self.poll_write(cx) {
                Poll::Ready(Err(ended)) => Poll::Ready(Err(ended)),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Waits until fewer messages than allowed are without an answer. Their answers wake the task.
    pub(super) async fn room_in_flight(&mut self) -> Result<(), Ended> {
        let max = self.shared().config.max_in_flight.get();
        poll_fn(|cx| {
            if self.peer().in_flight() < max {
                return Poll::Ready(Ok(()));
            }
            match self.poll_write(cx) {
                Poll::Ready(Err(ended)) => Poll::Ready(Err(ended)),
                _ if self.peer().in_flight() < max => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Answers a client's close, and is done.
    pub(super) async fn close_back(&mut self, code: Option<u16>) -> Ended {
        let allowed = |code: &u16| tungstenite::protocol::frame::coding::CloseCode::from(*code).is_allowed();
        let frame = match code.filter(allowed) {
            Some(code) => codec::close(code, ""),
            None => codec::close_without_code(),
        };
        self.say(frame);
        match poll_fn(|cx| self.poll_write(cx)).await {
            Ok(()) => Ended::ByClient,
            Err(ended) => ended,
        }
    }

    /// Writes what waits and waits for more requests.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Request>, Ended>> {
        ready!(self.poll_write(cx))?;
        if self.shared().is_draining() {
            // Closed soon, which wakes the task.
            return Poll::Pending;
        }
        self.poll_read(cx)
    }

    /// Ready when nothing waits; pending while the client takes no more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let Self { stream, registered: Registered { shared, peer, .. }, .. } = self;
        WRITE.with_borrow_mut(|buffer| {
            loop {
                buffer.clear();
                match peer.outbox.fill(buffer, cx.waker()) {
                    Next::Bytes => {}
                    Next::Nothing => return Poll::Ready(Ok(())),
                    Next::Closed(close) => return Poll::Ready(Err(Ended::Closed(close))),
                    Next::Cut(close) => return Poll::Ready(Err(Ended::Cut(close))),
                }
                match Pin::new(&mut *stream).poll_write(cx, buffer) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Ended::Lost)),
                    Poll::Ready(Ok(bytes)) => {
                        shared.metrics.writes.increment(1);
                        shared.metrics.frames_out.increment(peer.outbox.wrote(bytes));
                    }
                    Poll::Pending => {
                        peer.outbox.stalled(shared.ticks.now(), cx.waker());
                        return Poll::Pending;
                    }
                }
            }
        })
    }

    /// At least one request.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<Request>, Ended>> {
        loop {
            let requests = READ.with_borrow_mut(|buffer| {
                let mut read = ReadBuf::new(buffer);
                match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
                    Ok(()) if !read.filled().is_empty() => Poll::Ready(Ok(self.decode(read.filled_mut()))),
                    _ => Poll::Ready(Err(Ended::Lost)),
                }
            });
            let requests = ready!(requests)?;
            if !requests.is_empty() {
                return Poll::Ready(Ok(requests));
            }
        }
    }

    fn decode(&mut self, read: &mut [u8]) -> Vec<Request> {
        let max_frame = usize::try_from(self.shared().config.max_frame.0).unwrap_or(usize::MAX);
        let (mut requests, mut has_spoken) = (Vec::new(), false);
        let mut hear = |heard: codec::Heard<'_>| {
            has_spoken = true;
            if !requests.last().is_some_and(Request::is_last) {
                requests.extend(Request::of(heard));
            }
        };
        if let Err(violation) = self.decoder.decode(read, max_frame, &mut hear) {
            requests.push(Request::Violation(violation));
        }
        // Something whole: a byte now and then of a frame that never ends is silence.
        if has_spoken {
            self.peer().heard(self.shared().ticks.now());
        }
        requests
    }

    /// Leaves the gateway, then waits a moment for the client to take its leave: a connection that is dropped with
    /// something unread may take the close frame with it.
    async fn finish(self, ended: Option<Ended>) {
        let Self { mut stream, registered, .. } = self;
        let metrics = &registered.shared.metrics;
        match ended {
            Some(Ended::Closed(close) | Ended::Cut(close)) => metrics.closed(Some(close)),
            Some(Ended::ByClient) => metrics.closed(None),
            Some(Ended::Lost) | None => metrics.lost(),
        }
        let Some(ended) = ended else { return };
        tracing::debug!(connection = %registered.peer.connection.id, ?ended, "socket ended");
        drop(registered);
        if matches!(ended, Ended::Closed(_)) {
            let leave = async {
                let _ = stream.shutdown().await;
                let mut rest = [0; 256];
                while matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {}
            };
            let _ = timeout(CLOSE_LIMIT, leave).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_waits_for_the_next_tick() {
        let mut pace = Pace::default();
        assert!(!pace.exceeds(FRAMES_PER_TICK, 7));
        assert!(pace.exceeds(1, 7));
        assert!(!pace.exceeds(FRAMES_PER_TICK, 8), "another tick, another turn");
        assert!(pace.exceeds(usize::MAX, 8));
    }

    /// What a task is made of while nothing happens.
    fn sleeping_size<F: Future>(_: impl Fn(Socket) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_sleeping_task_is_small() {
        let size = sleeping_size(|socket| socket.run(Vec::new()));
        assert!(size <= 512, "{size} bytes, for each of tens of thousands");
    }
}
