//! Which connections exist.

use std::slice::from_ref;
use std::time::{Duration, SystemTime};

use courant_connectors::live::{Connection, Limits, Live};
use courant_connectors::model::{ConnectionId, GatewayId, UserId};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{SHORT, Subject, eventually, short_limits};

pub async fn a_registered_connection_is_found_whole(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let connection = connection();
    live.register(&connection).await.unwrap();
    assert_eq!(of_user(&*live, &connection.user).await, from_ref(&connection));
    assert_eq!(live.connections_on(&connection.gateway).await.unwrap(), from_ref(&connection.id));
    assert_eq!(live.heartbeat(&[connection]).await.unwrap(), []);
}

pub async fn who_is_not_connected_has_no_connections(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    assert_eq!(live.connections_of(&[]).await.unwrap(), Vec::<Vec<Connection>>::new());
    assert_eq!(live.connections_on(&GatewayId::generate()).await.unwrap(), []);
    let connection = connection();
    live.register(&connection).await.unwrap();
    let asked = [UserId::generate(), connection.user.clone(), UserId::generate(), connection.user.clone()];
    let found = live.connections_of(&asked).await.unwrap();
    assert_eq!(found, [vec![], vec![connection.clone()], vec![], vec![connection]]);
}

pub async fn a_user_has_several_devices_on_several_gateways(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let phone = connection();
    let tablet = Connection { user: phone.user.clone(), ..connection() };
    let laptop = Connection { user: phone.user.clone(), gateway: phone.gateway.clone(), ..connection() };
    let other = Connection { gateway: phone.gateway.clone(), ..connection() };
    for connection in [&phone, &tablet, &laptop, &other] {
        live.register(connection).await.unwrap();
    }
    assert_eq!(of_user(&*live, &phone.user).await, sorted([&phone, &tablet, &laptop]));
    assert_eq!(on_gateway(&*live, &phone.gateway).await, ids(sorted([&phone, &laptop, &other])));
    assert_eq!(on_gateway(&*live, &tablet.gateway).await, [tablet.id]);
}

pub async fn registering_again_changes_nothing(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let connection = connection();
    for _ in 0..3 {
        live.register(&connection).await.unwrap();
    }
    assert_eq!(of_user(&*live, &connection.user).await, from_ref(&connection));
    assert_eq!(live.connections_on(&connection.gateway).await.unwrap(), [connection.id]);
}

pub async fn a_connection_that_changes_hands_belongs_to_one_user(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let before = connection();
    let after = Connection { id: before.id.clone(), ..connection() };
    live.register(&before).await.unwrap();
    live.register(&after).await.unwrap();
    assert_eq!(of_user(&*live, &before.user).await, []);
    assert_eq!(live.connections_on(&before.gateway).await.unwrap(), []);
    assert_eq!(of_user(&*live, &after.user).await, from_ref(&after));
    assert_eq!(live.connections_on(&after.gateway).await.unwrap(), [after.id]);
}

pub async fn unregistering_forgets_those_named_and_no_others(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let kept = connection();
    let gone = Connection { user: kept.user.clone(), gateway: kept.gateway.clone(), ..connection() };
    let elsewhere = connection();
    for connection in [&kept, &gone, &elsewhere] {
        live.register(connection).await.unwrap();
    }
    live.unregister(&[]).await.unwrap();
    let never_known = connection();
    live.unregister(&[gone.clone(), elsewhere.clone(), never_known]).await.unwrap();
    assert_eq!(of_user(&*live, &kept.user).await, from_ref(&kept));
    assert_eq!(live.connections_on(&kept.gateway).await.unwrap(), [kept.id]);
    assert_eq!(of_user(&*live, &elsewhere.user).await, []);
    assert_eq!(live.connections_on(&elsewhere.gateway).await.unwrap(), []);
    assert_eq!(live.heartbeat(from_ref(&gone)).await.unwrap(), [gone.id]);
}

pub async fn heartbeats_name_connections_that_are_not_known(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let connections = [connection(), connection(), connection(), connection()];
    for known in [&connections[1], &connections[3]] {
        live.register(known).await.unwrap();
    }
    let unknown = live.heartbeat(&connections).await.unwrap();
    assert_eq!(unknown, [connections[0].id.clone(), connections[2].id.clone()]);
    assert_eq!(of_user(&*live, &connections[0].user).await, [], "a heartbeat alone makes nothing known");
    assert_eq!(live.heartbeat(&[]).await.unwrap(), []);
}

pub async fn a_connection_without_heartbeats_ends(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(short_limits()).await;
    let silent = connection();
    let alive = Connection { user: silent.user.clone(), gateway: silent.gateway.clone(), ..connection() };
    live.register(&silent).await.unwrap();
    live.register(&alive).await.unwrap();
    let registered = Instant::now();
    eventually("the end of a connection", async || {
        keep(&*live, &alive).await;
        (of_user(&*live, &silent.user).await == [alive.clone()]).then_some(())
    })
    .await;
    // Its time may have begun a moment before the call returned.
    assert!(registered.elapsed() > SHORT.mul_f64(0.9), "it ended after {:?}", registered.elapsed());
    assert_eq!(live.connections_on(&silent.gateway).await.unwrap(), [alive.id]);
    assert_eq!(live.heartbeat(from_ref(&silent)).await.unwrap(), from_ref(&silent.id));

    live.register(&silent).await.unwrap();
    assert!(of_user(&*live, &silent.user).await.contains(&silent), "what ended can come back");
}

/// Keeps it known even if the machine stalled.
async fn keep(live: &dyn Live, connection: &Connection) {
    if !live.heartbeat(from_ref(connection)).await.unwrap().is_empty() {
        live.register(connection).await.unwrap();
    }
}

pub async fn heartbeats_keep_a_connection(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(short_limits()).await;
    let connection = connection();
    live.register(&connection).await.unwrap();
    let registered = Instant::now();
    while registered.elapsed() < SHORT * 2 {
        assert_eq!(live.heartbeat(from_ref(&connection)).await.unwrap(), []);
        assert_eq!(of_user(&*live, &connection.user).await, from_ref(&connection));
        assert_eq!(live.connections_on(&connection.gateway).await.unwrap(), from_ref(&connection.id));
        sleep(SHORT / 10).await;
    }
}

pub async fn many_are_asked_for_at_once(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let gateway = GatewayId::generate();
    let connections: Vec<Connection> =
        (0..1500).map(|_| Connection { gateway: gateway.clone(), ..connection() }).collect();
    let registered =
        stream::iter(&connections).map(|connection| live.register(connection)).buffer_unordered(50);
    registered.try_collect::<Vec<()>>().await.unwrap();
    let users: Vec<UserId> = connections.iter().map(|connection| connection.user.clone()).collect();
    let found = live.connections_of(&users).await.unwrap();
    assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), connections);
    assert_eq!(live.heartbeat(&connections).await.unwrap(), []);
    assert_eq!(on_gateway(&*live, &gateway).await.len(), connections.len());
    live.unregister(&connections).await.unwrap();
    assert_eq!(on_gateway(&*live, &gateway).await, []);
    assert_eq!(live.heartbeat(&connections).await.unwrap().len(), connections.len());
}

pub async fn ids_may_be_any_text(start: impl AsyncFn(Limits) -> Subject) {
    let Subject { live, server: _server } = start(Limits::default()).await;
    let unique = UserId::generate();
    let connection = Connection {
        id: format!("接続 {unique}\n\"{{x}}").into(),
        user: format!("ユーザー:{unique}:{{}}").into(),
        device: "📱 \\ \u{0}".into(),
        gateway: format!("gw ü *?[] {unique}").into(),
        connected_at: SystemTime::UNIX_EPOCH,
    };
    live.register(&connection).await.unwrap();
    assert_eq!(of_user(&*live, &connection.user).await, from_ref(&connection));
    assert_eq!(live.connections_on(&connection.gateway).await.unwrap(), from_ref(&connection.id));
    live.unregister(from_ref(&connection)).await.unwrap();
    assert_eq!(of_user(&*live, &connection.user).await, []);
}

/// Another user's on another gateway, every time.
pub fn connection() -> Connection {
    Connection {
        id: ConnectionId::generate(),
        user: UserId::generate(),
        device: "device_1".into(),
        gateway: GatewayId::generate(),
        connected_at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_783_400_123),
    }
}

async fn of_user(live: &dyn Live, user: &UserId) -> Vec<Connection> {
    let mut found = live.connections_of(from_ref(user)).await.unwrap();
    assert_eq!(found.len(), 1, "one list per user");
    sorted(found.swap_remove(0).iter())
}

async fn on_gateway(live: &dyn Live, gateway: &GatewayId) -> Vec<ConnectionId> {
    let mut found = live.connections_on(gateway).await.unwrap();
    found.sort();
    found
}

fn sorted<'a>(connections: impl IntoIterator<Item = &'a Connection>) -> Vec<Connection> {
    let mut connections: Vec<Connection> = connections.into_iter().cloned().collect();
    connections.sort_by(|a, b| a.id.cmp(&b.id));
    connections
}

fn ids(connections: Vec<Connection>) -> Vec<ConnectionId> {
    connections.into_iter().map(|connection| connection.id).collect()
}
