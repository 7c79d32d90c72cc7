//! Keeps live state and the store in agreement with this gateway's sockets.
//!
//! Live state knows which connections there are, for as long as it is told, and can forget all of them at any moment. So
//! some connection is told of every few seconds, and each before its time is over; once one turns out to be
//! forgotten, all are told of at once. A connection that was forgotten is told of again only after the store has
//! said that its session goes on: that it is not known may be because its session has ended and nobody told us.
//! Likewise every session is looked up again after a gap in what was heard, with the first sweep after its socket was
//! opened, and now and then; also while live state is down, which is when nothing is heard.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_connectors::live::{CONNECTION_TTL, Connection, LiveError};
use courant_connectors::model::tables::sessions;
use courant_connectors::model::{ConnectionId, SessionId, Timestamp};
use courant_connectors::store::StoreError;
use courant_pipeline::clock;
use futures::stream::{self, StreamExt as _};
use rustc_hash::FxHashSet;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::close::Close;
use super::gateway::Shared;
use super::outbox::{Waiting, Wakers};
use super::peer::Peer;
use super::ticks;

/// How long it takes to notice that live state was wiped, at most.
const SWEEP: Duration = Duration::from_secs(5);
/// Half of what live state grants, and a sweep before that: one that fails can be made up for.
const BEAT_AFTER: Duration = CONNECTION_TTL.checked_div(2).expect("not zero").saturating_sub(SWEEP);
/// A session that ended without anybody hearing of it is found after this at the latest.
pub(super) const CONFIRM_AFTER: Duration = Duration::from_secs(600);
/// Connections that one call tells of.
const AT_ONCE: usize = 500;
/// Connections that are registered at the same time.
const REGISTERING: usize = 32;
/// A new socket does not wait longer for live state; a sweep makes up for it.
const REGISTER_LIMIT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Registrations {
    /// As many as there were sockets, at most: each departs once.
    departed: Mutex<Vec<Connection>>,
    left: Notify,
    gap: Notify,
    /// Held while live state is told, so that whoever ends last knows that nobody else is still at it.
    telling: tokio::sync::Mutex<()>,
}

impl Registrations {
    /// The connection is gone; live state is told with others.
    pub(super) fn departed(&self, connection: Connection) {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        self.left.notify_one();
    }

    /// Something may have been missed.
    pub(super) fn gap(&self) {
        self.gap.notify_one();
    }

    fn take_departed(&self) -> Vec<Connection> {
        std::mem::take(&mut self.departed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Connections that live state does not know.
type Unknown = FxHashSet<ConnectionId>;

/// Why connections are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Because {
    ItIsTime,
    /// Everything may be otherwise.
    OfAGap,
}

pub(super) async fn run(shared: Arc<Shared>) {
    let mut sweeps = interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let because = tokio::select! {
            () = shared.registrations.left.notified() => {
                forget_departed(&shared).await;
                continue;
            }
            () = shared.registrations.gap.notified() => Because::OfAGap,
            _ = sweeps.tick() => Because::ItIsTime,
        };
        if let Err(error) = sweep(&shared, because, shared.ticks.now()).await {
            tracing::warn!(%error, "cannot keep connections known; trying again");
            if because == Because::OfAGap {
                tokio::time::sleep(Duration::from_secs(1)).await;
                shared.registrations.gap();
            }
        }
    }
}

/// Tells live state of a new socket. If it cannot be told, the socket works but for what is fanned out, until a sweep
/// finds it unknown.
pub(super) async fn register(shared: &Shared, peer: &Peer) {
    match timeout(REGISTER_LIMIT, shared.live.register(&peer.connection)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a connection is not known to live state yet"),
        Err(_) => tracing::warn!("a connection is not known to live state yet: it took too long"),
    }
}

/// Takes out of live state who has left.
pub(super) async fn forget_departed(shared: &Shared) {
    let _telling = shared.registrations.telling.lock().await;
    let departed = shared.registrations.take_departed();
    for departed in departed.chunks(AT_ONCE) {
        // What stays ends by itself.
        if let Err(error) = shared.live.unregister(departed).await {
            tracing::debug!(%error, "connections that ended stay known for a while");
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SweepError {
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) async fn sweep(shared: &Shared, because: Because, now: u32) -> Result<(), SweepError> {
    let all: Vec<Arc<Peer>> = shared.registry.read().all().cloned().collect();
    let told = tell(shared, &all, because, now).await;
    look_up(shared, &all, because, told, now).await
}

/// Closes the sockets whose sessions have ended and tells live state again of those it has forgotten. The first also if
/// live state was not told: sessions are the store's.
pub(super) async fn look_up(
    shared: &Shared,
    all: &[Arc<Peer>],
    because: Because,
    told: Result<Unknown, LiveError>,
    now: u32,
) -> Result<(), SweepError> {
    let is_unknown = |peer: &Peer| told.as_ref().is_ok_and(|unknown| unknown.contains(&peer.connection.id));
    let to_confirm =
        |peer: &&Arc<Peer>| because == Because::OfAGap || peer.is_to_be_confirmed(now) || is_unknown(peer);
    let to_confirm: Vec<_> = all.iter().filter(to_confirm).cloned().collect();
    let mut forgotten = confirm(shared, &to_confirm, now).await?;
    forgotten.retain(|peer| is_unknown(peer));
    register_again(shared, forgotten).await?;
    told?;
    Ok(())
}

/// Tells live state of those it may forget, and of all if it has forgotten one; those it does not know.
async fn tell(shared: &Shared, all: &[Arc<Peer>], because: Because, now: u32) -> Result<Unknown, LiveError> {
    let is_due =
        |peer: &&Arc<Peer>| because == Because::OfAGap || peer.unbeaten_for(now) >= ticks::of(BEAT_AFTER);
    let mut due: Vec<_> = all.iter().filter(is_due).cloned().collect();
    if due.is_empty() {
        // Somebody must notice if live state was wiped.
        due.extend(all.first().cloned());
    }
    let unknown = beat(shared, &due, now).await?;
    if unknown.is_empty() || due.len() == all.len() {
        return Ok(unknown);
    }
    beat(shared, all, now).await
}

/// Tells live state that connections are there; those it does not know.
async fn beat(shared: &Shared, peers: &[Arc<Peer>], now: u32) -> Result<Unknown, LiveError> {
    let mut unknown = FxHashSet::default();
    for peers in peers.chunks(AT_ONCE) {
        let connections: Vec<_> = peers.iter().map(|peer| peer.connection.clone()).collect();
        unknown.extend(shared.live.heartbeat(&connections).await?);
        for peer in peers.iter().filter(|peer| !unknown.contains(&peer.connection.id)) {
            peer.beaten(now);
        }
    }
    Ok(unknown)
}

/// Closes the sockets whose sessions have ended; the others.
async fn confirm(shared: &Shared, peers: &[Arc<Peer>], now: u32) -> Result<Vec<Arc<Peer>>, StoreError> {
    let mut confirmed = Vec::with_capacity(peers.len());
    for peers in peers.chunks(AT_ONCE) {
        let sessions: Vec<SessionId> = peers.iter().map(|peer| peer.session.clone()).collect();
        let goes_on =
            sessions::validate_all(&*shared.store, &sessions, Timestamp::from(clock::now())).await?;
        let mut wakers = Wakers::default();
        for (peer, goes_on) in peers.iter().zip(goes_on) {
            if goes_on {
                peer.confirmed_until(now.saturating_add(ticks::of(CONFIRM_AFTER)));
                confirmed.push(Arc::clone(peer));
            } else {
                peer.outbox.close(Close::Unauthenticated, Waiting::Dropped, &mut wakers);
            }
        }
    }
    Ok(confirmed)
}

async fn register_again(shared: &Shared, peers: Vec<Arc<Peer>>) -> Result<(), SweepError> {
    let register = async |peer: Arc<Peer>| {
        shared.live.register(&peer.connection).await?;
        shared.metrics.renewed.increment(1);
        // It may have left meanwhile, and must not be known for ever.
        if shared.registry.read().get(&peer.connection.id).is_none() {
            shared.registrations.departed(peer.connection.clone());
        }
        Ok::<_, LiveError>(())
    };
    let mut registered = stream::iter(peers).map(register).buffer_unordered(REGISTERING);
    while let Some(registered) = registered.next().await {
        registered?;
    }
    Ok(())
}
