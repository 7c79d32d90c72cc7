//! This process's sockets: where they are found, and what runs beside them.
//!
//! A socket is one task. What is done for many at a time is done by a few tasks for all of them: [`deliver`] hands out what
//! is published, [`answers`] what became of commands, [`watermarks`] collects acks, [`watch`] looks for
//! silent and stalled ones, [`registrations`] keeps them known to live state. So a connection needs no timer and no
//! queue of its own.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use courant_connectors::live::{Connection, Live};
use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::{ConnectionId, GatewayId, Timestamp};
use courant_connectors::store::ReadStore;
use courant_pipeline::clock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::answers::{self, Unanswered};
use super::close::Close;
use super::config::SocketConfig;
use super::frames::{self, Welcome};
use super::metrics::Metrics;
use super::outbox::{Bounds, Waiting, Wakers};
use super::peer::Peer;
use super::registrations::{self, Registrations};
use super::registry::{NoRoom, Registry, Room};
use super::ticks::Ticks;
use super::watermarks::{self, Watermarks};
use super::{deliver, drain, watch};
use crate::Api;
use crate::auth::Caller;
use crate::commands::Commands;
use crate::http::ConnectionSlot;
use crate::limits::Limits;

/// Commands whose answers may wait to be waited for. Full: their sockets wait.
const UNANSWERED: usize = 8192;
/// When to try again with a server that has no room, or is going away.
const ELSEWHERE_AFTER: Duration = Duration::from_secs(2);

/// Clones are the same gateway.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

pub(super) struct Shared {
    pub(super) id: GatewayId,
    pub(super) config: SocketConfig,
    pub(super) bounds: Bounds,
    pub(super) store: Arc<dyn ReadStore>,
    pub(super) live: Arc<dyn Live>,
    pub(super) commands: Commands,
    pub(super) limits: Limits,
    pub(super) registry: Registry,
    pub(super) registrations: Registrations,
    pub(super) watermarks: Watermarks,
    pub(super) unanswered: mpsc::Sender<Unanswered>,
    pub(super) metrics: Metrics,
    pub(super) ticks: Ticks,
    /// No socket is opened or read any more.
    draining: AtomicBool,
    /// The other end of `unanswered`, until somebody runs the gateway.
    to_answer: Mutex<Option<mpsc::Receiver<Unanswered>>>,
}

impl Gateway {
    /// Nothing is delivered or answered before [`run`](Self::run).
    pub fn new(api: &Api) -> Self {
        let config = api.edge.socket.clone();
        let bounds = Bounds {
            frames: config.outbox_frames.get() as usize,
            bytes: usize::try_from(config.outbox_bytes.0).unwrap_or(usize::MAX),
        };
        let (unanswered, to_answer) = mpsc::channel(UNANSWERED); // full: the socket that asked waits
        super::metrics::describe();
        Self(Arc::new(Shared {
            id: api.gateway.clone(),
            config,
            bounds,
            store: Arc::clone(&api.store),
            live: Arc::clone(&api.live),
            commands: api.commands.clone(),
            limits: api.limits.clone(),
            registry: Registry::default(),
            registrations: Registrations::default(),
            watermarks: Watermarks::default(),
            unanswered,
            metrics: Metrics::new(),
            ticks: Ticks::begin(),
            draining: AtomicBool::new(false),
            to_answer: Mutex::new(Some(to_answer)),
        }))
    }

    /// Serves sockets until `stop`, then sends their clients elsewhere, within a bound. Once.
    pub async fn run(&self, stop: CancellationToken) {
        let to_answer = self.0.to_answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(to_answer) = to_answer else { return };
        let mut tasks = JoinSet::new();
        tasks.spawn(answers::run(Arc::clone(&self.0), to_answer));
        tasks.spawn(watermarks::run(Arc::clone(&self.0)));
        tasks.spawn(deliver::run(Arc::clone(&self.0)));
        tasks.spawn(watch::run(Arc::clone(&self.0)));
        tasks.spawn(registrations::run(Arc::clone(&self.0)));
        tokio::select! {
            () = stop.cancelled() => {}
            // They end only by a panic. Clients are better off elsewhere than with half a gateway.
            ended = tasks.join_next() => tracing::error!(?ended, "part of the gateway failed, closing its sockets"),
        }
        drain::drain(&self.0).await;
    }

    /// How many sockets are open.
    pub fn sockets(&self) -> usize {
        self.0.registry.read().len()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Shared {
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn begin_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Makes room for a socket. From here on it hears if its session is ended. Its first frame waits in its outbox.
    pub(super) fn admit(
        self: &Arc<Self>,
        caller: Caller,
        slot: Option<ConnectionSlot>,
    ) -> Result<Registered, Refusal> {
        let unavailable =
            |message: &str| Refusal::new(Code::Unavailable, message).retry_after(ELSEWHERE_AFTER);
        if self.is_draining() {
            return Err(unavailable("the server is stopping; connect to another"));
        }
        let connection = Connection {
            id: ConnectionId::generate(),
            user: caller.user_id,
            device: caller.device_id,
            gateway: self.id.clone(),
            connected_at: clock::now(),
        };
        let peer = Arc::new(Peer::new(connection, caller.session_id, self.ticks.now()));
        peer.outbox.push_own(self.welcome(&peer.connection), self.bounds);
        self.registry
            .add(&peer, self.room())
            .map_err(|NoRoom| unavailable("the server has no room for another socket; connect to another"))?;
        self.metrics.connections.increment(1.0);
        self.metrics.opened.increment(1);
        Ok(Registered { shared: Arc::clone(self), peer, _slot: slot })
    }

    /// How many sockets somebody has is limited like what they ask for, and as long; how many there are always is.
    fn room(&self) -> Room {
        let of_somebody =
            |most: NonZeroU32| if self.limits.are_on() { most.get() as usize } else { usize::MAX };
        Room {
            sockets: self.config.max_sockets.get() as usize,
            per_device: of_somebody(self.config.max_per_device),
            per_user: of_somebody(self.config.max_per_user),
        }
    }

    fn welcome(&self, connection: &Connection) -> bytes::Bytes {
        frames::encode(&Welcome {
            connection_id: connection.id.as_str(),
            user_id: connection.user.as_str(),
            device_id: connection.device.as_str(),
            heartbeat_seconds: self.config.heartbeat.interval().as_secs(),
            server_time: Timestamp::from(connection.connected_at),
        })
    }
}

/// A socket's place in the gateway; gone when it is dropped, whatever its task came to.
pub(super) struct Registered {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Arc<Peer>,
    _slot: Option<ConnectionSlot>,
}

impl Registered {
    /// Its session was found: older sockets of the same user make room for it, if there are too many.
    pub(super) fn let_in(&self) {
        let mut wakers = Wakers::default();
        for older in self.shared.registry.let_in(&self.peer, self.shared.room()) {
            older.outbox.close(Close::Replaced, Waiting::Dropped, &mut wakers);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.registry.remove(&self.peer);
        self.shared.registrations.departed(self.peer.connection.clone());
        self.shared.metrics.connections.decrement(1.0);
    }
}
