//! Sending clients elsewhere when the process stops.
//!
//! Nothing is read any more; messages under way are answered, clients are told when to come back, each at another
//! moment, and sockets close. What takes too long is cut.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::{Instant, sleep};

use super::close::Close;
use super::frames::{self, Drain};
use super::gateway::Shared;
use super::outbox::{Waiting, Wakers};
use super::{registrations, watermarks};

/// Between looks at who is done.
const LOOK: Duration = Duration::from_millis(20);
const SOONEST: Duration = Duration::from_secs(1);
/// What is left of the time for closing, once answers are not waited for any more.
const CLOSING: u32 = 2;

pub(super) async fn drain(shared: &Shared) {
    let limit = shared.config.drain_timeout.0;
    let (until, close_at) = (Instant::now() + limit, Instant::now() + limit / CLOSING);
    shared.begin_draining();
    announce(shared);
    while shared.registry.read().len() > 0 && Instant::now() < until {
        close_idle(shared, Instant::now() >= close_at);
        sleep(LOOK).await;
    }
    let cut = cut_all(shared);
    if cut > 0 {
        tracing::warn!(sockets = cut, "cut sockets that did not end in time");
    }
    // Whatever was told or cut leaves live state now: nobody else would take it out before its time is over.
    let finish = async {
        watermarks::hand_in(shared).await;
        registrations::forget_departed(shared).await;
    };
    if tokio::time::timeout(limit, finish).await.is_err() {
        tracing::warn!("stopped without telling live state; it forgets these connections by itself");
    }
}

fn announce(shared: &Shared) {
    let latest = shared.config.reconnect_within.0.max(SOONEST).as_millis();
    let (soonest, latest) = (SOONEST.as_millis(), latest);
    let mut wakers = Wakers::default();
    for peer in shared.registry.read().all() {
        let after = rand::rng().random_range(soonest..=latest);
        let frame = Drain { reconnect_after_ms: u64::try_from(after).unwrap_or(u64::MAX) };
        let _ = peer.outbox.push(frames::encode(&frame), shared.bounds, &mut wakers);
    }
}

/// Closes those that wait for no answer, or all.
fn close_idle(shared: &Shared, all: bool) {
    let mut wakers = Wakers::default();
    for peer in shared.registry.read().all() {
        if all || peer.in_flight() == 0 {
            peer.outbox.close(Close::Draining, Waiting::Written, &mut wakers);
        }
    }
}

fn cut_all(shared: &Shared) -> usize {
    let (peers, mut wakers) = (shared.registry.read(), Wakers::default());
    for peer in peers.all() {
        peer.outbox.cut(Close::Draining, &mut wakers);
        shared.registrations.departed(peer.connection.clone());
    }
    peers.len()
}
