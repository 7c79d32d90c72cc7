//! The SDK's clients, made from the configuration.
//!
//! TLS by rustls with ring, chosen here so that one crypto library is in the program; plain HTTP where the
//! endpoint says so, which then needs no certificates on the machine.

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::retry::{RetryPartition, TokenBucket};
use aws_sdk_dynamodb::config::{SharedCredentialsProvider, SharedHttpClient};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

use super::attempts::OnlyIfRefused;
use super::config::DynamoDbConfig;
use crate::store::StoreError;

/// Between tries of a call, doubled each time and shortened at random. DynamoDB answers in milliseconds and
/// its limits are by the second; the SDK's own second would keep a person waiting for an ack.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Servers close connections that nobody uses, often after a minute. A write that is sent at that moment has an
/// unknown outcome, so connections are given up well before.
const LONGEST_IDLE: Duration = Duration::from_secs(20);

/// One client per way of trying again; they share connections and the budget of retries.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    /// For reads, and for writes that may happen twice.
    pub(super) repeatable: aws_sdk_dynamodb::Client,
    /// For writes that must not happen twice.
    pub(super) once: aws_sdk_dynamodb::Client,
    pub(super) streams: aws_sdk_dynamodbstreams::Client,
}

impl Clients {
    pub(super) async fn new(
        config: &DynamoDbConfig,
        credentials: Option<SharedCredentialsProvider>,
    ) -> Result<Self, StoreError> {
        let sdk_config = load(config, credentials).await;
        if sdk_config.region().is_none() {
            return Err(StoreError::Invalid(
                "no AWS region is known; set `region` of the store's connection or AWS_REGION".into(),
            ));
        }
        // A budget of its own: the SDK would share one with every other client in the process.
        let budget = RetryPartition::custom("courant-store").token_bucket(TokenBucket::default()).build();
        let tables = || aws_sdk_dynamodb::config::Builder::from(&sdk_config).retry_partition(budget.clone());
        let streams =
            aws_sdk_dynamodbstreams::config::Builder::from(&sdk_config).retry_partition(budget.clone());
        let once = tables().retry_classifier(OnlyIfRefused);
        Ok(Self {
            repeatable: aws_sdk_dynamodb::Client::from_conf(tables().build()),
            once: aws_sdk_dynamodb::Client::from_conf(once.build()),
            streams: aws_sdk_dynamodbstreams::Client::from_conf(streams.build()),
        })
    }
}

async fn load(config: &DynamoDbConfig, credentials: Option<SharedCredentialsProvider>) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(config.connect_timeout)
        .operation_attempt_timeout(config.attempt_timeout)
        .operation_timeout(config.operation_timeout)
        .build();
    // Not the adaptive mode: it slows all calls of a client when one table or one hot key is throttled
    // (docs/decisions/0015-retries-that-do-not-slow-others.md).
    let retries = RetryConfig::standard()
        .with_max_attempts(config.max_attempts.get())
        .with_initial_backoff(FIRST_PAUSE)
        .with_max_backoff(LONGEST_PAUSE);
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http_client(config.endpoint.as_deref()))
        .timeout_config(timeouts)
        .retry_config(retries);
    if let Some(endpoint) = &config.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(region) = region(config) {
        loader = loader.region(region);
    }
    if let Some(credentials) = credentials {
        loader = loader.credentials_provider(credentials);
    }
    loader.load().await
}

/// A server of one's own has no region, but what is signed must name one.
fn region(config: &DynamoDbConfig) -> Option<Region> {
    let of_own_server = config.endpoint.as_ref().map(|_| "us-east-1".to_owned());
    config.region.clone().or(of_own_server).map(Region::new)
}

fn http_client(endpoint: Option<&str>) -> SharedHttpClient {
    let builder = Builder::new().pool_idle_timeout(LONGEST_IDLE);
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder.build_http()
    } else {
        builder.tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
    }
}
