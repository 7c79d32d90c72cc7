//! Redis goes away, forgets everything, stops answering or moves: calls fail soon and with the right error, and
//! everything goes on by itself afterwards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::future::Future;
use std::net::TcpListener;
use std::slice::from_ref;
use std::time::Duration;

use bytes::Bytes;
use courant_conformance::LIMIT;
use courant_conformance::live::channels::{channel, heard, number};
use courant_conformance::live::connections::connection;
use courant_conformance::live::{eventually, hear};
use courant_conformance::servers::Forwarder;
use courant_conformance::servers::redis::{RedisCluster, RedisServer};
use courant_connectors::live::{
    Channel, Connections, Counters, Heard, Listener, LiveError, MembershipCache, Publish, Result, Subscribe,
};
use courant_connectors::model::{ChatId, UserId};
use courant_connectors::redis::{Redis, RedisConfig};
use futures::future::join_all;
use redis::cmd;
use tokio::time::{Instant, timeout};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// A call of several round trips, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(5);

fn impatient(mut config: RedisConfig) -> RedisConfig {
    config.command_timeout = COMMAND_TIMEOUT;
    config.connect_timeout = COMMAND_TIMEOUT;
    config
}

async fn start() -> (RedisServer, Redis) {
    let server = RedisServer::start();
    let redis = Redis::open(&impatient(RedisConfig::server(server.url()))).await.unwrap();
    (server, redis)
}

/// Fails as unavailable, and before long.
async fn assert_unavailable<T>(call: impl Future<Output = Result<T>>) {
    let answer = timeout(SOON, call).await.expect("a call does not hang");
    match answer {
        Err(LiveError::Unavailable(_)) => {}
        Err(error) => panic!("should be unavailable: {error}"),
        Ok(_) => panic!("should be unavailable"),
    }
}

/// Publishes until the listener has heard a gap and a message after it.
async fn until_gap_and_message(redis: &Redis, listener: &mut Box<dyn Listener>, channel: &Channel) {
    let mut gap = false;
    eventually("a gap and then messages again", async || {
        let _ = redis.publish(&[(channel.clone(), Bytes::from_static(b"again"))]).await;
        match timeout(Duration::from_millis(10), listener.next()).await {
            Ok(heard) => match heard.unwrap() {
                Heard::Gap => gap = true,
                Heard::Message { .. } if gap => return Some(()),
                Heard::Message { .. } => {}
            },
            Err(_nothing_yet) => {}
        }
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_away_calls_fail_and_afterwards_they_work() {
    let (mut server, redis) = start().await;
    let connection = connection();
    redis.register(&connection).await.unwrap();
    server.kill();
    for _ in 0..3 {
        assert_unavailable(redis.register(&connection)).await;
        assert_unavailable(redis.heartbeat(from_ref(&connection))).await;
        assert_unavailable(redis.connections_of(from_ref(&connection.user))).await;
        assert_unavailable(redis.count("n", 1, Duration::from_secs(1))).await;
        assert_unavailable(redis.publish(&[(channel(), Bytes::new())])).await;
        assert_unavailable(redis.subscribe(&[channel()])).await;
    }
    assert_unavailable(Redis::open(&impatient(RedisConfig::server(server.url())))).await;
    server.restart();
    let unknown =
        eventually("a working connection", async || redis.heartbeat(from_ref(&connection)).await.ok()).await;
    assert_eq!(unknown, from_ref(&connection.id), "the new server knows nothing");
    redis.register(&connection).await.unwrap();
    assert_eq!(redis.connections_of(from_ref(&connection.user)).await.unwrap(), [vec![connection]]);
}

/// Whatever the server said was heard is heard, or a gap is where it is missing.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_in_a_stream_of_messages_lose_nothing_without_a_gap() {
    let (mut server, redis) = start().await;
    let channel = channel();
    let mut listener = redis.subscribe(from_ref(&channel)).await.unwrap();
    let (mut sent, mut said_heard, mut story) = (0, BTreeSet::new(), Vec::new());
    for _ in 0..3 {
        server.restart();
        let (restarted, mut gap) = (Instant::now(), false);
        while !gap {
            assert!(restarted.elapsed() < LIMIT, "the listener says nothing of a gap");
            // In between, some are published that nobody hears.
            match redis.publish(&[(channel.clone(), number(sent))]).await.as_deref() {
                Ok([1]) => drop(said_heard.insert(sent)),
                Ok([0]) | Err(LiveError::Unavailable(_)) => {}
                other => panic!("{other:?}"),
            }
            sent += 1;
            while let Ok(heard) = timeout(Duration::from_millis(2), listener.next()).await {
                story.push(heard.unwrap());
                gap |= story.last() == Some(&Heard::Gap);
            }
        }
    }
    let last = number(sent);
    assert_eq!(redis.publish(&[(channel.clone(), last.clone())]).await.unwrap(), [1]);
    while story.last() != Some(&heard(&channel, last.clone())) {
        story.push(hear(&mut listener).await);
    }
    let mut next = 0;
    let mut gap = false;
    for heard in story {
        let Heard::Message { payload, .. } = heard else {
            gap = true;
            continue;
        };
        let n = u32::from_be_bytes(payload[..].try_into().unwrap());
        assert!(n >= next, "{n} came after {next}");
        let missed: Vec<_> = said_heard.range(next..n).collect();
        assert!(gap || missed.is_empty(), "{missed:?} are missing before {n}, and no gap says so");
        (next, gap) = (n + 1, false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_server_costs_a_registration_and_a_cache_miss() {
    let (server, redis) = start().await;
    let (connection, chat, channel) = (connection(), ChatId::generate(), channel());
    let mut listener = redis.subscribe(from_ref(&channel)).await.unwrap();
    redis.register(&connection).await.unwrap();
    let begun_before = redis.begin_fill(&chat).await.unwrap();
    redis.publish(&[(channel.clone(), number(1))]).await.unwrap();

    server.wipe();
    assert_eq!(redis.heartbeat(from_ref(&connection)).await.unwrap(), from_ref(&connection.id));
    redis.register(&connection).await.unwrap();
    assert_eq!(redis.connections_of(from_ref(&connection.user)).await.unwrap(), [vec![connection]]);
    let user = UserId::generate();
    assert!(
        !redis.fill(begun_before, from_ref(&user)).await.unwrap(),
        "an invalidation may be lost with the rest"
    );
    let token = redis.begin_fill(&chat).await.unwrap();
    assert!(redis.fill(token, from_ref(&user)).await.unwrap());
    assert_eq!(redis.members(&[chat]).await.unwrap(), [Some(vec![user])]);

    redis.publish(&[(channel.clone(), number(2))]).await.unwrap();
    for n in [1, 2] {
        assert_eq!(hear(&mut listener).await, heard(&channel, number(n)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_answer_holds_up_nobody() {
    let (server, redis) = start().await;
    let (connection, channel) = (connection(), channel());
    let mut listener = redis.subscribe(from_ref(&channel)).await.unwrap();
    redis.register(&connection).await.unwrap();

    server.pause();
    let asked = Instant::now();
    join_all((0..200).map(|_| assert_unavailable(redis.connections_of(from_ref(&connection.user))))).await;
    assert!(asked.elapsed() >= COMMAND_TIMEOUT, "it might have answered");
    assert_unavailable(redis.subscribe(from_ref(&channel))).await;
    assert_unavailable(Redis::open(&impatient(RedisConfig::server(server.url())))).await;
    // Until the listener has noticed too: a server that stops for a shorter time loses nothing.
    let paused = timeout(COMMAND_TIMEOUT * 12, listener.next()).await;
    assert!(paused.is_err(), "there is no gap to tell before the subscription stands again: {paused:?}");
    server.resume();

    eventually("an answer", async || redis.connections_of(from_ref(&connection.user)).await.ok()).await;
    until_gap_and_message(&redis, &mut listener, &channel).await;
}

/// Connections are accepted and nothing is ever said on them; connecting itself may take long here.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_port_in_place_of_the_server_holds_up_nobody() {
    let mut server = RedisServer::start();
    let mut config = impatient(RedisConfig::server(server.url()));
    config.connect_timeout = LIMIT;
    let redis = Redis::open(&config).await.unwrap();
    server.kill();
    let silent = TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    for _ in 0..3 {
        assert_unavailable(redis.count("n", 1, LIMIT)).await;
    }
    drop(silent);
    server.restart();
    eventually("a working connection", async || redis.count("n", 1, LIMIT).await.ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = RedisServer::start();
    server.ask::<()>(cmd("CONFIG").arg("SET").arg("requirepass").arg("right-secret"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut config = impatient(RedisConfig::server(server.url()));
    for password in [None, Some("wrong-secret\n")] {
        if let Some(password) = password {
            std::fs::write(file.path(), password).unwrap();
            config.password_file = Some(file.path().to_owned());
        }
        let error = Redis::open(&config).await.err().expect("the server wants a password");
        assert!(matches!(error, LiveError::Refused(_)), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    std::fs::write(file.path(), "right-secret\n").unwrap();
    let redis = Redis::open(&config).await.unwrap();
    assert_eq!(redis.count("n", 1, Duration::from_secs(1)).await.unwrap().value, 1);
    let channel = channel();
    let mut listener = redis.subscribe(from_ref(&channel)).await.unwrap();
    assert_eq!(redis.publish(&[(channel.clone(), number(1))]).await.unwrap(), [1]);
    assert_eq!(hear(&mut listener).await, heard(&channel, number(1)));
}

/// A server in place of another is up before somebody has told it who may log in.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_missing_for_a_while_is_tried_again() {
    let mut server = RedisServer::start();
    let add_user = |server: &RedisServer| {
        let rules = &["on", ">right-secret", "~*", "&*", "+@all"];
        server.ask::<()>(cmd("ACL").arg("SETUSER").arg("courant").arg(rules));
    };
    add_user(&server);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "right-secret").unwrap();
    let mut config = impatient(RedisConfig::server(server.url()));
    config.username = Some("courant".to_owned());
    config.password_file = Some(file.path().to_owned());
    let redis = Redis::open(&config).await.unwrap();

    server.restart();
    let why = eventually("a refusal", async || match redis.count("n", 1, LIMIT).await {
        Err(LiveError::Refused(why)) => Some(why),
        Err(LiveError::Unavailable(_)) => None,
        other => panic!("nobody may log in: {other:?}"),
    })
    .await;
    assert!(why.contains("WRONGPASS"), "{why}");
    add_user(&server);
    eventually("a login", async || redis.count("n", 1, LIMIT).await.ok()).await;
}

/// A failover that ends no connection: the old server stays, as a replica of the one that the address leads to now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_replica_is_left() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let forwarder = Forwarder::before(old.port()).await;
    let address = format!("redis://{}", forwarder.address());
    let redis = Redis::open(&impatient(RedisConfig::server(address))).await.unwrap();
    let connection = connection();
    redis.register(&connection).await.unwrap();

    old.ask::<()>(cmd("REPLICAOF").arg("127.0.0.1").arg(new.port()));
    let accepted_before = forwarder.accepted();
    for _ in 0..200 {
        assert_unavailable(redis.register(&connection)).await;
    }
    let tried = forwarder.accepted() - accepted_before;
    assert!(tried < 20, "connected {tried} times to a server that goes on refusing");

    forwarder.lead_to(new.port());
    eventually("a server that can be written to", async || redis.register(&connection).await.ok()).await;
    let registered = new.set(&format!("user_connections:{}", connection.user));
    assert_eq!(registered, BTreeSet::from([connection.id.to_string()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_unavailable_with_tls() {
    let server = RedisServer::start();
    let config = impatient(RedisConfig::server(server.url().replace("redis://", "rediss://")));
    assert_unavailable(Redis::open(&config)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_comes_back() {
    let mut cluster = RedisCluster::start();
    let redis = Redis::open(&impatient(RedisConfig::cluster(cluster.urls()))).await.unwrap();
    // One channel on every node.
    let channels: Vec<Channel> = (0..3).map(|node| channel_in(&cluster, node)).collect();
    let mut listeners = Vec::new();
    for channel in &channels {
        listeners.push(redis.subscribe(from_ref(channel)).await.unwrap());
    }
    let lost = &mut cluster.nodes()[1];
    lost.kill();
    assert_unavailable(redis.publish(&[(channels[1].clone(), number(1))])).await;
    lost.restart();
    cluster.wait_whole();
    until_gap_and_message(&redis, &mut listeners[1], &channels[1]).await;
    for (channel, listener) in channels.iter().zip(&mut listeners) {
        let sent = redis.publish(&[(channel.clone(), Bytes::from_static(b"last"))]).await.unwrap();
        assert_eq!(sent, [1]);
        while hear(listener).await != heard(channel, Bytes::from_static(b"last")) {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_node_does_not_keep_one_from_the_others() {
    let cluster = RedisCluster::start();
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut urls = cluster.urls();
    urls.insert(0, format!("redis://{}", silent.local_addr().unwrap()));
    let redis = Redis::open(&impatient(RedisConfig::cluster(urls))).await.unwrap();
    for node in 0..3 {
        let channel = channel_in(&cluster, node);
        let mut listener = redis.subscribe(from_ref(&channel)).await.unwrap();
        assert_eq!(redis.publish(&[(channel.clone(), number(1))]).await.unwrap(), [1]);
        assert_eq!(hear(&mut listener).await, heard(&channel, number(1)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_follows_its_channel_to_another_node() {
    let mut cluster = RedisCluster::start();
    let redis = Redis::open(&impatient(RedisConfig::cluster(cluster.urls()))).await.unwrap();
    let (moved, stays) = (channel_in(&cluster, 0), channel_in(&cluster, 1));
    let mut listener = redis.subscribe(&[moved.clone(), stays.clone()]).await.unwrap();
    let slot = cluster.slot(moved.as_str());
    let new_owner: String = cluster.nodes()[2].ask(cmd("CLUSTER").arg("MYID"));
    // The new owner first, so that somebody owns the slot at every moment.
    for node in [2, 0, 1] {
        cluster.nodes()[node].ask::<()>(cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(&new_owner));
    }
    until_gap_and_message(&redis, &mut listener, &moved).await;
    assert_eq!(redis.publish(&[(stays.clone(), number(7))]).await.unwrap(), [1]);
    while hear(&mut listener).await != heard(&stays, number(7)) {}
}

/// A channel that the node owns.
fn channel_in(cluster: &RedisCluster, node: u16) -> Channel {
    let owned = cluster.slots(node);
    std::iter::repeat_with(channel).find(|channel| owned.contains(&cluster.slot(channel.as_str()))).unwrap()
}
