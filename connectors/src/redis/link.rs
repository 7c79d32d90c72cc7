//! Commands to one server or to a cluster.
//!
//! The clients of the `redis` crate reconnect by themselves and follow a cluster's changes. What is added here: one
//! interface for both, pipelines cut to a bounded size, a time-out around every round trip, and typed errors.

use std::future::Future;
use std::time::Duration;

use futures::future::try_join_all;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, FromRedisValue, Pipeline, ProtocolVersion, RedisResult};

use super::RedisConfig;
use super::config::{Servers, Topology};
use super::error::live_error;
use super::single::Single;
use crate::live::{LiveError, Result};

/// Commands in one round trip: enough to hide the trip, few enough that one answer does not fill the memory.
const TRIP: usize = 1000;

/// First pause before connecting again; it doubles, with jitter.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// On a cluster, attempts of one command while its nodes change roles; the time-out ends them anyway.
const CLUSTER_ATTEMPTS: u32 = 8;

pub(super) struct Link {
    client: LinkClient,
    server: String,
    timeout: Duration,
}

enum LinkClient {
    Single(Box<Single>),
    Cluster(ClusterConnection),
}

impl Link {
    pub(super) async fn open(servers: Servers, config: &RedisConfig) -> Result<Self> {
        let (server, topology) = (servers.name(), servers.topology);
        let opening = async {
            Ok(match topology {
                Topology::Single => LinkClient::Single(Box::new(Single::open(&servers, config).await?)),
                Topology::Cluster => LinkClient::Cluster(cluster(servers, config).await?),
            })
        };
        // A cluster is asked where its nodes are before it is connected to them.
        let client = within(config.connect_timeout * 2 + config.command_timeout, &server, opening).await?;
        Ok(Self { client, server, timeout: config.command_timeout })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.client, LinkClient::Cluster(_))
    }

    pub(super) async fn one<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        match &self.client {
            LinkClient::Single(single) => {
                self.trip(single.heed(command.query_async(&mut single.connection()))).await
            }
            LinkClient::Cluster(client) => self.trip(command.query_async(&mut client.clone())).await,
        }
    }

    /// Answers in the order of the commands. They may run in any order; each touches one key.
    pub(super) async fn each<T: FromRedisValue>(&self, commands: Vec<Cmd>) -> Result<Vec<T>> {
        let mut answers = Vec::with_capacity(commands.len());
        for commands in commands.chunks(TRIP) {
            answers.extend(match &self.client {
                LinkClient::Single(_) => self.in_order(commands).await?,
                LinkClient::Cluster(_) => {
                    try_join_all(commands.iter().map(|command| self.one(command))).await?
                }
            });
        }
        Ok(answers)
    }

    /// Commands that run in the order given; on a cluster they must lie in one slot.
    pub(super) async fn in_order<T: FromRedisValue>(&self, commands: &[Cmd]) -> Result<Vec<T>> {
        let mut answers = Vec::with_capacity(commands.len());
        for commands in commands.chunks(TRIP) {
            answers.extend(self.run::<Vec<T>>(&pipeline(commands)).await?);
        }
        Ok(answers)
    }

    /// All or none, seen by nobody in between (MULTI); on a cluster they must lie in one slot.
    pub(super) async fn at_once(&self, commands: &[Cmd]) -> Result<()> {
        self.run(pipeline(commands).atomic()).await
    }

    async fn run<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T> {
        match &self.client {
            LinkClient::Single(single) => {
                self.trip(single.heed(pipeline.query_async(&mut single.connection()))).await
            }
            LinkClient::Cluster(client) => self.trip(pipeline.query_async(&mut client.clone())).await,
        }
    }

    async fn trip<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> Result<T> {
        within(self.timeout, &self.server, answer).await
    }
}

pub(super) async fn within<T>(
    limit: Duration,
    server: &str,
    answer: impl Future<Output = RedisResult<T>>,
) -> Result<T> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| live_error(server, error)),
        Err(_) => Err(LiveError::Unavailable(format!("redis at {server} did not answer within {limit:?}"))),
    }
}

fn pipeline(commands: &[Cmd]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        pipeline.add_command(command.clone());
    }
    pipeline
}

async fn cluster(servers: Servers, config: &RedisConfig) -> RedisResult<ClusterConnection> {
    let tcp = servers.first().tcp_settings().clone();
    ClusterClient::builder(servers.nodes)
        .use_protocol(ProtocolVersion::RESP3)
        .tcp_settings(tcp)
        .retries(CLUSTER_ATTEMPTS)
        .connection_timeout(config.connect_timeout)
        .response_timeout(config.command_timeout)
        .overall_response_timeout(Some(config.command_timeout))
        .build()?
        .get_async_connection()
        .await
}
