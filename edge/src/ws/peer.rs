//! One connected client, as the rest of the process sees it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use courant_connectors::live::Connection;
use courant_connectors::model::SessionId;

use super::outbox::Outbox;

/// Times are the gateway's [`Ticks`](super::ticks::Ticks), half as wide as an instant: there are many sockets.
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) session: SessionId,
    pub(super) outbox: Outbox,
    /// How many sockets there were before it; given by the registry.
    number: AtomicU64,
    /// Messages without an answer so far.
    in_flight: AtomicU32,
    heard_at: AtomicU32,
    beaten_at: AtomicU32,
    /// When to look at the session next, whatever was heard of it.
    confirm_at: AtomicU32,
    /// Its session was found when it was opened.
    is_let_in: AtomicBool,
}

impl Peer {
    pub(super) fn new(connection: Connection, session: SessionId, now: u32) -> Self {
        Self {
            connection,
            session,
            outbox: Outbox::default(),
            number: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            heard_at: AtomicU32::new(now),
            beaten_at: AtomicU32::new(now),
            // At once: it may have ended while the socket was opened.
            confirm_at: AtomicU32::new(now),
            is_let_in: AtomicBool::new(false),
        }
    }

    /// Called by the registry.
    pub(super) fn let_in(&self) {
        self.is_let_in.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_let_in(&self) -> bool {
        self.is_let_in.load(Ordering::Relaxed)
    }

    /// Called once, by the registry.
    pub(super) fn numbered(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(super) fn heard(&self, now: u32) {
        self.heard_at.store(now, Ordering::Relaxed);
    }

    pub(super) fn silent_for(&self, now: u32) -> u32 {
        now.saturating_sub(self.heard_at.load(Ordering::Relaxed))
    }

    /// Live state was told that the connection is there.
    pub(super) fn beaten(&self, now: u32) {
        self.beaten_at.store(now, Ordering::Relaxed);
    }

    pub(super) fn unbeaten_for(&self, now: u32) -> u32 {
        now.saturating_sub(self.beaten_at.load(Ordering::Relaxed))
    }

    /// The store said that the session goes on.
    pub(super) fn confirmed_until(&self, at: u32) {
        self.confirm_at.store(at, Ordering::Relaxed);
    }

    pub(super) fn is_to_be_confirmed(&self, now: u32) -> bool {
        self.confirm_at.load(Ordering::Relaxed) <= now
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
