//! The `[edge]` table; its doc comments are the user's documentation.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ws::SocketConfig;

/// Where and how the process answers HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeConfig {
    /// Address and port to listen on, such as `"0.0.0.0:8080"`. Loopback if left out, so that nothing is
    /// reachable from outside before somebody asks for it. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Connections at the same time; further ones wait in the system's queue until one ends. Keep it below the
    /// process's limit of open files.
    pub max_connections: NonZeroU32,
    /// Pages that may connect from a browser, such as `"https://chat.example.com"`; `"*"` for all. Those of this server
    /// itself always may.
    pub allowed_origins: Vec<String>,
    /// Sockets of clients.
    pub socket: SocketConfig,
}

/// High enough for a gateway, low enough for the usual limit of open files of a service.
const DEFAULT_MAX_CONNECTIONS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            allowed_origins: Vec::new(),
            socket: SocketConfig::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_is_text_and_a_typo_is_an_error() {
        let config: EdgeConfig = serde_json::from_value(json!({"listen": "[::1]:9"})).unwrap();
        assert_eq!(config.listen, "[::1]:9".parse().unwrap());
        assert_eq!(serde_json::from_value::<EdgeConfig>(json!({})).unwrap(), EdgeConfig::default());
        assert!(serde_json::from_value::<EdgeConfig>(json!({"lisen": "127.0.0.1:1"})).is_err());
    }
}
