//! Access rules for servers, made of a grant: an IAM policy, Kafka ACLs, a Redis ACL.
//!
//! The same declarations that restrict the handles in the process ([`Grant`](super::Grant)) restrict its credentials
//! outside, so that a stage that forgets to declare something fails in a test and not in production. Each rule names
//! what the connectors send and nothing more: no wildcard actions, no table, topic or key family beyond the grant.
//! Everything is text made from values; nothing is asked of a server.
//!
//! Rejected: one policy per process written by hand. It grows with every stage and never shrinks.

mod iam;
mod kafka;
mod redis;

pub use iam::{TableAddress, iam_policy};
pub use kafka::{KafkaConsumer, kafka_acls};
pub use redis::{RedisServers, redis_acl};
