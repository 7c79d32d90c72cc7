//! The `[connections.store]` table of kind `dynamodb`; its doc comments are the user's documentation.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connections::span;

/// How to reach DynamoDB. Credentials come from where the AWS tools find them: the environment, a profile,
/// the role of the machine or of the container. They cannot be written here, so that they are never kept in a
/// file that is shared.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DynamoDbConfig {
    /// The address of a server that speaks DynamoDB's protocol, such as `"http://127.0.0.1:8000"`. Left out,
    /// it is AWS in the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Such as `"eu-central-1"`. Left out, it is what the environment or the profile says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Put before every table's name, so that several installations can share an account.
    pub table_prefix: String,
    /// To make a connection.
    #[serde(with = "span")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
    /// For one try to be answered. A write that takes longer may or may not have happened.
    #[serde(with = "span")]
    #[schemars(with = "String")]
    pub attempt_timeout: Duration,
    /// For a call with all its tries and the pauses between them.
    #[serde(with = "span")]
    #[schemars(with = "String")]
    pub operation_timeout: Duration,
    /// Tries of one call, the first included. What may not happen twice is tried again only if it was
    /// refused.
    pub max_attempts: NonZeroU32,
}

impl Default for DynamoDbConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            table_prefix: String::new(),
            // In one region a connection takes milliseconds; a second means that nobody is there.
            connect_timeout: Duration::from_secs(1),
            // DynamoDB answers a call of the largest size well within this.
            attempt_timeout: Duration::from_secs(3),
            // A client that waits for an ack gives up after about ten seconds.
            operation_timeout: Duration::from_secs(10),
            // With the pauses between them this rides out about two seconds of throttling.
            max_attempts: NonZeroU32::new(8).expect("not zero"),
        }
    }
}

/// Without what an endpoint may carry beside its address.
impl fmt::Debug for DynamoDbConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbConfig")
            .field("endpoint", &self.endpoint.as_deref().map(without_user))
            .field("region", &self.region)
            .field("table_prefix", &self.table_prefix)
            .finish_non_exhaustive()
    }
}

/// `http://user:secret@host` as `http://host`.
fn without_user(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            format!("{scheme}://{host}")
        }
        None => endpoint.rsplit_once('@').map_or(endpoint, |(_, host)| host).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_written_as_people_do_and_typos_are_errors() {
        let config: DynamoDbConfig =
            serde_json::from_value(json!({"region": "eu-central-1", "attempt_timeout": "250ms"})).unwrap();
        assert_eq!(config.attempt_timeout, Duration::from_millis(250));
        assert_eq!(config.connect_timeout, DynamoDbConfig::default().connect_timeout);
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(written["attempt_timeout"], "250ms");
        assert_eq!(serde_json::from_value::<DynamoDbConfig>(written).unwrap(), config);

        for wrong in [
            json!({"regoin": "x"}),
            json!({"attempt_timeout": "soon"}),
            json!({"attempt_timeout": "0s"}),
            json!({"max_attempts": 0}),
        ] {
            assert!(serde_json::from_value::<DynamoDbConfig>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_stands_before_the_host_is_not_printed() {
        let endpoint = Some("http://user:secret@127.0.0.1:8000".to_owned());
        let printed = format!("{:?}", DynamoDbConfig { endpoint, ..DynamoDbConfig::default() });
        assert!(printed.contains("http://127.0.0.1:8000"), "{printed}");
        assert!(!printed.contains("secret"), "{printed}");
    }
}
