//! A proxy on loopback that stands before a server of DynamoDB's protocol and harms what passes.
//!
//! It knows calls by their operation, so that a test says "the next `UpdateItem` is done and its answer lost"
//! and not "the third packet". What is not named passes unharmed. It counts, so that a test can tell how
//! often a client tried.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// What happens to a call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// None.
    Pass,
    /// It passes, after a while.
    Delay(Duration),
    /// It is done, and the connection ends without an answer.
    LoseAnswer,
    /// It is not done, and the connection ends.
    LoseRequest,
    /// It is not done, and no answer ever comes.
    Hang,
    /// It is done, and no answer ever comes.
    HangAnswer,
    /// It is done late, when [`let_through`](FaultyProxy::let_through) is called.
    HoldBack,
    /// It is not done; this is the answer.
    Answer { status: u16, body: Value },
    /// A batch of one table, of which only so many are done; the rest is given back as unprocessed.
    DoOnly(usize),
}

impl Fault {
    /// An error of DynamoDB, with the status it has there.
    pub fn error(code: &str) -> Self {
        let status = if code == "InternalServerError" { 500 } else { 400 };
        let body =
            json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "injected" });
        Self::Answer { status, body }
    }

    pub fn throttle() -> Self {
        Self::error("ProvisionedThroughputExceededException")
    }
}

/// Ends when it is dropped.
pub struct FaultyProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    server: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    plan: Mutex<Plan>,
}

#[derive(Default)]
struct Plan {
    next: HashMap<String, VecDeque<Fault>>,
    /// Calls with all of these in them, before anything else that is planned.
    certain: Vec<(String, Vec<String>, Fault)>,
    always: HashMap<String, Fault>,
    calls: HashMap<String, usize>,
    hanging: usize,
    held_back: Vec<HeldBack>,
}

/// A call that is done when it is told to go, and tells when it is.
struct HeldBack {
    go: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl FaultyProxy {
    pub async fn before(server: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let shared = Arc::new(Shared { server, client, plan: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let accepting = Mutex::new(Some(tokio::spawn(accept(listener, Arc::clone(&shared)))));
        Self { address, shared, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happens to the next calls of an operation, such as `UpdateItem`; those after them pass.
    pub fn plan(&self, operation: &str, faults: impl IntoIterator<Item = Fault>) {
        self.with_plan(|plan| plan.next.entry(operation.to_owned()).or_default().extend(faults));
    }

    /// What happens to the next call of an operation that has all of this in it, such as the names of a table and of an
    /// attribute; others pass.
    pub fn plan_where(&self, operation: &str, says: &[&str], fault: Fault) {
        let says = says.iter().map(|&part| part.to_owned()).collect();
        self.with_plan(|plan| plan.certain.push((operation.to_owned(), says, fault)));
    }

    /// What happens to all calls of an operation that nothing else is planned for.
    pub fn always(&self, operation: &str, fault: Fault) {
        self.with_plan(|plan| plan.always.insert(operation.to_owned(), fault));
    }

    /// From now on everything passes.
    pub fn heal(&self) {
        self.with_plan(|plan| {
            plan.next.clear();
            plan.certain.clear();
            plan.always.clear();
        });
    }

    /// How often the operation was called so far.
    pub fn calls(&self, operation: &str) -> usize {
        self.with_plan(|plan| plan.calls.get(operation).copied().unwrap_or_default())
    }

    /// Lets everything be done that was held back; returns once it is.
    pub async fn let_through(&self) {
        for HeldBack { go, done } in self.with_plan(|plan| std::mem::take(&mut plan.held_back)) {
            go.send(()).expect("the connection of who is held back has ended");
            done.await.expect("the server answers");
        }
    }

    /// How many calls so far wait, held back or for an answer that never comes; those that were to be done before are.
    pub fn hanging(&self) -> usize {
        self.with_plan(|plan| plan.hanging)
    }

    fn with_plan<T>(&self, change: impl FnOnce(&mut Plan) -> T) -> T {
        change(&mut self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends all connections; new ones are refused until [`come_back`](Self::come_back).
    pub async fn go_away(&self) {
        let accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(accepting) = accepting {
            accepting.abort();
            accepting.await.ok();
        }
    }

    pub async fn come_back(&self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is still free");
        let accepting = tokio::spawn(accept(listener, Arc::clone(&self.shared)));
        *self.accepting.lock().unwrap_or_else(PoisonError::into_inner) = Some(accepting);
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            accepting.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends the connections.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| handle(Arc::clone(&shared), request));
            // An error is a connection that was ended on purpose, by one side or the other.
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

/// An error ends the connection without an answer.
async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let operation = operation_of(&request);
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let fault = shared.next_fault(&operation, &body);
    let whole = Request::from_parts(parts, Full::new(body.clone()));
    match fault {
        Fault::Pass => shared.forward(whole).await,
        Fault::Delay(delay) => {
            tokio::time::sleep(delay).await;
            shared.forward(whole).await
        }
        Fault::LoseAnswer => {
            shared.forward(whole).await?;
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        Fault::LoseRequest => Err(io::ErrorKind::ConnectionAborted.into()),
        Fault::Hang => shared.hang().await,
        Fault::HangAnswer => {
            shared.forward(whole).await?;
            shared.hang().await
        }
        Fault::HoldBack => {
            let done = shared.hold_back().await?;
            let answer = shared.forward(whole).await?;
            done.send(()).ok(); // nobody may want to know
            Ok(answer)
        }
        Fault::Answer { status, body } => answer(status, &body),
        Fault::DoOnly(count) => {
            let split = split(&operation, &body, count)?;
            let mut done = json!({});
            if count > 0 {
                let answered = shared.forward(whole.map(|_| Full::new(split.done))).await?;
                let Ok(body) = answered.into_body().collect().await;
                done = serde_json::from_slice(&body.to_bytes())?;
            }
            done[split.field] = split.undone;
            answer(200, &done)
        }
    }
}

impl Shared {
    fn next_fault(&self, operation: &str, body: &Bytes) -> Fault {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *plan.calls.entry(operation.to_owned()).or_default() += 1;
        let body = String::from_utf8_lossy(body);
        let is_meant = |(of, says, _): &(String, Vec<String>, Fault)| {
            of == operation && says.iter().all(|part| body.contains(part.as_str()))
        };
        if let Some(at) = plan.certain.iter().position(is_meant) {
            return plan.certain.remove(at).2;
        }
        let planned = plan.next.get_mut(operation).and_then(VecDeque::pop_front);
        planned.or_else(|| plan.always.get(operation).cloned()).unwrap_or(Fault::Pass)
    }

    async fn hang<T>(&self) -> T {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).hanging += 1;
        std::future::pending().await
    }

    /// Waits to be let through; where to say that it is done.
    async fn hold_back(&self) -> io::Result<oneshot::Sender<()>> {
        let ((go, goes), (is_done, done)) = (oneshot::channel(), oneshot::channel());
        {
            let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.held_back.push(HeldBack { go, done });
            plan.hanging += 1;
        }
        goes.await.map_err(io::Error::other)?;
        Ok(is_done)
    }

    async fn forward(&self, mut request: Request<Full<Bytes>>) -> io::Result<Response<Full<Bytes>>> {
        *request.uri_mut() = format!("http://{}/", self.server).parse().map_err(io::Error::other)?;
        request.headers_mut().remove(hyper::header::CONTENT_LENGTH);
        let (parts, body) = self.client.request(request).await.map_err(io::Error::other)?.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(Response::from_parts(parts, Full::new(body)))
    }
}

/// `UpdateItem` of the header `x-amz-target: DynamoDB_20120810.UpdateItem`.
fn operation_of(request: &Request<Incoming>) -> String {
    let target = request.headers().get("x-amz-target").and_then(|target| target.to_str().ok());
    target.and_then(|target| target.rsplit('.').next()).unwrap_or_default().to_owned()
}

fn answer(status: u16, body: &Value) -> io::Result<Response<Full<Bytes>>> {
    Response::builder()
        .status(status)
        .header("content-type", "application/x-amz-json-1.0")
        .body(Full::new(body.to_string().into()))
        .map_err(io::Error::other)
}

struct Split {
    /// The request with only as many as are done.
    done: Bytes,
    /// Under which name the answer gives back the rest.
    field: &'static str,
    undone: Value,
}

fn split(operation: &str, body: &Bytes, count: usize) -> io::Result<Split> {
    let wrong = || io::Error::other(format!("{operation} is no batch of one table"));
    let mut request: Value = serde_json::from_slice(body)?;
    let tables = request.get_mut("RequestItems").and_then(Value::as_object_mut).ok_or_else(wrong)?;
    let (table, of_table) = tables.iter_mut().next().ok_or_else(wrong)?;
    let (field, list) = match operation {
        "BatchWriteItem" => ("UnprocessedItems", of_table.as_array_mut()),
        "BatchGetItem" => ("UnprocessedKeys", of_table.get_mut("Keys").and_then(Value::as_array_mut)),
        _ => return Err(wrong()),
    };
    let list = list.ok_or_else(wrong)?;
    let rest = list.split_off(count.min(list.len()));
    let undone = match field {
        _ if rest.is_empty() => json!({}),
        "UnprocessedKeys" => json!({ table: { "Keys": rest } }),
        _ => json!({ table: rest }),
    };
    Ok(Split { done: serde_json::to_vec(&request)?.into(), field, undone })
}
