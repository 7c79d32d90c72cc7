//! What waits for one listener: bounded in messages and in bytes, and honest about what did not fit.
//!
//! Whoever publishes never waits for whoever listens: a message that does not fit is dropped and leaves a
//! [`Heard::Gap`] in its place, so the listener learns where in the order it missed something. A channel of tokio
//! would lose that place, since nothing can be added to it when it is full.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Heard, Limits};

pub(crate) struct ListenerQueue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    limits: Limits,
}

#[derive(Default)]
struct Waiting {
    heard: VecDeque<Heard>,
    bytes: usize,
}

impl ListenerQueue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { waiting: Mutex::default(), arrived: Notify::new(), limits }
    }

    /// Never waits. Full: the message is dropped and a gap takes its place.
    pub(crate) fn push(&self, heard: Heard) {
        let mut waiting = self.lock();
        let size = payload_size(&heard);
        let fits = waiting.heard.len() < self.limits.queue_messages
            && waiting.bytes + size <= self.limits.queue_bytes;
        if fits && heard != Heard::Gap {
            waiting.bytes += size;
            waiting.heard.push_back(heard);
        } else if waiting.heard.back() != Some(&Heard::Gap) {
            // One place beyond the limit at most, since nothing but a gap is added there.
            waiting.heard.push_back(Heard::Gap);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Cancel-safe: what is taken is returned without waiting again.
    pub(crate) async fn next(&self) -> Heard {
        loop {
            let taken = self.take();
            if let Some(heard) = taken {
                return heard;
            }
            // A push between the look and here has left a permit, so it is not slept through.
            self.arrived.notified().await;
        }
    }

    fn take(&self) -> Option<Heard> {
        let mut waiting = self.lock();
        let heard = waiting.heard.pop_front()?;
        waiting.bytes -= payload_size(&heard);
        Some(heard)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn payload_size(heard: &Heard) -> usize {
    match heard {
        Heard::Message { payload, .. } => payload.len(),
        Heard::Gap => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;

    use super::*;
    use crate::live::Channel;

    fn message(payload: &'static [u8]) -> Heard {
        Heard::Message { channel: Channel::named("c"), payload: Bytes::from_static(payload) }
    }

    fn drain(queue: &ListenerQueue) -> Vec<Heard> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn what_does_not_fit_leaves_one_gap_in_its_place() {
        let queue = ListenerQueue::new(Limits { queue_messages: 2, ..Limits::default() });
        for payload in [b"1", b"2", b"3", b"4"] {
            queue.push(message(payload));
        }
        assert_eq!(queue.take(), Some(message(b"1")));
        queue.push(message(b"5"));
        assert_eq!(drain(&queue), [message(b"2"), Heard::Gap]);
        queue.push(message(b"6"));
        assert_eq!(drain(&queue), [message(b"6")]);
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let queue = ListenerQueue::new(Limits { queue_bytes: 4, ..Limits::default() });
        for payload in [&b"123"[..], b"45", b"6", b"too long"] {
            queue.push(message(payload));
        }
        assert_eq!(drain(&queue), [message(b"123"), Heard::Gap, message(b"6"), Heard::Gap]);
        queue.push(message(b"1234"));
        assert_eq!(drain(&queue), [message(b"1234")]);
    }

    #[test]
    fn gaps_add_up_to_one() {
        let queue = ListenerQueue::new(Limits::default());
        queue.push(Heard::Gap);
        queue.push(Heard::Gap);
        queue.push(message(b"1"));
        queue.push(Heard::Gap);
        assert_eq!(drain(&queue), [Heard::Gap, message(b"1"), Heard::Gap]);
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_nothing() {
        let queue = ListenerQueue::new(Limits::default());
        assert_eq!(queue.next().now_or_never(), None);
        queue.push(message(b"1"));
        // Whether a wait ends at its first poll or is dropped after it, the message is not gone.
        let polled_once = [queue.next().now_or_never(), queue.next().now_or_never()];
        assert!(polled_once.contains(&Some(message(b"1"))), "{polled_once:?}");
    }
}
