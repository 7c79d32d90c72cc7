//! Live state on Redis does what live state must do, on a server and on a cluster, under the keys that other tools
//! expect.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server {
    use std::sync::Arc;

    use courant_conformance::live::Subject;
    use courant_conformance::servers::redis::RedisServer;
    use courant_connectors::live::Limits;
    use courant_connectors::redis::{Redis, RedisConfig};

    async fn start(limits: Limits) -> Subject {
        let server = RedisServer::start();
        let redis = Redis::open_with_limits(&RedisConfig::server(server.url()), limits).await.unwrap();
        Subject { live: Arc::new(redis), server: Some(Box::new(server)) }
    }

    courant_conformance::live_suite!(crate::server::start);
}

mod cluster {
    use std::sync::{Arc, Mutex, Weak};

    use courant_conformance::live::Subject;
    use courant_conformance::servers::redis::RedisCluster;
    use courant_connectors::live::Limits;
    use courant_connectors::redis::{Redis, RedisConfig};

    /// A cluster takes seconds to agree, so cases that run at the same time share one; the last ends it.
    static RUNNING: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());

    fn running() -> Arc<RedisCluster> {
        let mut running = RUNNING.lock().unwrap();
        running.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(RedisCluster::start());
            *running = Arc::downgrade(&cluster);
            cluster
        })
    }

    async fn start(limits: Limits) -> Subject {
        let cluster = running();
        // One node is enough to find the others.
        let config = RedisConfig::cluster(cluster.urls().into_iter().take(1));
        let redis = Redis::open_with_limits(&config, limits).await.unwrap();
        Subject { live: Arc::new(redis), server: Some(Box::new(cluster)) }
    }

    courant_conformance::live_suite!(crate::cluster::start);
}

mod transport {
    use bytes::Bytes;
    use courant_conformance::live::channels::{channel, heard};
    use courant_conformance::live::hear;
    use courant_conformance::servers::redis::{RedisCluster, RedisServer};
    use courant_connectors::live::{Publish, Subscribe};
    use courant_connectors::redis::{ChannelMode, Redis, RedisConfig};
    use redis::cmd;

    async fn open(mut config: RedisConfig, channels: ChannelMode) -> Redis {
        config.channels = channels;
        Redis::open(&config).await.unwrap()
    }

    async fn is_heard(redis: &Redis) {
        let channel = channel();
        let mut listener = redis.subscribe(std::slice::from_ref(&channel)).await.unwrap();
        redis.publish(&[(channel.clone(), Bytes::from_static(b"x"))]).await.unwrap();
        assert_eq!(hear(&mut listener).await, heard(&channel, Bytes::from_static(b"x")));
    }

    /// How many of the servers were asked to do something.
    fn asked(servers: &[RedisServer], command: &str) -> usize {
        let count = |server: &RedisServer| {
            let stats: String = server.ask(cmd("INFO").arg("commandstats"));
            usize::from(stats.contains(&format!("cmdstat_{command}:")))
        };
        servers.iter().map(count).sum()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_is_used_plainly_unless_told_otherwise() {
        let servers = [RedisServer::start()];
        let config = RedisConfig::server(servers[0].url());
        is_heard(&open(config.clone(), ChannelMode::Auto).await).await;
        assert_eq!((asked(&servers, "publish"), asked(&servers, "spublish")), (1, 0));
        is_heard(&open(config, ChannelMode::Sharded).await).await;
        assert_eq!(asked(&servers, "spublish"), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cluster_is_sharded_unless_told_otherwise() {
        let mut cluster = RedisCluster::start();
        let config = RedisConfig::cluster(cluster.urls());
        is_heard(&open(config.clone(), ChannelMode::Auto).await).await;
        assert_eq!((asked(cluster.nodes(), "publish"), asked(cluster.nodes(), "spublish")), (0, 1));
        is_heard(&open(config, ChannelMode::Plain).await).await;
        assert_eq!(asked(cluster.nodes(), "publish"), 1);
    }
}

mod keys {
    use std::collections::BTreeSet;
    use std::slice::from_ref;
    use std::time::Duration;

    use courant_conformance::live::connections::connection;
    use courant_conformance::servers::redis::RedisServer;
    use courant_connectors::live::{
        Connection, Connections, Counters, MembershipCache, Presence, PresenceBoard, Status,
    };
    use courant_connectors::model::{ChatId, UserId};
    use courant_connectors::redis::{Redis, RedisConfig};
    use redis::cmd;
    use serde_json::{Value, json};

    async fn start() -> (RedisServer, Redis) {
        let server = RedisServer::start();
        let redis = Redis::open(&RedisConfig::server(server.url())).await.unwrap();
        (server, redis)
    }

    fn set(server: &RedisServer, key: &str) -> BTreeSet<String> {
        server.ask(cmd("SMEMBERS").arg(key))
    }

    fn json_at(server: &RedisServer, key: &str) -> Value {
        serde_json::from_str(&server.ask::<String>(cmd("GET").arg(key))).unwrap()
    }

    /// Its whole time, but for the moment the test took.
    #[track_caller]
    fn assert_lives(server: &RedisServer, key: &str, seconds: u64) {
        let left: u64 = server.ask(cmd("PTTL").arg(key));
        assert!((seconds * 900..=seconds * 1000).contains(&left), "{key} lives for another {left} ms");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_are_as_decided() {
        let (server, redis) = start().await;
        let connection = connection();
        let Connection { id, user, gateway, .. } = &connection;
        redis.register(&connection).await.unwrap();
        let keys = [
            format!("connection:{id}"),
            format!("user_connections:{user}"),
            format!("gateway_connections:{gateway}"),
        ];
        let expected = json!({
            "user_id": user,
            "device_id": "device_1",
            "gateway_id": gateway,
            "connected_at": "2026-01-30T14:30:00.123Z",
        });
        assert_eq!(json_at(&server, &keys[0]), expected);
        for key in &keys[1..] {
            assert_eq!(set(&server, key), BTreeSet::from([id.to_string()]));
        }
        for key in &keys {
            assert_lives(&server, key, 60);
            server.ask::<()>(cmd("PEXPIRE").arg(key).arg(10_000));
        }
        redis.heartbeat(from_ref(&connection)).await.unwrap();
        for key in &keys {
            assert_lives(&server, key, 60);
        }
        redis.unregister(&[connection]).await.unwrap();
        assert_eq!(server.ask::<Vec<String>>(cmd("KEYS").arg("*")), Vec::<String>::new());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn members_presence_and_counters_are_as_decided() {
        let (server, redis) = start().await;
        let (chat, user) = (ChatId::generate(), UserId::generate());
        let key = format!("chat_members:{chat}");
        let token = redis.begin_fill(&chat).await.unwrap();
        assert_lives(&server, &key, 10);
        redis.fill(token, from_ref(&user)).await.unwrap();
        assert_eq!(set(&server, &key), BTreeSet::from([user.to_string()]), "users and nothing else");
        assert_lives(&server, &key, 300);

        let presence = Presence { status: Status::Away, last_seen: "2026-01-30T14:30:00.000Z".into() };
        redis.set_presence(&user, presence).await.unwrap();
        let key = format!("user_presence:{user}");
        let expected = json!({"status": "away", "last_seen": "2026-01-30T14:30:00.000Z"});
        assert_eq!(json_at(&server, &key), expected);
        assert_lives(&server, &key, 30);

        redis.count("logins", 7, Duration::from_secs(100)).await.unwrap();
        assert_eq!(server.ask::<u64>(cmd("GET").arg("rate:logins")), 7);
        assert_lives(&server, "rate:logins", 100);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn members_without_a_connection_are_taken_out_of_their_sets() {
        let (server, redis) = start().await;
        let alive = connection();
        let dead = Connection { user: alive.user.clone(), gateway: alive.gateway.clone(), ..connection() };
        for connection in [&alive, &dead] {
            redis.register(connection).await.unwrap();
        }
        server.ask::<()>(cmd("DEL").arg(format!("connection:{}", dead.id)));
        let (of_user, on_gateway) =
            (format!("user_connections:{}", alive.user), format!("gateway_connections:{}", alive.gateway));
        assert_eq!(set(&server, &of_user).len(), 2);
        let found = redis.connections_of(from_ref(&alive.user)).await.unwrap();
        assert_eq!(found, [vec![alive.clone()]]);
        assert_eq!(set(&server, &of_user), BTreeSet::from([alive.id.to_string()]));
        assert_eq!(set(&server, &on_gateway).len(), 2, "nobody has looked there yet");
        assert_eq!(redis.connections_on(&alive.gateway).await.unwrap(), from_ref(&alive.id));
        assert_eq!(set(&server, &on_gateway), BTreeSet::from([alive.id.to_string()]));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn taking_out_never_hides_a_connection_that_came_back() {
        let (server, redis) = start().await;
        let connection = connection();
        let of_user = || redis.connections_of(from_ref(&connection.user));
        for _ in 0..300 {
            redis.register(&connection).await.unwrap();
            server.ask::<()>(cmd("DEL").arg(format!("connection:{}", connection.id)));
            // It comes back while others look at it and find it gone.
            let back = async {
                of_user().await.unwrap();
                redis.register(&connection).await
            };
            let (_, _, _, back) = tokio::join!(of_user(), of_user(), of_user(), back);
            back.unwrap();
            assert_eq!(of_user().await.unwrap(), [vec![connection.clone()]]);
        }
    }

    /// Memory is short: Redis threw away the sets and kept the rest.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_heartbeat_repairs_sets_that_were_evicted() {
        let (server, redis) = start().await;
        let connection = connection();
        redis.register(&connection).await.unwrap();
        for key in [
            format!("user_connections:{}", connection.user),
            format!("gateway_connections:{}", connection.gateway),
        ] {
            server.ask::<()>(cmd("DEL").arg(key));
        }
        assert!(redis.heartbeat(from_ref(&connection)).await.unwrap().is_empty());
        let found = redis.connections_of(from_ref(&connection.user)).await.unwrap();
        assert_eq!(found, [vec![connection.clone()]]);
        assert_eq!(redis.connections_on(&connection.gateway).await.unwrap(), [connection.id]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_read_hides_nothing_else() {
        let (server, redis) = start().await;
        let connection = connection();
        redis.register(&connection).await.unwrap();
        server.ask::<()>(cmd("SADD").arg(format!("user_connections:{}", connection.user)).arg("conn_bad"));
        server.ask::<()>(cmd("SET").arg("connection:conn_bad").arg("{\"user_id\": 7}"));
        let found = redis.connections_of(from_ref(&connection.user)).await.unwrap();
        assert_eq!(found, [vec![connection]]);
        server.ask::<()>(cmd("SET").arg("user_presence:u").arg("zzz"));
        assert_eq!(redis.presence_of(&["u".into()]).await.unwrap(), [None]);
    }
}
