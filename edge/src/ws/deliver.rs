//! What is published to this gateway: deliveries for its sockets, and sessions that have ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::live::{Channel, Heard, Listener, LiveError};
use courant_connectors::model::frames::{Delivery, Revoked, read_deliveries};
use tokio::time::sleep;

use super::close::Close;
use super::codec;
use super::gateway::Shared;
use super::outbox::{Pushed, Waiting, Wakers};
use super::registry::Peers;
use super::sequences::ChatHash;

/// Between attempts to listen; listeners come back by themselves, so this is for a level that is not there at all.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        let Err(error) = listen(&shared).await;
        tracing::warn!(%error, "cannot hear what is published to this gateway; trying again");
        sleep(PAUSE).await;
    }
}

async fn listen(shared: &Shared) -> Result<std::convert::Infallible, LiveError> {
    let revoked = Channel::revoked_sessions();
    let channels = [Channel::deliver(&shared.id), revoked.clone()];
    let mut listener: Box<dyn Listener> = shared.live.subscribe(&channels).await?;
    // Nobody knows what was said before.
    shared.registrations.gap();
    loop {
        match listener.next().await? {
            Heard::Message { channel, payload } if channel == revoked => revoke(shared, &payload),
            Heard::Message { payload, .. } => deliver(shared, &payload),
            Heard::Gap => shared.registrations.gap(),
        }
    }
}

/// Puts every frame of a publish into the outboxes it is for, then wakes their sockets.
fn deliver(shared: &Shared, publish: &Bytes) {
    let (peers, mut wakers, mut counts) = (shared.registry.read(), Wakers::default(), Counts::default());
    for delivery in read_deliveries(publish) {
        match delivery {
            Ok(delivery) => hand_out(shared, &peers, &delivery, &mut wakers, &mut counts),
            Err(error) => tracing::warn!(%error, "left out a delivery that cannot be read"),
        }
    }
    drop(peers);
    wakers.wake();
    shared.metrics.delivered.increment(counts.delivered);
    shared.metrics.late.increment(counts.late);
    shared.metrics.overflowed.increment(counts.overflowed);
    shared.metrics.unknown.increment(counts.unknown);
}

#[derive(Default)]
struct Counts {
    delivered: u64,
    late: u64,
    overflowed: u64,
    unknown: u64,
}

fn hand_out(shared: &Shared, peers: &Peers, delivery: &Delivery, wakers: &mut Wakers, counts: &mut Counts) {
    let (frame, chat) = (codec::text(&delivery.frame), ChatHash::from(&delivery.chat_id));
    for connection in &delivery.connections {
        // It left, and live state has not heard of it.
        let Some(peer) = peers.get(connection) else {
            counts.unknown += 1;
            continue;
        };
        let pushed = match delivery.sequence {
            Some(sequence) => peer.outbox.push_in_order(chat, sequence, frame.clone(), shared.bounds, wakers),
            None => peer.outbox.push(frame.clone(), shared.bounds, wakers),
        };
        match pushed {
            Pushed::Queued => counts.delivered += 1,
            Pushed::Late => counts.late += 1,
            Pushed::Overflow => counts.overflowed += 1,
            Pushed::Closed => counts.unknown += 1,
        }
    }
}

/// Closes the sockets of sessions that have ended.
fn revoke(shared: &Shared, payload: &Bytes) {
    let revoked: Revoked = match serde_json::from_slice(payload) {
        Ok(revoked) => revoked,
        Err(error) => {
            tracing::error!(%error, "cannot read which sessions have ended; looking all of them up");
            return shared.registrations.gap();
        }
    };
    let (peers, mut wakers) = (shared.registry.read(), Wakers::default());
    let ended = peers
        .of_user(&revoked.user_id)
        .filter(|peer| revoked.session_ids.is_empty() || revoked.session_ids.contains(&peer.session));
    for peer in ended {
        peer.outbox.close(Close::Unauthenticated, Waiting::Dropped, &mut wakers);
    }
}
