//! `GET /ws`: who is asking, and the step from HTTP to a socket.
//!
//! Everything that can be refused is refused in HTTP, with the protocol's error body, and the cheap checks come first:
//! nothing is looked up for somebody without a valid token. After the upgrade the raw TCP stream is taken out of hyper,
//! whose buffers are freed.

use std::net::SocketAddr;
use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::sessions;
use courant_pipeline::clock;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tungstenite::handshake::derive_accept_key;
use ulid::Ulid;
use warp::Reply as _;
use warp::http::{HeaderMap, HeaderValue, StatusCode, header};
use warp::reply::Response;

use super::gateway::{Gateway, Registered};
use super::metrics::Metrics;
use super::registrations;
use super::socket::Socket;
use crate::Api;
use crate::limits::Limit;

/// The subprotocol of this version; the only one that is ever selected.
const PROTOCOL: &str = "courant.v1";
/// What a token begins with where it comes as a subprotocol.
const TOKEN_PROTOCOL: &str = "bearer.";
/// How long a client may take to read the answer to its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);

/// Answers a request for a socket.
pub(super) async fn answer(
    api: Api,
    gateway: Gateway,
    headers: HeaderMap,
    from: Option<SocketAddr>,
    upgrade: Option<OnUpgrade>,
) -> Response {
    match accept(&api, &gateway, &headers, from, upgrade).await {
        Ok(response) => response,
        Err(refusal) => {
            Metrics::refused(refusal.code.as_str());
            refused(&refusal)
        }
    }
}

async fn accept(
    api: &Api,
    gateway: &Gateway,
    headers: &HeaderMap,
    from: Option<SocketAddr>,
    upgrade: Option<OnUpgrade>,
) -> Result<Response, Refusal> {
    if let Some(from) = from {
        api.limits.take(Limit::Anonymous, &from.ip().to_string()).await?;
    }
    let (key, upgrade) = handshake(headers, upgrade)?;
    check_origin(headers, &api.edge.allowed_origins)?;
    let offered = Offered::read(headers);
    let token = bearer(headers).or(offered.token).ok_or_else(|| {
        Refusal::new(
            Code::Unauthenticated,
            "an access token is needed: as 'Authorization: Bearer …', or as the subprotocols 'courant.v1, bearer.…'",
        )
    })?;
    let caller = api.authenticate.authenticate(token)?;
    // First in, then checked: a session that ends in between closes the socket.
    let registered = gateway.shared().admit(caller.clone())?;
    let now = Timestamp::from(clock::now());
    let session = sessions::validate(&*api.store, &caller.session_id, now).await.map_err(|error| {
        tracing::warn!(%error, "cannot look up a session");
        Refusal::new(Code::Unavailable, "sessions cannot be looked up now; try again")
    })?;
    if !session.is_some_and(|session| session.user_id == caller.user_id) {
        return Err(Refusal::new(Code::Unauthenticated, "the session has ended; sign in again"));
    }
    tokio::spawn(open(upgrade, registered));
    Ok(switching(&key, offered.protocol))
}

/// The key to answer and the upgrade to wait for.
fn handshake(headers: &HeaderMap, upgrade: Option<OnUpgrade>) -> Result<(String, OnUpgrade), Refusal> {
    let has = |name: header::HeaderName, word: &str| {
        words(headers, &name).any(|known| known.eq_ignore_ascii_case(word))
    };
    let asked = has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
        && has(header::SEC_WEBSOCKET_VERSION, "13");
    match (headers.get(header::SEC_WEBSOCKET_KEY), upgrade) {
        (Some(key), Some(upgrade)) if asked => Ok((derive_accept_key(key.as_bytes()), upgrade)),
        _ => {
            Err(Refusal::new(Code::BadRequest, "this path is for WebSocket upgrades (RFC 6455, version 13)"))
        }
    }
}

/// The words of a header that is a list.
fn words<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// What the client offers as subprotocols: browsers can send nothing else.
struct Offered<'a> {
    protocol: Option<&'static str>,
    token: Option<&'a str>,
}

impl<'a> Offered<'a> {
    fn read(headers: &'a HeaderMap) -> Self {
        let offered = || words(headers, &header::SEC_WEBSOCKET_PROTOCOL);
        let protocol = offered().any(|word| word == PROTOCOL).then_some(PROTOCOL);
        let token = offered().find_map(|word| word.strip_prefix(TOKEN_PROTOCOL));
        // The server must select one of what is offered, and a token is not a protocol.
        Self { protocol, token: protocol.and(token) }
    }
}

/// A browser says which page asks. Pages of this server and of those listed may; `"*"` lists all. Who is no browser says
/// nothing, or whatever it likes: this protects users of browsers, and tokens protect the server.
fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = origin.split_once("://").map(|(_, of)| of);
    let listed = allowed.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(origin));
    if listed || (own.is_some() && own == host) {
        return Ok(());
    }
    Err(Refusal::new(Code::Forbidden, "this origin is not allowed; it must be one of edge.allowed_origins"))
}

fn switching(key: &str, protocol: Option<&'static str>) -> Response {
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(key) = HeaderValue::from_str(key) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, key);
    }
    if let Some(protocol) = protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    response
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorDetail<'a>,
}

#[derive(Serialize)]
struct ErrorDetail<'a> {
    code: &'static str,
    message: &'a str,
    retryable: bool,
    retry_after_ms: Option<u64>,
    request_id: String,
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal.code {
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    let error = ErrorDetail {
        code: refusal.code.as_str(),
        message: &refusal.message,
        retryable: refusal.code.is_retryable(),
        retry_after_ms: refusal.retry_after_ms,
        request_id: format!("req_{}", Ulid::generate()),
    };
    let mut response =
        warp::reply::with_status(warp::reply::json(&ErrorBody { error }), status).into_response();
    if let Some(wait) = refusal.retry_after_ms {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait.div_ceil(1000)));
    }
    response
}

/// Takes the connection over from HTTP and serves it. What is needed before the socket runs is freed by then.
async fn open(upgrade: OnUpgrade, registered: Registered) {
    let taken_over = async {
        let upgraded = timeout(UPGRADE_LIMIT, upgrade).await;
        let (stream, early) = take_over(upgraded.ok()?.ok()?)?;
        // Known before it is welcomed: from its first frame on, a client hears what is said in its chats.
        registrations::register(&registered.shared, &registered.peer).await;
        Some((Socket::new(stream, registered), early))
    };
    if let Some((socket, early)) = Box::pin(taken_over).await {
        socket.run(early).await;
    }
}

/// The connection itself, and what of it was read already.
fn take_over(upgraded: Upgraded) -> Option<(TcpStream, Vec<u8>)> {
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => Some((parts.io.into_inner(), parts.read_buf.to_vec())),
        Err(_) => {
            tracing::error!("the server's connections are not plain TCP, so no socket can be opened on them");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_token_comes_as_a_header_or_as_a_subprotocol_beside_ours() {
        let token = |pairs: &[(&'static str, &str)]| {
            let headers = headers(pairs);
            bearer(&headers).or(Offered::read(&headers).token).map(str::to_owned)
        };
        assert_eq!(token(&[("authorization", "Bearer abc")]).as_deref(), Some("abc"));
        assert_eq!(token(&[("authorization", "Basic abc")]), None);
        let offered = |list| [("sec-websocket-protocol", list)];
        assert_eq!(token(&offered("courant.v1, bearer.a.b.c")).as_deref(), Some("a.b.c"));
        assert_eq!(token(&offered("bearer.abc")), None, "nothing of this could be selected");
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn origins_are_our_own_or_listed() {
        let allowed = ["https://chat.example".to_owned()];
        let may = |origin: Option<&str>, allowed: &[String]| {
            let mut pairs = vec![("host", "api.example:8080")];
            pairs.extend(origin.map(|origin| ("origin", origin)));
            check_origin(&headers(&pairs), allowed).is_ok()
        };
        assert!(may(None, &allowed) && may(None, &[]));
        assert!(may(Some("https://chat.example"), &allowed));
        assert!(may(Some("http://api.example:8080"), &[]));
        for bad in ["https://chat.example.evil", "https://evil", "null", ""] {
            assert!(!may(Some(bad), &allowed), "{bad}");
        }
        assert!(may(Some("https://evil"), &["*".to_owned()]));
    }
}
