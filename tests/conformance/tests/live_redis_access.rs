//! The rules that a grant comes to are enough for the connector on a real server, and stop it beyond: where the handle
//! with the same grant does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use courant_conformance::servers::redis::{RedisCluster, RedisServer};
use courant_connectors::capability::policy::{RedisServers, redis_acl};
use courant_connectors::capability::{Access, Grant, RestrictedLive};
use courant_connectors::live::{
    Channel, Connection, Counters, Live, LiveError, Presence, PresenceBoard, Result, Status,
};
use courant_connectors::model::{ChatId, GatewayId, UserId};
use courant_connectors::redis::{Redis, RedisConfig};
use redis::Cmd;

const USER: &str = "courant-test";

/// A client that may do what is granted, by the rules as they are printed.
async fn with_grant(
    nodes: &[&RedisServer],
    mut config: RedisConfig,
    grant: &Grant,
    kind: RedisServers,
) -> Redis {
    let rule = redis_acl(grant, USER, kind).expect("there is something to allow");
    let mut command = Cmd::new();
    for word in rule.split(' ') {
        command.arg(word);
    }
    command.arg(">hunter2");
    for node in nodes {
        node.ask::<()>(&command);
    }
    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "hunter2").unwrap();
    config.username = Some(USER.to_owned());
    config.password_file = Some(password.path().to_owned());
    Redis::open(&config).await.unwrap()
}

#[track_caller]
fn refused<T>(answer: Result<T>) {
    match answer.map(drop) {
        Err(LiveError::Refused(why)) => {
            assert!(why.contains("NOPERM") || why.contains("permission"), "{why}");
        }
        Err(LiveError::NotAllowed { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn user() -> UserId {
    "user_1".into()
}

fn connection() -> Connection {
    Connection {
        id: "conn_1".into(),
        user: user(),
        device: "device_1".into(),
        gateway: gateway(),
        connected_at: SystemTime::UNIX_EPOCH,
    }
}

fn gateway() -> GatewayId {
    "gw_1".into()
}

fn presence() -> Presence {
    Presence { status: Status::Online, last_seen: "2025-01-01T00:00:00Z".to_owned() }
}

fn message() -> [(Channel, Bytes); 1] {
    [(Channel::deliver(&gateway()), Bytes::from_static(b"x"))]
}

async fn fill(redis: &dyn Live) -> Result<bool> {
    let chat: ChatId = "chat_1".into();
    redis.fill(redis.begin_fill(&chat).await?, &[user()]).await
}

/// What keeps sockets known and hears what is for them.
fn gateways_grant() -> Grant {
    Grant::nothing()
        .family("connection", Access::Write)
        .family("user_connections", Access::Write)
        .family("gateway_connections", Access::Write)
        .family("deliver", Access::Read)
}

/// What finds sockets and sends to them.
fn fan_outs_grant() -> Grant {
    Grant::nothing()
        .family("connection", Access::Read)
        .family("user_connections", Access::Read)
        .family("chat_members", Access::Read)
        .family("chat_members", Access::Write)
        .family("deliver", Access::Write)
}

async fn does_what_a_gateway_does_and_no_more(redis: &dyn Live) {
    redis.register(&connection()).await.unwrap();
    assert_eq!(redis.heartbeat(&[connection()]).await.unwrap(), []);
    let mut listener = redis.subscribe(&[Channel::deliver(&gateway())]).await.unwrap();
    refused(redis.publish(&message()).await);
    refused(redis.subscribe(&[Channel::named("other")]).await);
    refused(redis.connections_of(&[user()]).await);
    refused(redis.set_presence(&user(), presence()).await);
    refused(fill(redis).await);
    refused(redis.count("logins", 1, Duration::from_secs(60)).await);
    redis.unregister(&[connection()]).await.unwrap();
    let _ = tokio::time::timeout(Duration::ZERO, listener.next()).await;
}

async fn does_what_a_fan_out_does_and_no_more(redis: &dyn Live) {
    assert_eq!(redis.connections_of(&[user()]).await.unwrap(), [[]]);
    assert!(fill(redis).await.unwrap());
    assert_eq!(redis.members(&["chat_1".into()]).await.unwrap(), [Some(vec![user()])]);
    redis.invalidate(&["chat_1".into()]).await.unwrap();
    redis.publish(&message()).await.unwrap();
    refused(redis.subscribe(&[Channel::deliver(&gateway())]).await);
    refused(redis.publish(&[(Channel::named("other"), Bytes::new())]).await);
    // PEXPIRE is allowed, for members of chats; the key is not.
    refused(redis.heartbeat(&[connection()]).await);
    refused(redis.connections_on(&gateway()).await);
    refused(redis.presence_of(&[user()]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_enough_and_not_too_much_on_a_server() {
    let server = RedisServer::start();
    let open = async |grant: Grant| {
        with_grant(&[&server], RedisConfig::server(server.url()), &grant, RedisServers::Single).await
    };
    does_what_a_gateway_does_and_no_more(&open(gateways_grant()).await).await;
    // One that has ended and may not be taken out by who only reads.
    server.ask::<()>(redis::cmd("SADD").arg("user_connections:user_1").arg("conn_gone"));
    does_what_a_fan_out_does_and_no_more(&open(fan_outs_grant()).await).await;

    let limits = Grant::nothing().family("rate", Access::Write).family("user_presence", Access::Write);
    let redis = open(limits).await;
    assert_eq!(redis.count("logins", 2, Duration::from_secs(60)).await.unwrap().value, 2);
    redis.set_presence(&user(), presence()).await.unwrap();
    refused(redis.presence_of(&[user()]).await);
    let redis = open(Grant::nothing().family("user_presence", Access::Read)).await;
    assert_eq!(redis.presence_of(&[user()]).await.unwrap(), [Some(presence())]);
    refused(redis.set_presence(&user(), presence()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_with_the_same_grant_stops_where_the_rules_do() {
    let server = RedisServer::start();
    let redis: Arc<dyn Live> = Arc::new(Redis::open(&RedisConfig::server(server.url())).await.unwrap());
    let handle = |grant: Grant| RestrictedLive::new(Arc::clone(&redis), Arc::new(grant));
    does_what_a_gateway_does_and_no_more(&handle(gateways_grant())).await;
    does_what_a_fan_out_does_and_no_more(&handle(fan_outs_grant())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_numbered_database_can_be_chosen() {
    let server = RedisServer::start();
    let config = || RedisConfig::server(format!("{}/1", server.url()));
    let grant = Grant::nothing().family("rate", Access::Write);
    let redis = with_grant(&[&server], config(), &grant, RedisServers::NumberedDatabase).await;
    assert_eq!(redis.count("logins", 1, Duration::from_secs(60)).await.unwrap().value, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_enough_and_not_too_much_on_a_cluster() {
    let mut cluster = RedisCluster::start();
    let urls = cluster.urls();
    let nodes: Vec<&RedisServer> = cluster.nodes().iter().collect();
    let open = async |grant: Grant| {
        with_grant(&nodes, RedisConfig::cluster(urls.clone()), &grant, RedisServers::Cluster).await
    };
    does_what_a_gateway_does_and_no_more(&open(gateways_grant()).await).await;
    does_what_a_fan_out_does_and_no_more(&open(fan_outs_grant()).await).await;
}
