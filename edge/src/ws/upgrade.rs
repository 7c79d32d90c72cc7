//! `GET /ws`: who is asking, and the step from HTTP to a socket.
//!
//! Everything that can be refused is refused in HTTP, with the protocol's error body, and the cheap checks come first:
//! nothing is looked up for somebody without a valid token. After the upgrade the raw TCP stream is taken out of hyper,
//! whose buffers are freed.

use std::time::Duration;

use courant_connectors::model::Timestamp;
use courant_connectors::model::commands::{Code, Refusal};
use courant_connectors::model::tables::sessions;
use courant_pipeline::clock;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tungstenite::handshake::derive_accept_key;
use warp::Reply as _;
use warp::http::{HeaderMap, HeaderValue, StatusCode, header};
use warp::reply::Response;

use super::gateway::{Gateway, Registered};
use super::metrics::Metrics;
use super::registrations;
use super::socket::Socket;
use crate::Api;
use crate::http::{ClientAddress, ClientStream, ConnectionSlot, refused};
use crate::limits::{Limit, by_address};

/// The subprotocol of this version; the only one that is ever selected.
const PROTOCOL: &str = "courant.v1";
/// What a token begins with where it comes as a subprotocol.
const TOKEN_PROTOCOL: &str = "bearer.";
/// How long a client may take to read the answer to its upgrade.
const UPGRADE_LIMIT: Duration = Duration::from_secs(10);

/// What of a request decides whether it becomes a socket.
pub(super) struct Asked {
    pub(super) headers: HeaderMap,
    pub(super) from: Option<ClientAddress>,
    /// Its place among the server's connections, kept as long as the socket.
    pub(super) slot: Option<ConnectionSlot>,
    pub(super) upgrade: Option<OnUpgrade>,
}

/// Answers a request for a socket.
pub(super) async fn answer(api: Api, gateway: Gateway, asked: Asked) -> Response {
    match accept(&api, &gateway, asked).await {
        Ok(response) => response,
        Err(refusal) => {
            Metrics::refused(refusal.code.as_str());
            let mut response = refused(refusal);
            // It was for a socket and nothing else.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

async fn accept(api: &Api, gateway: &Gateway, asked: Asked) -> Result<Response, Refusal> {
    let Asked { headers, from, slot, upgrade } = asked;
    if let Some(ClientAddress(address)) = from {
        api.limits.take(Limit::Anonymous, &by_address(address)).await?;
    }
    let (key, upgrade) = handshake(&headers, upgrade)?;
    if !api.origins.admit(&headers) {
        return Err(Refusal::new(
            Code::Forbidden,
            "this page may not connect; edge.allowed_origins does not name it",
        ));
    }
    let offered = Offered::read(&headers);
    let token = bearer(&headers).or(offered.token).ok_or_else(|| {
        Refusal::new(
            Code::Unauthenticated,
            "an access token is needed: as 'Authorization: Bearer …', or as the subprotocols 'courant.v1, bearer.…'",
        )
    })?;
    let caller = api.authenticate.authenticate(token)?;
    // First in, then checked: a session that ends in between closes the socket.
    let registered = gateway.shared().admit(caller.clone(), slot)?;
    let now = Timestamp::from(clock::now());
    let session = sessions::validate(&*api.store, &caller.session_id, now).await.map_err(|error| {
        tracing::warn!(%error, "cannot look up a session");
        Refusal::new(Code::Unavailable, "sessions cannot be looked up now; try again")
    })?;
    if session.is_none_or(|session| session.user_id != caller.user_id) {
        return Err(Refusal::new(Code::Unauthenticated, "the session has ended; sign in again"));
    }
    registered.let_in();
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
    let Ok(parts) = upgraded.downcast::<TokioIo<ClientStream>>() else {
        tracing::error!("the server's connections are not plain TCP, so no socket can be opened on them");
        return None;
    };
    Some((parts.io.into_inner().into_inner(), parts.read_buf.to_vec()))
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
}
