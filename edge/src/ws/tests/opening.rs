//! From HTTP to a socket, or not.

use courant_client::ClientError;
use courant_connectors::model::tables::sessions::revoke;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use super::*;

#[tokio::test]
async fn a_client_is_welcomed_and_known() {
    let world = world().await;
    let client = world.sign_in("user_1", "sess_1").await;
    let mut socket = client.connect().await.unwrap();
    let welcome = frame(&mut socket).await;
    assert_eq!((&welcome["user_id"], &welcome["device_id"]), (&json!("user_1"), &json!("dev_1")));
    assert_eq!(welcome["heartbeat_seconds"], 30);
    assert!(welcome["connection_id"].as_str().unwrap().starts_with("conn_"));
    assert!(welcome["server_time"].as_str().unwrap().parse::<Timestamp>().is_ok());
    assert_eq!(world.known("user_1").await, 1, "before it was welcomed");
    drop(socket);
    until(async || world.known("user_1").await == 0).await;
    assert_eq!(world.gateway.sockets(), 0);
}

#[tokio::test]
async fn nobody_gets_in_without_a_session() {
    let world = world().await;
    let refused = async |client: Client| match client.connect().await.err() {
        Some(ClientError::Refused { status, body }) => {
            assert!(body["error"]["request_id"].as_str().unwrap().starts_with("req_"));
            (status, body["error"]["code"].as_str().unwrap().to_owned())
        }
        other => panic!("{other:?}"),
    };
    let unauthenticated = (401, "UNAUTHENTICATED".to_owned());
    assert_eq!(refused(world.client("garbage")).await, unauthenticated);
    assert_eq!(refused(world.client("user_1/sess_unknown")).await, unauthenticated);
    let client = world.sign_in("user_1", "sess_1").await;
    assert_eq!(refused(world.client("user_2/sess_1")).await, unauthenticated, "another's session");
    revoke(&*world.store, &"sess_1".into()).await.unwrap();
    assert_eq!(refused(client).await, unauthenticated, "it has ended");
    assert_eq!(world.gateway.sockets(), 0);
    assert_eq!(world.known("user_1").await, 0);
}

/// The answer to an upgrade with these headers instead of a token.
async fn upgrade(world: &World, path: &str, headers: &[(&'static str, &str)]) -> Result<Option<String>, u16> {
    let mut request = format!("ws://{}{path}", world.address).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let stream = TcpStream::connect(world.address).await.unwrap();
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((_, response)) => {
            Ok(response.headers().get("sec-websocket-protocol").map(|p| p.to_str().unwrap().to_owned()))
        }
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn browsers_bring_their_token_as_a_subprotocol_and_never_in_the_url() {
    let world = world().await;
    world.sign_in("user_1", "sess_1").await;
    // A subprotocol cannot hold a slash, so this one is believed only as a header.
    let header = [("authorization", "Bearer user_1/sess_1")];
    assert_eq!(upgrade(&world, "/ws", &header).await, Ok(None));
    let both = [header[0], ("sec-websocket-protocol", "courant.v1, bearer.x")];
    assert_eq!(upgrade(&world, "/ws", &both).await, Ok(Some("courant.v1".to_owned())));
    let offered = [("sec-websocket-protocol", "courant.v1, bearer.user_1/sess_1")];
    assert_eq!(upgrade(&world, "/ws", &offered).await, Ok(Some("courant.v1".to_owned())));
    for url in ["/ws?token=user_1/sess_1", "/ws?access_token=user_1/sess_1"] {
        assert_eq!(upgrade(&world, url, &[]).await, Err(401), "{url}");
    }
}

#[tokio::test]
async fn pages_of_others_are_refused() {
    let world = world().await;
    world.sign_in("user_1", "sess_1").await;
    let from = async |origin: &str| {
        upgrade(&world, "/ws", &[("authorization", "Bearer user_1/sess_1"), ("origin", origin)]).await
    };
    assert_eq!(from("https://chat.example").await, Ok(None));
    assert_eq!(from("https://evil.example").await, Err(403));
    assert_eq!(from(&format!("http://{}", world.address)).await, Ok(None), "the server's own is no other's");
    assert_eq!(world.gateway.sockets().min(1), world.gateway.sockets(), "the refused one is not counted");
}

#[tokio::test]
async fn what_is_no_upgrade_gets_the_error_body() {
    let world = world().await;
    let answer = world.client("user_1/sess_1").call(hyper::Method::GET, "/ws", None).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.body["error"]["code"]), (400, &json!("BAD_REQUEST")));
}

#[tokio::test]
async fn a_device_that_connects_too_often_loses_its_oldest_socket() {
    let world = world_with_limits(SocketConfig { max_per_device: limit(2), ..SocketConfig::default() }).await;
    let client = world.sign_in("user_1", "sess_1").await;
    let (mut first, _) = welcomed(&client).await;
    let (mut second, _) = welcomed(&client).await;
    let _third = welcomed(&client).await;
    assert_eq!(closed(&mut first).await, Some(4409));
    second.send(&json!({"type": "heartbeat"})).await.unwrap();
    assert_eq!(frame(&mut second).await["type"], "heartbeat");
}

/// A benchmark of idle sockets needs no user for each.
#[tokio::test]
async fn without_limits_somebody_has_as_many_sockets_as_there_is_room_for() {
    let few = SocketConfig {
        max_sockets: limit(4),
        max_per_device: limit(1),
        max_per_user: limit(1),
        ..SocketConfig::default()
    };
    let world = world_with(few).await;
    let client = world.sign_in("user_1", "sess_1").await;
    let mut sockets = Vec::new();
    for _ in 0..4 {
        sockets.push(welcomed(&client).await.0);
    }
    assert!(matches!(client.connect().await.err(), Some(ClientError::Refused { status: 503, .. })));
    for socket in &mut sockets {
        socket.send(&json!({"type": "heartbeat"})).await.unwrap();
        assert_eq!(frame(socket).await["type"], "heartbeat", "none was closed");
    }
}

/// A token outlives its session by minutes. Whoever has stolen one is refused, and cannot push out its owner either.
#[tokio::test]
async fn a_token_of_a_session_that_has_ended_replaces_nobody() {
    let world = world_with_limits(SocketConfig { max_per_device: limit(1), ..SocketConfig::default() }).await;
    let (mut socket, _) = world.connect("user_1").await;
    let stolen = world.sign_in("user_1", "sess_stolen").await;
    revoke(&*world.store, &"sess_stolen".into()).await.unwrap();
    for _ in 0..5 {
        assert!(matches!(stolen.connect().await.err(), Some(ClientError::Refused { status: 401, .. })));
    }
    socket.send(&json!({"type": "heartbeat"})).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "heartbeat");
}

#[tokio::test]
async fn a_full_gateway_says_so() {
    let world = world_with(SocketConfig { max_sockets: limit(1), ..SocketConfig::default() }).await;
    let (_first, _) = world.connect("user_1").await;
    let second = world.sign_in("user_2", "sess_2").await;
    match second.connect().await.err() {
        Some(ClientError::Refused { status: 503, body }) => {
            assert_eq!(body["error"]["code"], "UNAVAILABLE");
            assert!(body["error"]["retry_after_ms"].as_u64().unwrap() > 0);
        }
        other => panic!("{other:?}"),
    }
}

/// Frames that come in the same packet as the request for the upgrade are not lost.
#[tokio::test]
async fn what_comes_with_the_upgrade_is_heard() {
    let world = world().await;
    world.sign_in("user_1", "sess_1").await;
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    let mut request = upgrade_request("user_1/sess_1").into_bytes();
    // A ping with a mask of zeros.
    request.extend_from_slice(&[0x89, 0x82, 0, 0, 0, 0, b'h', b'i']);
    stream.write_all(&request).await.unwrap();
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    let answered = async {
        while !all.ends_with(b"\x8a\x02hi") {
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "closed after {}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&buffer[..read]);
        }
    };
    timeout(LIMIT, answered).await.expect("the ping is answered");
    let text = String::from_utf8_lossy(&all);
    assert!(text.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "the key of RFC 6455 is accepted as it says");
}

#[tokio::test]
async fn many_who_may_not_leave_nothing_behind() {
    let world = world().await;
    for attempt in 0..200 {
        let refused = world.client(&format!("nobody-{attempt}")).connect().await.is_err();
        assert!(refused);
    }
    assert_eq!(world.gateway.sockets(), 0);
    assert!(world.gateway.shared().registry.read().all().next().is_none());
    // The door is still open to others.
    let (mut socket, _) = world.connect("user_1").await;
    socket.send(&json!({"type": "heartbeat"})).await.unwrap();
    assert_eq!(frame(&mut socket).await["type"], "heartbeat");
}
