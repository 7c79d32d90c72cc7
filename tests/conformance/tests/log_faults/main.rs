//! The log on Kafka while brokers fail: nothing hangs, errors say what happened, and everything goes on
//! without a restart. Brokers are librdkafka's mock cluster, one for each test.

mod cluster;
mod reading;
mod writing;
