//! A proxy on loopback that stands before a Kafka broker and lets produce requests get stuck.
//!
//! It knows requests by their key in the protocol, so that a test says "the next record never arrives" or "it is
//! appended and nobody hears of it" and not "the third packet". Everything else passes. The broker has to name the
//! proxy's address as its own, since clients connect to what it tells them: [`Tansu::behind`](super::Tansu::behind).

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The key of `Produce` in the protocol.
const PRODUCE: i16 = 0;
/// Of a request before its client's name: key, version, correlation id.
const REQUEST_HEAD: usize = 8;
/// More than brokers take.
const MAX_FRAME: usize = 100 << 20;

/// Where a produce request gets stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// It never arrives.
    Request,
    /// It is done, and its answer never comes.
    Answer,
}

/// Ends when it is dropped.
pub struct KafkaProxy {
    address: SocketAddr,
    plan: Arc<Mutex<Plan>>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Plan {
    next: Option<Point>,
    stuck: usize,
}

impl KafkaProxy {
    /// Listens for clients of a broker that need not run yet.
    pub async fn before(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let plan = Arc::<Mutex<Plan>>::default();
        let accepting = tokio::spawn(accept(listener, broker, Arc::clone(&plan)));
        Self { address, plan, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next produce request gets stuck here, and its connection with it.
    pub fn stick(&self, point: Point) {
        lock(&self.plan).next = Some(point);
    }

    /// How many requests so far are stuck; those that were to be done before are.
    pub fn stuck(&self) -> usize {
        lock(&self.plan).stuck
    }
}

impl Drop for KafkaProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, broker: SocketAddr, plan: Arc<Mutex<Plan>>) {
    // Dropped with this task, which ends the connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let plan = Arc::clone(&plan);
        // An error is a connection that one side or the other ended.
        connections.spawn(async move { pass(client, broker, &plan).await.ok() });
        while connections.try_join_next().is_some() {}
    }
}

/// Until either side ends, which ends the other.
async fn pass(mut client: TcpStream, broker: SocketAddr, plan: &Mutex<Plan>) -> io::Result<()> {
    let mut broker = TcpStream::connect(broker).await?;
    for stream in [&client, &broker] {
        stream.set_nodelay(true)?;
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_broker, mut to_broker) = broker.split();
    let unanswered = Mutex::<HashSet<[u8; 4]>>::default();
    let requests = async {
        loop {
            let frame = read_frame(&mut from_client).await?;
            match point_of(&frame, plan) {
                Some(Point::Request) => stick(plan).await,
                Some(Point::Answer) => {
                    let correlation = frame[8..12].try_into().expect("it has a whole head");
                    unanswered.lock().unwrap_or_else(PoisonError::into_inner).insert(correlation);
                }
                None => {}
            }
            to_broker.write_all(&frame).await?;
        }
    };
    let answers = async {
        loop {
            let frame = read_frame(&mut from_broker).await?;
            let is_unanswered = frame
                .get(4..8)
                .is_some_and(|id| unanswered.lock().unwrap_or_else(PoisonError::into_inner).contains(id));
            if is_unanswered {
                stick(plan).await;
            }
            to_client.write_all(&frame).await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        ended = answers => ended,
    }
}

/// With its length, as it goes over the wire.
async fn read_frame(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let bytes = usize::try_from(u32::from_be_bytes(length)).map_err(io::Error::other)?;
    if bytes > MAX_FRAME {
        return Err(io::Error::other(format!("a frame of {bytes} bytes")));
    }
    let mut frame = length.to_vec();
    frame.resize(4 + bytes, 0);
    stream.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

/// Where this request gets stuck, if it is one that was waited for.
fn point_of(frame: &[u8], plan: &Mutex<Plan>) -> Option<Point> {
    let head = frame.get(4..4 + REQUEST_HEAD)?;
    let is_produce = i16::from_be_bytes([head[0], head[1]]) == PRODUCE;
    if is_produce { lock(plan).next.take() } else { None }
}

async fn stick(plan: &Mutex<Plan>) {
    lock(plan).stuck += 1;
    std::future::pending::<()>().await;
}
