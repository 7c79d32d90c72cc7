//! How to reach a Kafka cluster, and which of librdkafka's settings are ours to fix.
//!
//! What the guarantees of [`Kafka`](super::Kafka) rest on is set here and refused in
//! [`KafkaConfig::settings`]; the rest of librdkafka's settings is open to whoever runs the cluster.
//! Passwords are named by where they are (an environment variable or a file) and never by themselves, so that
//! no configuration that is printed has one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connections::span;
use crate::log::{LogError, Result};

/// Settings that carry a promise, with the promise. They cannot be given in `settings`.
const FIXED: [(&str, &str); 20] = [
    ("bootstrap.servers", "it is 'brokers'"),
    ("metadata.broker.list", "it is 'brokers'"),
    ("client.id", "it is 'client_id'"),
    ("request.timeout.ms", "it is 'request_timeout'"),
    ("session.timeout.ms", "it is 'session_timeout'"),
    ("security.protocol", "it is 'security.protocol'"),
    ("sasl.password", "secrets come from 'security.password_env' or 'security.password_file'"),
    ("group.id", "it is the subscription's group"),
    ("allow.auto.create.topics", "a topic that nobody created is a mistake to be told"),
    ("enable.auto.commit", "an offset is committed when its record is done with"),
    ("enable.auto.offset.store", "an offset is committed when its record is done with"),
    ("enable.idempotence", "without it retries reorder and double records"),
    ("transactional.id", "records are sent on their own, which a producer with transactions refuses"),
    ("acks", "an answer means that every replica in sync has the record"),
    ("request.required.acks", "an answer means that every replica in sync has the record"),
    ("auto.offset.reset", "a missing offset is an error and not a silent jump"),
    ("partition.assignment.strategy", "partitions are handed over one by one"),
    ("partitioner", "other clients must find a key in the same partition"),
    ("message.timeout.ms", "a record that is given up would let later ones of its key overtake it"),
    ("delivery.timeout.ms", "a record that is given up would let later ones of its key overtake it"),
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// Where to find the cluster: `host:port`, several separated by commas. One that answers names the
    /// others.
    pub brokers: String,
    /// How this client is called in the brokers' logs, quotas and metrics.
    #[serde(default = "default_client_id")]
    pub client_id: String,
    #[serde(default)]
    pub security: Security,
    /// How long a call waits for an answer. A produce call may need two: one for room, one for the brokers.
    #[serde(default = "default_request_timeout", with = "span")]
    #[schemars(with = "String")]
    pub request_timeout: Duration,
    /// A member that is silent for this long has its partitions given to others. The brokers limit it to 6s–30m.
    #[serde(default = "default_session_timeout", with = "span")]
    #[schemars(with = "String")]
    pub session_timeout: Duration,
    /// How long the holder of a partition that moves may take to finish and commit. It loses it after that.
    #[serde(default = "default_handover_timeout", with = "span")]
    #[schemars(with = "String")]
    pub handover_timeout: Duration,
    /// Further settings of librdkafka by its names, such as `compression.type`.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// How to prove who we are, and whom we trust.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Security {
    pub protocol: Protocol,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`, with the `sasl-` protocols.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The environment variable that holds the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// The file that holds the password; a line end after it does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Certificates to trust, as PEM; the system's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    #[default]
    Plaintext,
    Ssl,
    SaslPlaintext,
    SaslSsl,
}

impl Protocol {
    /// As librdkafka calls it.
    const fn native(self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::Ssl => "ssl",
            Self::SaslPlaintext => "sasl_plaintext",
            Self::SaslSsl => "sasl_ssl",
        }
    }

    const fn encrypts(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    const fn authenticates(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

impl KafkaConfig {
    /// The cluster at this address, everything else as usual.
    pub fn at(brokers: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            client_id: default_client_id(),
            security: Security::default(),
            request_timeout: default_request_timeout(),
            session_timeout: default_session_timeout(),
            handover_timeout: default_handover_timeout(),
            settings: BTreeMap::new(),
        }
    }

    /// What every client of the cluster is made with. Reads the password.
    pub(super) fn client(&self) -> Result<ClientConfig> {
        let mut client = ClientConfig::new();
        client.set("socket.timeout.ms", millis(self.request_timeout));
        // Reconnecting to a cluster that was away: soon, as it is the event log, but not in a tight loop.
        client.set("reconnect.backoff.max.ms", "2000");
        for (name, value) in &self.settings {
            if let Some((_, why)) = FIXED.iter().find(|(fixed, _)| fixed == name) {
                return Err(LogError::Invalid(format!(
                    "'{name}' cannot be set: {why}; remove it from 'settings'"
                )));
            }
            client.set(name, value);
        }
        client.set("bootstrap.servers", &self.brokers);
        client.set("client.id", &self.client_id);
        client.set("allow.auto.create.topics", "false");
        client.set_log_level(RDKafkaLogLevel::Warning);
        self.security.apply(&mut client)?;
        Ok(client)
    }
}

impl Security {
    fn apply(&self, client: &mut ClientConfig) -> Result<()> {
        self.check_used()?;
        let mechanism = self.mechanism.as_deref().unwrap_or("PLAIN");
        let features = built_in_features(client)?;
        if self.protocol.encrypts() {
            require(&features, "ssl", "TLS")?;
        }
        if self.protocol.authenticates() {
            let feature = if mechanism.starts_with("SCRAM") { "sasl_scram" } else { "sasl_plain" };
            require(&features, feature, mechanism)?;
            client.set("sasl.mechanism", mechanism);
            client.set("sasl.username", self.username.as_deref().ok_or_else(|| missing("username"))?);
            client.set("sasl.password", self.password()?);
        }
        client.set("security.protocol", self.protocol.native());
        if let Some(ca_file) = &self.ca_file {
            client.set("ssl.ca.location", ca_file.to_string_lossy());
        }
        Ok(())
    }

    /// Refuses what would be ignored: whoever gave it believes that it protects something.
    fn check_used(&self) -> Result<()> {
        let for_login = [
            ("mechanism", self.mechanism.is_some()),
            ("username", self.username.is_some()),
            ("password_env", self.password_env.is_some()),
            ("password_file", self.password_file.is_some()),
        ];
        let given = for_login.into_iter().find(|(_, is_given)| *is_given);
        if let Some((key, _)) = given.filter(|_| !self.protocol.authenticates()) {
            return Err(unused(key, "'sasl-plaintext' or 'sasl-ssl'"));
        }
        if self.ca_file.is_some() && !self.protocol.encrypts() {
            return Err(unused("ca_file", "'ssl' or 'sasl-ssl'"));
        }
        if self.password_env.is_some() && self.password_file.is_some() {
            return Err(LogError::Invalid(
                "Kafka's security has both 'password_env' and 'password_file'; remove one of them".to_owned(),
            ));
        }
        Ok(())
    }

    fn password(&self) -> Result<String> {
        if let Some(name) = &self.password_env {
            return std::env::var(name).map_err(|_| {
                LogError::Invalid(format!(
                    "environment variable '{name}' is not set; put Kafka's password there"
                ))
            });
        }
        let path = self.password_file.as_ref().ok_or_else(|| missing("password_env' or 'password_file"))?;
        let content = std::fs::read_to_string(path).map_err(|error| {
            LogError::Invalid(format!("cannot read Kafka's password from '{}': {error}", path.display()))
        })?;
        Ok(content.trim_end_matches(['\r', '\n']).to_owned())
    }
}

/// What the linked librdkafka was built with.
fn built_in_features(client: &ClientConfig) -> Result<String> {
    let native = client.create_native_config().map_err(super::error::from_setting_up)?;
    native.get("builtin.features").map_err(super::error::from_setting_up)
}

fn require(features: &str, feature: &str, wanted: &str) -> Result<()> {
    let has = features.split(',').any(|built_in| built_in.trim_matches(['\0', ' ']) == feature);
    if has {
        return Ok(());
    }
    Err(LogError::Invalid(format!(
        "this build cannot speak {wanted} to Kafka; build it with '--features courant-connectors/kafka-tls'"
    )))
}

fn missing(key: &str) -> LogError {
    LogError::Invalid(format!("Kafka's security needs '{key}' with a sasl protocol"))
}

fn unused(key: &str, protocols: &str) -> LogError {
    LogError::Invalid(format!(
        "Kafka's security uses '{key}' only with protocol {protocols}; set 'protocol' to it or remove '{key}'"
    ))
}

/// A setting that whoever runs the cluster may have chosen otherwise.
pub(super) fn unless_set(client: &mut ClientConfig, name: &str, value: &str) {
    if client.get(name).is_none() {
        client.set(name, value);
    }
}

pub(super) fn millis(span: Duration) -> String {
    span.as_millis().to_string()
}

fn default_client_id() -> String {
    "courant".to_owned()
}

/// A broker that fails over needs a few seconds; a person waiting gives up after more.
const fn default_request_timeout() -> Duration {
    Duration::from_secs(10)
}

/// Short enough that a crashed member's chats go on soon, three heartbeats at least.
const fn default_session_timeout() -> Duration {
    Duration::from_secs(10)
}

/// Longer than a batch takes to be persisted, much shorter than `max.poll.interval.ms` (5 minutes).
const fn default_handover_timeout() -> Duration {
    Duration::from_secs(30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_password_file(protocol: Protocol) -> (tempfile::NamedTempFile, KafkaConfig) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2\n").unwrap();
        let security = Security {
            protocol,
            username: Some("courant".to_owned()),
            password_file: Some(file.path().to_owned()),
            ..Security::default()
        };
        let config = KafkaConfig { security, ..KafkaConfig::at("localhost:9092") };
        (file, config)
    }

    #[test]
    fn a_file_with_the_least_is_enough_and_typos_are_refused() {
        let config: KafkaConfig =
            serde_json::from_str(r#"{"brokers": "a:1", "request_timeout": "3s"}"#).unwrap();
        assert_eq!(config.request_timeout, Duration::from_secs(3));
        assert_eq!(config.session_timeout, default_session_timeout());
        let error = serde_json::from_str::<KafkaConfig>(r#"{"brokers": "a:1", "broker": "b"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `broker`"), "{error}");
        let error = serde_json::from_str::<KafkaConfig>(r#"{"brokers": "a:1", "request_timeout": "soon"}"#);
        assert!(error.unwrap_err().to_string().contains("`soon` is not a length of time"));
    }

    #[test]
    fn settings_that_carry_a_promise_are_refused_and_others_taken() {
        let mut config = KafkaConfig::at("localhost:9092");
        config.settings.insert("compression.type".to_owned(), "lz4".to_owned());
        assert_eq!(config.client().unwrap().get("compression.type"), Some("lz4"));
        config.settings.insert("acks".to_owned(), "1".to_owned());
        let error = config.client().unwrap_err().to_string();
        assert!(error.contains("'acks' cannot be set: an answer means that every replica"), "{error}");
    }

    #[test]
    fn a_promise_cannot_be_taken_back_by_another_name() {
        let names = [
            ("metadata.broker.list", "'brokers'"),
            ("request.required.acks", "every replica"),
            ("delivery.timeout.ms", "overtake"),
            ("request.timeout.ms", "'request_timeout'"),
            ("transactional.id", "transactions"),
        ];
        for (name, why) in names {
            let mut config = KafkaConfig::at("localhost:9092");
            config.settings.insert(name.to_owned(), "1".to_owned());
            let error = config.client().unwrap_err().to_string();
            assert!(error.contains(&format!("'{name}' cannot be set: ")) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_password_is_read_from_its_file_and_never_shown() {
        let (_file, config) = with_password_file(Protocol::SaslPlaintext);
        assert_eq!(config.client().unwrap().get("sasl.password"), Some("hunter2"));
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!serde_json::to_string(&config).unwrap().contains("hunter2"));
    }

    #[test]
    fn what_is_missing_for_a_login_is_named() {
        let (_file, mut config) = with_password_file(Protocol::SaslPlaintext);
        config.security.username = None;
        assert!(config.client().unwrap_err().to_string().contains("'username'"));
        let (_file, mut config) = with_password_file(Protocol::SaslPlaintext);
        config.security.password_file = None;
        assert!(config.client().unwrap_err().to_string().contains("'password_env' or 'password_file'"));
        config.security.password_env = Some("COURANT_TEST_NO_SUCH_VARIABLE".to_owned());
        assert!(
            config.client().unwrap_err().to_string().contains("'COURANT_TEST_NO_SUCH_VARIABLE' is not set")
        );
    }

    fn refused(security: Security) -> String {
        let config = KafkaConfig { security, ..KafkaConfig::at("localhost:9092") };
        config.client().unwrap_err().to_string()
    }

    #[test]
    fn what_the_protocol_would_ignore_is_refused() {
        let (text, none) = (|| Some("x".to_owned()), Security::default);
        let (no_login, in_the_clear) =
            ([Protocol::Plaintext, Protocol::Ssl], [Protocol::Plaintext, Protocol::SaslPlaintext]);
        let given = [
            ("mechanism", no_login, Security { mechanism: text(), ..none() }),
            ("username", no_login, Security { username: text(), ..none() }),
            ("password_env", no_login, Security { password_env: text(), ..none() }),
            ("password_file", no_login, Security { password_file: Some("x".into()), ..none() }),
            ("ca_file", in_the_clear, Security { ca_file: Some("x".into()), ..none() }),
        ];
        for (key, protocols, security) in given {
            for protocol in protocols {
                let error = refused(Security { protocol, ..security.clone() });
                assert!(error.contains(&format!("uses '{key}' only with protocol 's")), "{error}");
            }
        }
    }

    #[test]
    fn one_password_is_enough() {
        let (_file, config) = with_password_file(Protocol::SaslPlaintext);
        let error = refused(Security { password_env: Some("PATH".to_owned()), ..config.security });
        assert!(error.contains("both 'password_env' and 'password_file'"), "{error}");
    }

    #[cfg(not(feature = "kafka-tls"))]
    #[test]
    fn a_build_without_tls_says_so_instead_of_failing_to_connect() {
        let (_file, config) = with_password_file(Protocol::SaslSsl);
        let error = config.client().unwrap_err().to_string();
        assert!(error.contains("cannot speak TLS"), "{error}");
        let (_file, mut config) = with_password_file(Protocol::SaslPlaintext);
        config.security.mechanism = Some("SCRAM-SHA-512".to_owned());
        assert!(config.client().unwrap_err().to_string().contains("cannot speak SCRAM-SHA-512"));
    }
}
