//! How to reach Redis, as people write it.
//!
//! A password is never written in the configuration: it names the environment variable or the file that holds it.
//! Nothing here prints one, and a URL that contains one is refused without being repeated.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connections::span;
use crate::live::{LiveError, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A healthy server answers in a millisecond; a fan-out that waits longer than this is better told.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// One server: `redis://host:6379`, with TLS `rediss://host:6379`, another database `redis://host:6379/1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Some nodes of a cluster, from which the others are found. Instead of `url`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    /// The ACL user, who needs a password; without it the default user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The environment variable that holds the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_env: Option<String>,
    /// The file that holds the password; a line break at its end does not count. Instead of `password_env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// How long connecting may take, handshake included.
    #[serde(default = "connect_timeout", with = "span")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
    /// How long one round trip may take. A call makes one to four of them.
    #[serde(default = "command_timeout", with = "span")]
    #[schemars(with = "String")]
    pub command_timeout: Duration,
    #[serde(default)]
    pub channels: ChannelMode,
}

/// Without the addresses: they may carry a password, which is refused only when they are used.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig").finish_non_exhaustive()
    }
}

/// How messages between processes travel. All processes must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChannelMode {
    /// Sharded on a cluster whose nodes can (Redis 7), else plain.
    #[default]
    Auto,
    /// SPUBLISH and SSUBSCRIBE: a message stays within the shard of its channel.
    Sharded,
    /// PUBLISH and SUBSCRIBE: a cluster carries every message to every node, and counts only the listeners of the
    /// node that was asked.
    Plain,
}

/// Where to connect and how to log in.
#[derive(Clone)]
pub(super) struct Servers {
    /// At least one.
    pub(super) nodes: Vec<ConnectionInfo>,
    pub(super) topology: Topology,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    Single,
    Cluster,
}

impl Servers {
    pub(super) fn first(&self) -> &ConnectionInfo {
        &self.nodes[0]
    }

    /// For messages to people.
    pub(super) fn name(&self) -> String {
        let names: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        names.join(",")
    }
}

impl RedisConfig {
    /// One server, and defaults for the rest.
    pub fn server(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::unaddressed() }
    }

    /// A cluster, and defaults for the rest.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { urls: urls.into_iter().map(Into::into).collect(), ..Self::unaddressed() }
    }

    fn unaddressed() -> Self {
        Self {
            url: None,
            urls: Vec::new(),
            username: None,
            password_env: None,
            password_file: None,
            connect_timeout: CONNECT_TIMEOUT,
            command_timeout: COMMAND_TIMEOUT,
            channels: ChannelMode::Auto,
        }
    }

    /// What can be said without connecting and without looking for the password.
    pub fn check(&self) -> Result<()> {
        self.addresses().map(|_| ())
    }

    pub(super) async fn servers(&self) -> Result<Servers> {
        let mut servers = self.addresses()?;
        let password = self.password().await?;
        for node in &mut servers.nodes {
            let mut login = RedisConnectionInfo::default()
                .set_protocol(ProtocolVersion::RESP3)
                .set_db(node.redis_settings().db());
            if let Some(username) = &self.username {
                login = login.set_username(username);
            }
            if let Some(password) = &password {
                login = login.set_password(password);
            }
            let tcp = TcpSettings::default().set_nodelay(true);
            // A host that vanished acknowledges nothing; without this the kernel would try for a quarter of an hour.
            #[cfg(target_os = "linux")]
            let tcp = tcp.set_user_timeout(self.connect_timeout + self.command_timeout);
            *node = node.clone().set_redis_settings(login).set_tcp_settings(tcp);
        }
        Ok(servers)
    }

    fn addresses(&self) -> Result<Servers> {
        let (urls, topology) = match (&self.url, self.urls.as_slice()) {
            (Some(url), []) => (std::slice::from_ref(url), Topology::Single),
            (None, [_, ..]) => (self.urls.as_slice(), Topology::Cluster),
            (None, []) => return Err(invalid("redis has no address; set 'url', or 'urls' for a cluster")),
            (Some(_), [_, ..]) => return Err(invalid("redis has both 'url' and 'urls'; remove one of them")),
        };
        if self.password_env.is_some() && self.password_file.is_some() {
            return Err(invalid("redis has both 'password_env' and 'password_file'; remove one of them"));
        }
        // A login without a password is never sent: it would be the default user's.
        if self.username.is_some() && self.password_env.is_none() && self.password_file.is_none() {
            return Err(invalid(
                "redis has a 'username' without a password; set 'password_env' or 'password_file', or remove it",
            ));
        }
        let nodes = urls.iter().map(|url| address(url, topology)).collect::<Result<Vec<_>>>()?;
        Ok(Servers { nodes, topology })
    }

    async fn password(&self) -> Result<Option<String>> {
        if let Some(variable) = &self.password_env {
            let password = std::env::var(variable).map_err(|_| {
                invalid(format!(
                    "the environment variable '{variable}' should hold the password of redis; set it"
                ))
            })?;
            return Ok(Some(password));
        }
        let Some(path) = &self.password_file else { return Ok(None) };
        let content = tokio::fs::read_to_string(path).await.map_err(|error| {
            invalid(format!("the file '{}' should hold the password of redis: {error}", path.display()))
        })?;
        Ok(Some(content.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

/// Does not repeat the URL, which may hold a password.
fn address(url: &str, topology: Topology) -> Result<ConnectionInfo> {
    let node = url.into_connection_info().map_err(|error| {
        invalid(format!("a url of redis cannot be read ({error}); write one like redis://127.0.0.1:6379"))
    })?;
    let login = node.redis_settings();
    if login.username().is_some() || login.password().is_some() {
        return Err(invalid(
            "a url of redis holds a login; remove it and use 'username' and 'password_env' or 'password_file'",
        ));
    }
    if topology == Topology::Cluster && login.db() != 0 {
        return Err(invalid("a redis cluster has no database but 0; remove the number from 'urls'"));
    }
    Ok(node)
}

fn invalid(reason: impl Into<String>) -> LiveError {
    LiveError::Invalid(reason.into())
}

const fn connect_timeout() -> Duration {
    CONNECT_TIMEOUT
}

const fn command_timeout() -> Duration {
    COMMAND_TIMEOUT
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: serde_json::Value) -> std::result::Result<RedisConfig, String> {
        serde_json::from_value(config).map_err(|error| error.to_string())
    }

    fn complaint(config: serde_json::Value) -> String {
        read(config).unwrap_or_else(|error| panic!("{error}")).check().unwrap_err().to_string()
    }

    #[tokio::test]
    async fn an_address_is_all_it_needs() {
        let config = read(json!({"url": "redis://localhost:7000/3"})).unwrap();
        let servers = config.servers().await.unwrap();
        assert_eq!((servers.name().as_str(), servers.topology), ("localhost:7000", Topology::Single));
        assert_eq!(servers.first().redis_settings().db(), 3);
        let cluster =
            read(json!({"urls": ["redis://a", "rediss://b:1"], "command_timeout": "250ms"})).unwrap();
        assert_eq!(cluster.command_timeout, Duration::from_millis(250));
        let servers = cluster.servers().await.unwrap();
        assert_eq!((servers.name().as_str(), servers.topology), ("a:6379,b:1", Topology::Cluster));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_advice() {
        assert!(complaint(json!({})).contains("set 'url'"));
        assert!(complaint(json!({"url": "redis://a", "urls": ["redis://b"]})).contains("remove one"));
        assert!(complaint(json!({"url": "http://a"})).contains("redis://127.0.0.1:6379"));
        assert!(complaint(json!({"urls": ["redis://a/1"]})).contains("no database"));
        assert!(
            read(json!({"url": "redis://a", "pasword_env": "X"})).is_err_and(|e| e.contains("pasword_env"))
        );
        assert!(read(json!({"url": "redis://a", "command_timeout": "0s"})).is_err());
    }

    #[test]
    fn a_user_needs_a_password() {
        let without = json!({"url": "redis://a", "username": "courant"});
        assert!(complaint(without.clone()).contains("'username' without a password"));
        for source in ["password_env", "password_file"] {
            let mut config = without.clone();
            config[source] = json!("x");
            read(config).unwrap().check().unwrap();
        }
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        for url in ["redis://:hunter2@a", "redis://me:hunter2@a:1/0", "redis://me:hunter2@a:port"] {
            let complaint = complaint(json!({"url": url}));
            assert!(!complaint.contains("hunter2"), "{complaint}");
        }
    }

    #[tokio::test]
    async fn passwords_come_from_files_and_the_environment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2\n").unwrap();
        let mut config = RedisConfig::server("redis://a");
        config.password_file = Some(file.path().to_owned());
        let servers = config.servers().await.unwrap();
        assert_eq!(servers.first().redis_settings().password(), Some("hunter2"));
        assert!(!format!("{:?}", servers.first()).contains("hunter2"));

        config.password_file = None;
        config.password_env = Some("COURANT_TEST_NO_SUCH_VARIABLE".into());
        let error = config.servers().await.err().unwrap().to_string();
        assert!(error.contains("COURANT_TEST_NO_SUCH_VARIABLE"), "{error}");
    }
}
