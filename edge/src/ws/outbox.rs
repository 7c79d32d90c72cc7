//! What waits to be written to one client: bounded in frames and in bytes, checked before anything is added.
//!
//! Frames are shared bytes. The socket's task copies as many as fit into a buffer of its thread and writes them with one
//! call, so a connection that nothing waits for has no memory here. Whoever adds frames wakes nobody itself: the
//! wakers go into [`Wakers`], and are woken when a whole batch is in its outboxes. One write then carries all of it.
//!
//! Rejected: a channel per connection. It has room before it is needed, cannot count bytes, and wakes at each frame.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use super::close::Close;
use super::codec;
use super::sequences::{ChatHash, Sequences, Turn};

/// How much may wait for one client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) frames: usize,
    pub(super) bytes: usize,
}

/// Tasks that have something to write, each once. Woken together, at the end of a batch.
#[derive(Default)]
pub(super) struct Wakers(Vec<Waker>);

impl Wakers {
    pub(super) fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// However a batch ends, nobody sleeps on.
impl Drop for Wakers {
    fn drop(&mut self) {
        self.wake();
    }
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    Queued,
    /// A later one of its chat was sent before, or it was itself.
    Late,
    /// It did not fit: the client is too slow, and its socket closes.
    Overflow,
    /// The socket is closing.
    Closed,
}

/// What happens to frames that wait when a socket closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    Written,
    Dropped,
}

#[derive(Default)]
pub(super) struct Outbox(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    frames: VecDeque<Bytes>,
    /// Of all frames, what is written of the first included.
    bytes: usize,
    /// How much of the first frame is written.
    written: usize,
    /// Of the socket's task, while it sleeps.
    waker: Option<Waker>,
    state: State,
    /// Since when the client has taken nothing, in the gateway's ticks.
    stalled_since: Option<u32>,
    sequences: Sequences,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The last frame is a close.
    Closing(Close),
    /// Nothing more is written.
    Cut(Close),
}

/// What there is to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The buffer has it.
    Bytes,
    Nothing,
    /// The close frame has been written.
    Closed(Close),
    Cut(Close),
}

impl Outbox {
    pub(super) fn push(&self, frame: Bytes, bounds: Bounds, wakers: &mut Wakers) -> Pushed {
        let mut queue = self.lock();
        let pushed = queue.push(frame, bounds);
        queue.wake(wakers);
        pushed
    }

    /// From the socket's own task, which is awake and looks here before it sleeps.
    pub(super) fn push_own(&self, frame: Bytes, bounds: Bounds) -> Pushed {
        self.lock().push(frame, bounds)
    }

    /// Likewise, if it fits in half of the bounds; the other half is for what comes unasked. Where nothing waits, it
    /// always fits. Whether it was taken.
    pub(super) fn push_own_if_room(&self, frame: &Bytes, bounds: Bounds) -> bool {
        let mut queue = self.lock();
        let room = queue.frames.is_empty()
            || (queue.frames.len() < bounds.frames / 2 && queue.bytes + frame.len() <= bounds.bytes / 2);
        if room && queue.state == State::Open {
            queue.add(frame.clone());
        }
        room || queue.state != State::Open
    }

    /// A `message` of a chat, unless that would go backwards.
    pub(super) fn push_in_order(
        &self,
        chat: ChatHash,
        sequence: u64,
        frame: Bytes,
        bounds: Bounds,
        wakers: &mut Wakers,
    ) -> Pushed {
        let mut queue = self.lock();
        if queue.state != State::Open {
            return Pushed::Closed;
        }
        match queue.sequences.advance(chat, sequence) {
            Turn::Next => {
                let pushed = queue.push(frame, bounds);
                queue.wake(wakers);
                pushed
            }
            Turn::Late => Pushed::Late,
            Turn::Full => {
                queue.close(Close::SlowConsumer, Waiting::Dropped);
                queue.wake(wakers);
                Pushed::Overflow
            }
        }
    }

    /// Closes the socket; the first reason stands.
    pub(super) fn close(&self, close: Close, waiting: Waiting, wakers: &mut Wakers) {
        let mut queue = self.lock();
        queue.close(close, waiting);
        queue.wake(wakers);
    }

    /// From the socket's own task.
    pub(super) fn close_own(&self, close: Close) {
        self.lock().close(close, Waiting::Written);
    }

    /// Ends the socket without another word to the client, which takes none.
    pub(super) fn cut(&self, close: Close, wakers: &mut Wakers) {
        let mut queue = self.lock();
        let close = match queue.state {
            State::Open => close,
            State::Closing(earlier) | State::Cut(earlier) => earlier,
        };
        queue.state = State::Cut(close);
        queue.clear();
        queue.wake(wakers);
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().state == State::Open
    }

    pub(super) fn stalled_since(&self) -> Option<u32> {
        self.lock().stalled_since
    }

    /// Puts what waits into the buffer, up to its capacity. If nothing does, `waker` is woken by the next frame.
    pub(super) fn fill(&self, buffer: &mut Vec<u8>, waker: &Waker) -> Next {
        let mut queue = self.lock();
        match queue.state {
            State::Cut(close) => return Next::Cut(close),
            State::Closing(close) if queue.frames.is_empty() => return Next::Closed(close),
            _ if queue.frames.is_empty() => {
                queue.sleep(waker);
                return Next::Nothing;
            }
            _ => {}
        }
        let mut skip = queue.written;
        for frame in &queue.frames {
            let room = buffer.capacity() - buffer.len();
            let part = &frame[skip..frame.len().min(skip + room)];
            buffer.extend_from_slice(part);
            if buffer.len() == buffer.capacity() {
                break;
            }
            skip = 0;
        }
        Next::Bytes
    }

    /// So much of what [`fill`](Self::fill) gave has been written; how many frames that finished.
    pub(super) fn wrote(&self, bytes: usize) -> u64 {
        let mut queue = self.lock();
        queue.stalled_since = None;
        queue.written += bytes;
        let mut finished = 0;
        while let Some(length) = queue.frames.front().map(Bytes::len)
            && queue.written >= length
        {
            queue.written -= length;
            queue.bytes -= length;
            queue.frames.pop_front();
            finished += 1;
        }
        if queue.frames.is_empty() {
            queue.frames = VecDeque::new();
        }
        finished
    }

    /// The client takes no more for now. `waker` is woken if the socket is closed meanwhile.
    pub(super) fn stalled(&self, now: u32, waker: &Waker) {
        let mut queue = self.lock();
        queue.stalled_since.get_or_insert(now);
        queue.sleep(waker);
    }

    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every change is whole before anything that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, frame: Bytes, bounds: Bounds) -> Pushed {
        if self.state != State::Open {
            return Pushed::Closed;
        }
        if self.frames.len() >= bounds.frames || self.bytes + frame.len() > bounds.bytes {
            self.close(Close::SlowConsumer, Waiting::Dropped);
            return Pushed::Overflow;
        }
        self.add(frame);
        Pushed::Queued
    }

    fn add(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// A stalled task is woken when its client takes more, not by more to write.
    fn wake(&mut self, wakers: &mut Wakers) {
        if self.stalled_since.is_none() || self.state != State::Open {
            wakers.0.extend(self.waker.take());
        }
    }

    fn close(&mut self, close: Close, waiting: Waiting) {
        if self.state != State::Open {
            return;
        }
        if waiting == Waiting::Dropped {
            // Half a frame cannot be followed by another.
            let begun = (self.written > 0).then(|| self.frames.pop_front()).flatten();
            let written = self.written;
            self.clear();
            if let Some(begun) = begun {
                self.written = written;
                self.add(begun);
            }
        }
        self.add(codec::close(close.code(), close.reason()));
        self.state = State::Closing(close);
    }

    fn clear(&mut self) {
        self.frames = VecDeque::new();
        (self.bytes, self.written) = (0, 0);
        self.sequences = Sequences::default();
    }

    fn sleep(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const BOUNDS: Bounds = Bounds { frames: 3, bytes: 10 };

    fn frame(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn push(outbox: &Outbox, text: &'static str) -> Pushed {
        outbox.push(frame(text), BOUNDS, &mut Wakers::default())
    }

    fn fill(outbox: &Outbox, capacity: usize) -> (Next, String) {
        let mut buffer = Vec::with_capacity(capacity);
        let next = outbox.fill(&mut buffer, Waker::noop());
        (next, String::from_utf8_lossy(&buffer).into_owned())
    }

    #[test]
    fn a_frame_that_does_not_fit_closes_the_socket_and_drops_the_rest() {
        for (first, last) in [(["a", "b", "c"], "d"), (["aaa", "bbb", "ccc"], "dd")] {
            let outbox = Outbox::default();
            for text in first {
                assert_eq!(push(&outbox, text), Pushed::Queued);
            }
            outbox.wrote(0);
            assert_eq!(push(&outbox, last), Pushed::Overflow);
            assert_eq!(push(&outbox, "e"), Pushed::Closed);
            let (next, written) = fill(&outbox, 99);
            assert_eq!(next, Next::Bytes);
            assert!(
                written.ends_with("reconnect and sync")
                    && !written.contains('a'.to_string().repeat(3).as_str())
            );
        }
    }

    #[test]
    fn half_a_frame_is_finished_before_the_close() {
        let outbox = Outbox::default();
        push(&outbox, "abc");
        push(&outbox, "def");
        assert_eq!(fill(&outbox, 99).1, "abcdef");
        assert_eq!(outbox.wrote(1), 0);
        outbox.close(Close::Unauthenticated, Waiting::Dropped, &mut Wakers::default());
        let (_, rest) = fill(&outbox, 99);
        assert!(rest.starts_with("bc") && !rest.contains("def"), "{rest}");
        assert_eq!(outbox.wrote(rest.len()), 2);
        assert_eq!(fill(&outbox, 99).0, Next::Closed(Close::Unauthenticated));
    }

    #[test]
    fn a_buffer_takes_what_it_can_and_writing_goes_on_there() {
        let outbox = Outbox::default();
        push(&outbox, "abc");
        push(&outbox, "def");
        assert_eq!(fill(&outbox, 4).1, "abcd");
        assert_eq!(outbox.wrote(2), 0);
        assert_eq!(fill(&outbox, 4).1, "cdef");
        assert_eq!(outbox.wrote(4), 2);
        assert_eq!(fill(&outbox, 4), (Next::Nothing, String::new()));
        assert_eq!(outbox.lock().frames.capacity(), 0, "nothing waits, nothing is kept");
        assert_eq!(outbox.lock().bytes, 0);
    }

    #[test]
    fn what_is_asked_for_leaves_room_for_what_is_not() {
        let outbox = Outbox::default();
        let large = frame("larger than the bounds");
        assert!(outbox.push_own_if_room(&large, BOUNDS), "something must go through, however small they are");
        outbox.wrote(large.len());
        push(&outbox, "ab");
        assert!(!outbox.push_own_if_room(&frame("cdef"), BOUNDS));
        assert_eq!(fill(&outbox, 99).1, "ab");
    }

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_batch_wakes_a_task_once_and_at_its_end() {
        let (outbox, woken) = (Outbox::default(), Arc::new(Counted::default()));
        outbox.fill(&mut Vec::new(), &Arc::clone(&woken).into());
        let mut wakers = Wakers::default();
        outbox.push(frame("a"), BOUNDS, &mut wakers);
        outbox.push(frame("b"), BOUNDS, &mut wakers);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(wakers);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_stalled_task_is_woken_by_a_close_only() {
        let (outbox, woken) = (Outbox::default(), Arc::new(Counted::default()));
        push(&outbox, "a");
        outbox.stalled(7, &Arc::clone(&woken).into());
        push(&outbox, "b");
        assert_eq!((woken.0.load(Ordering::Relaxed), outbox.stalled_since()), (0, Some(7)));
        outbox.stalled(9, &Arc::clone(&woken).into());
        assert_eq!(outbox.stalled_since(), Some(7), "since it began");
        outbox.cut(Close::SlowConsumer, &mut Wakers::default());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(fill(&outbox, 9).0, Next::Cut(Close::SlowConsumer));
    }

    #[test]
    fn messages_never_go_backwards() {
        let (outbox, chat) = (Outbox::default(), ChatHash::from(&"chat_1".into()));
        let push =
            |sequence| outbox.push_in_order(chat, sequence, frame("m"), BOUNDS, &mut Wakers::default());
        assert_eq!([5, 4, 5, 6].map(push), [Pushed::Queued, Pushed::Late, Pushed::Late, Pushed::Queued]);
    }
}
