//! The `[edge]` table; its doc comments are the user's documentation.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use courant_pipeline::units::Span;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::Origin;
use crate::limits::LimitsConfig;
use crate::relay::RelayConfig;
use crate::ws::SocketConfig;

/// Where and how the process answers HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeConfig {
    /// Address and port to listen on, such as `"0.0.0.0:8080"`. Loopback if left out, so that nothing is
    /// reachable from outside before somebody asks for it. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Connections at the same time, sockets included. One more cuts the one that has waited longest for a request; if
    /// none waits, it waits itself. The process raises its limit of open files as far as it may, and holds fewer
    /// connections, with a warning, where that is not enough.
    pub max_connections: NonZeroU32,
    /// Connections of one address (of one /64 of IPv6) at the same time, sockets not included. One more cuts the one of
    /// them that has waited longest for a request, and is refused if none waits. Addresses of `trusted_proxies` are not
    /// counted.
    pub max_connections_per_address: NonZeroU32,
    /// Requests of clients that are answered at the same time; further ones are refused with `UNAVAILABLE`. Sockets are
    /// not counted.
    pub max_requests: NonZeroU32,
    /// How long a command or a query may take before the client is told `TIMEOUT`. It may still be carried out then.
    pub request_timeout: Span,
    /// Web pages that may use the server from a browser, by their origin: `["https://chat.example.com"]`. None if left
    /// out but those of the server's own host; what is not a browser is not affected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_origins: Vec<Origin>,
    /// Proxies in front of this process whose `X-Forwarded-For` is believed, as addresses or networks: `["10.0.0.0/8"]`.
    /// Limits by address count the proxy itself if it is not named here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<Network>,
    pub limits: LimitsConfig,
    pub relay: RelayConfig,
    /// Sockets of clients.
    pub socket: SocketConfig,
}

/// High enough for a gateway, low enough for the usual limit of open files of a service.
const DEFAULT_MAX_CONNECTIONS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
/// Many people can be behind one address, each with a request now and then; and half of all requests are left for others.
const DEFAULT_MAX_CONNECTIONS_PER_ADDRESS: NonZeroU32 = NonZeroU32::new(512).expect("not zero");
/// Each holds at most a body of 64 KiB.
const DEFAULT_MAX_REQUESTS: NonZeroU32 = NonZeroU32::new(1024).expect("not zero");

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            max_connections_per_address: DEFAULT_MAX_CONNECTIONS_PER_ADDRESS,
            max_requests: DEFAULT_MAX_REQUESTS,
            request_timeout: Span::secs(10),
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            limits: LimitsConfig::default(),
            relay: RelayConfig::default(),
            socket: SocketConfig::default(),
        }
    }
}

impl EdgeConfig {
    pub(crate) fn trusted_proxies(&self) -> Arc<[IpNet]> {
        self.trusted_proxies.iter().map(|network| network.0).collect()
    }
}

/// An address, or all that begin alike: `"10.0.0.1"`, `"10.0.0.0/8"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline)]
pub struct Network(#[schemars(with = "String")] IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse().map(|address: IpAddr| IpNet::from(address)));
        network.map(Self).map_err(|_| {
            format!(
                "`{text}` is neither an address nor a network; write one like \"10.0.0.1\" or \"10.0.0.0/8\""
            )
        })
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use courant_pipeline::Services;
    use courant_pipeline::config::{Loader, Section};
    use courant_pipeline::spec::Registry;
    use serde_json::json;

    use super::*;
    use crate::auth::AuthConfig;

    #[test]
    fn an_address_is_text_and_a_typo_is_an_error() {
        let config: EdgeConfig = serde_json::from_value(json!({"listen": "[::1]:9"})).unwrap();
        assert_eq!(config.listen, "[::1]:9".parse().unwrap());
        assert_eq!(serde_json::from_value::<EdgeConfig>(json!({})).unwrap(), EdgeConfig::default());
        assert!(serde_json::from_value::<EdgeConfig>(json!({"lisen": "127.0.0.1:1"})).is_err());
    }

    #[test]
    fn proxies_are_addresses_or_networks() {
        let config =
            |proxies: &[&str]| serde_json::from_value::<EdgeConfig>(json!({"trusted_proxies": proxies}));
        let both = config(&["10.0.0.1", "2001:db8::/32"]).unwrap();
        assert_eq!(
            *both.trusted_proxies(),
            ["10.0.0.1/32".parse().unwrap(), "2001:db8::/32".parse().unwrap()]
        );
        assert_eq!(serde_json::from_value::<EdgeConfig>(json!(both)).unwrap(), both);
        assert!(config(&["proxy.example"]).unwrap_err().to_string().contains("10.0.0.0/8"));
    }

    /// As the process reads them: files, environment, and the schemas made from these types.
    #[test]
    fn every_key_can_be_written_in_the_file_and_some_in_the_environment() {
        let sections = [Section::of::<EdgeConfig>("edge"), Section::of::<AuthConfig>("auth")];
        let loader = Loader::new(Registry(&[]), Services::default()).sections(&sections);
        let text = r#"
            [edge]
            listen = "0.0.0.0:8080"
            max_connections_per_address = 20
            max_requests = 10
            request_timeout = "3s"
            allowed_origins = ["https://chat.example.com"]
            trusted_proxies = ["10.0.0.0/8"]
            socket = { heartbeat = "20s" }
            limits = { messages = "100/min", logins = "5/15min" }
            [auth]
            require_verification = false
            session_lifetime = "7days"
            signing_keys = [{ id = "b", secret_env = "KEY_B" }, { id = "a", secret_file = "key-a" }]
        "#;
        let env = [("COURANT_EDGE__LIMITS__ENABLED".to_owned(), "false".to_owned())];
        let loaded = loader.load_str("pipelines.toml", text, env).unwrap_or_else(|wrong| panic!("{wrong}"));
        let (edge, auth): (EdgeConfig, AuthConfig) = (loaded.section("edge"), loaded.section("auth"));
        assert!(!edge.limits.enabled, "the environment switches limits off");
        assert_eq!((edge.limits.messages.count.get(), edge.request_timeout), (100, Span::secs(3)));
        assert_eq!((auth.signing_keys.len(), auth.signing_keys[0].id.as_str()), (2, "b"));
        assert_eq!(auth.audience, "courant", "what is left out is built in");
        for (wrong, said) in [
            ("[edge]\nallowed_origins = [\"*\"]", "is not an origin"),
            ("[edge.limits]\nmessages = \"many\"", "is not a rate"),
            ("[edge.socket]\nheartbeat = \"0s\"", "`0s` is not a heartbeat"),
            ("[edge.socket]\nheartbeat = \"1500ms\"", "write whole seconds, at least one"),
            ("[edge.socket]\nheartbeat = \"soon\"", "is not a length of time"),
            ("[auth]\nsigning_key = []", "signing_keys"),
        ] {
            let error = loader.load_str("pipelines.toml", wrong, []).err().expect(wrong).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
