//! Listening, accepting, and what one connection may cost.
//!
//! warp's own server sets no header timeout and no limit of connections, so its filters are served by hyper
//! directly. Only HTTP/1.1 is spoken: the WebSocket upgrade needs it, and the negotiation of warp's server
//! waits without limit for a first byte. `visitors` says who makes room when there is none, `stream` what becomes of
//! clients that do not read.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warp::Filter;
use warp::reply::Response;

use super::exchange::Exchange;
use super::open_files::connections_within;
use super::stream::ClientStream;
use super::visitors::{House, Visit, Visitors};
use super::{Routes, metrics};
use crate::config::EdgeConfig;
use crate::control::Control;

/// A client that takes longer to say anything, to send its headers or to begin its next request is cut off.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Far more than any client of the protocol sends, far less than hyper's 400 KiB.
const MAX_HEADER_BYTES: usize = 16 * 1024;
/// Connections get this long to finish their request when the process stops.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Connections that the system keeps until they are accepted; it may be set to keep fewer. The usual 128 are too few: a
/// crowd that comes at once, as after another gateway has stopped, would leave others to try again after a second.
const BACKLOG: u32 = 4096;
/// Pause after an accept failed because the process has no file left; one may be closed until then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);

/// Why the server could not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "cannot listen on {address}: the address is in use; stop the process that has it, \
         or set `edge.listen` to another port"
    )]
    InUse { address: SocketAddr },
    #[error(
        "cannot listen on {address}: this machine has no such address; \
         set `edge.listen` to one it has, or to 0.0.0.0 for all"
    )]
    NoSuchAddress { address: SocketAddr },
    #[error("cannot listen on {address}: not permitted; set `edge.listen` to a port above 1023")]
    NotPermitted { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Other { address: SocketAddr, source: io::Error },
}

impl ListenError {
    fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            io::ErrorKind::AddrNotAvailable => Self::NoSuchAddress { address },
            io::ErrorKind::PermissionDenied => Self::NotPermitted { address },
            _ => Self::Other { address, source },
        }
    }
}

/// A place among the connections that there may be: an extension of every request. Whoever keeps the connection beyond
/// its request, as a socket does, keeps this as long.
#[derive(Clone)]
pub struct ConnectionSlot(#[expect(dead_code, reason = "held, not looked at")] Arc<OwnedSemaphorePermit>);

/// A bound listener; nothing is answered before [`HttpServer::run`].
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    connections: Arc<Semaphore>,
    visitors: Arc<Visitors>,
    trusted_proxies: Arc<[IpNet]>,
}

impl HttpServer {
    #[expect(
        clippy::unused_async,
        reason = "a listener belongs to a runtime and is not bound outside of one"
    )]
    pub async fn bind(config: &EdgeConfig) -> Result<Self, ListenError> {
        let failed = |error| ListenError::new(config.listen, error);
        let listener = listen(config.listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let connections = connections_within(config.max_connections.get());
        let connections =
            Arc::new(Semaphore::new(usize::try_from(connections).unwrap_or(Semaphore::MAX_PERMITS)));
        let trusted_proxies = config.trusted_proxies();
        let per_address = usize::try_from(config.max_connections_per_address.get()).unwrap_or(usize::MAX);
        let visitors = Visitors::new(per_address, Arc::clone(&trusted_proxies));
        metrics::describe();
        Ok(Self { listener, address, connections, visitors, trusted_proxies })
    }

    /// Where it listens, with the port that was chosen if the config asked for any.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then finishes requests under way, within a bound. Without routes of clients it answers
    /// operators only.
    pub async fn run(self, control: Arc<dyn Control>, clients: Option<Routes>, stop: CancellationToken) {
        let routes = super::routes(control, clients);
        let ending = Ending { stop: stop.clone(), cut: CancellationToken::new() };
        let tasks = TaskTracker::new();
        let accepting = async {
            loop {
                let Some((stream, peer)) = self.accept().await else { continue };
                let Some(from) = self.admit(peer).await else { continue };
                tasks.spawn(serve(stream, from, routes.clone(), ending.clone()));
            }
        };
        stop.run_until_cancelled(accepting).await;
        drop(self.listener);
        tasks.close();
        if timeout(DRAIN_LIMIT, tasks.wait()).await.is_err() {
            tracing::warn!(connections = tasks.len(), "cut connections that did not finish in time");
            ending.cut.cancel();
            tasks.wait().await;
        }
    }

    /// Finds a place for a new connection; `None` if its address has all it may have.
    async fn admit(&self, peer: SocketAddr) -> Option<Arrival> {
        let house = if self.connections.available_permits() == 0 { House::Full } else { House::HasRoom };
        let Ok(visit) = self.visitors.enter(peer.ip(), house) else {
            metrics::refused();
            return None;
        };
        // full: whoever waited for a request has just been cut; if nobody did, newcomers wait in the system's queue
        let permit = Arc::clone(&self.connections).acquire_owned().await.ok()?;
        let (slot, visit) = (ConnectionSlot(Arc::new(permit)), Arc::new(visit));
        Some(Arrival { peer, slot, visit, trusted_proxies: Arc::clone(&self.trusted_proxies) })
    }

    async fn accept(&self) -> Option<(TcpStream, SocketAddr)> {
        match self.listener.accept().await {
            Ok(accepted) => Some(accepted),
            // The client gave up before we came to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => None,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // The address is ours again at once after a restart.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How connections learn that the server ends.
#[derive(Clone)]
struct Ending {
    /// Requests under way are answered, and nothing else.
    stop: CancellationToken,
    /// Whatever is left ends now.
    cut: CancellationToken,
}

/// The connection that requests come over.
#[derive(Clone)]
struct Arrival {
    peer: SocketAddr,
    slot: ConnectionSlot,
    visit: Arc<Visit>,
    trusted_proxies: Arc<[IpNet]>,
}

/// What routes need to be, to answer everything.
trait Answers:
    Filter<Extract = (Response,), Error = Infallible, Future: Send> + Clone + Send + Sync + 'static
{
}
impl<R> Answers for R where
    R: Filter<Extract = (Response,), Error = Infallible, Future: Send> + Clone + Send + Sync + 'static
{
}

async fn serve<R: Answers>(stream: TcpStream, from: Arrival, routes: R, ending: Ending) {
    // Buffers are for those who say something. That a socket may be readable is no word yet, so it is looked at.
    let mut first = [0];
    let has_spoken = tokio::select! {
        spoken = timeout(HEADER_TIMEOUT, stream.peek(&mut first)) => matches!(spoken, Ok(Ok(1))),
        () = from.visit.cut() => false,
        () = ending.stop.cancelled() => false,
    };
    if has_spoken {
        Box::pin(converse(stream, from, routes, ending)).await;
    }
}

async fn converse<R: Answers>(stream: TcpStream, from: Arrival, routes: R, ending: Ending) {
    // Answers are small and complete; waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(&routes, &from, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_header_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(ClientStream::new(stream)), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = from.visit.cut() => return,
        () = ending.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let Some(ended) = ending.cut.run_until_cancelled(connection).await else { return };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// One request, from its head to the head of its response.
fn answer<R: Answers, B>(
    routes: &R,
    from: &Arrival,
    request: Request<B>,
) -> impl Future<Output = Result<Response, Infallible>> + Send + use<R, B>
where
    B: Body + Send + Sync + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut head, body) = request.into_parts();
    let asking = from.visit.ask();
    let exchange =
        Exchange::begin(&head.headers, &mut head.extensions, from.peer.ip(), &from.trusted_proxies);
    head.extensions.insert(from.slot.clone());
    let service = TowerToHyperService::new(warp::service(routes.clone()));
    let answering = service.call(Request::from_parts(head, body));
    async move {
        // Its connection is being cut: nothing is begun that could not be answered.
        let Some(_asking) = asking else { return pending().await };
        answering.await.map(|response| exchange.end(response))
    }
}

/// Answers one request as the server does, without a socket.
#[cfg(test)]
pub(crate) async fn answer_here<B>(routes: &Routes, peer: SocketAddr, request: Request<B>) -> Response
where
    B: Body + Send + Sync + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("nobody else has it");
    let slot = ConnectionSlot(Arc::new(permit));
    let alone = Visitors::new(1, Arc::new([]));
    let visit = alone.enter(peer.ip(), House::HasRoom).expect("nobody else is here");
    let from = Arrival { peer, slot, visit: Arc::new(visit), trusted_proxies: Arc::new([]) };
    let routes = routes.clone().recover(super::error::answer).unify();
    match answer(&routes, &from, request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a task is made of while its client says nothing.
    fn silent_size<R: Answers, F: Future>(_: &R, _: impl Fn(TcpStream, Arrival, R, Ending) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_silent_connection_is_small() {
        let routes = super::super::routes(crate::fake::FakeControl::with(Vec::new()), None);
        let size = silent_size(&routes, serve);
        assert!(size <= 1536, "{size} bytes, for each of ten thousand");
    }
}
