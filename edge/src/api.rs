//! What the client protocol is answered from: queries go to the store, commands to pipelines, sockets to live state.

use std::path::Path;
use std::sync::Arc;

use courant_connectors::capability::{RestrictedLive, RestrictedStore};
use courant_connectors::live::Live;
use courant_connectors::model::GatewayId;
use courant_connectors::search::Searches;
use courant_connectors::store::{ReadStore, Store};
use warp::http::HeaderMap;

use crate::access;
use crate::auth::{AuthConfig, Authenticate, Passwords, SigningKeyError, Tokens};
use crate::commands::Commands;
use crate::config::EdgeConfig;
use crate::http::Origins;
use crate::limits::Limits;

/// Everything a route may use. Clones share it.
#[derive(Clone)]
pub struct Api {
    /// Without a way to write: what changes something is a command.
    pub store: Arc<dyn ReadStore>,
    pub live: Arc<dyn Live>,
    /// What this process has open to search in, if anything.
    pub searches: Arc<Searches>,
    pub commands: Commands,
    pub authenticate: Arc<dyn Authenticate>,
    pub tokens: Arc<Tokens>,
    pub passwords: Passwords,
    pub limits: Limits,
    /// Which web pages may use it.
    pub(crate) origins: Origins,
    /// This process among those that hold sockets.
    pub gateway: GatewayId,
    pub edge: Arc<EdgeConfig>,
    pub auth: Arc<AuthConfig>,
}

/// What stands behind the protocol.
pub struct Backing {
    pub store: Arc<dyn Store>,
    pub live: Arc<dyn Live>,
    pub searches: Arc<Searches>,
    pub commands: Commands,
    pub gateway: GatewayId,
}

impl Api {
    /// Reads the signing keys, or makes one in the data folder, and warns of settings that are for development. Of store
    /// and live state routes get what [`grant`](access::grant) says and no more.
    pub fn open(
        edge: EdgeConfig,
        auth: AuthConfig,
        data_dir: &Path,
        backing: Backing,
    ) -> Result<Self, SigningKeyError> {
        let Backing { store, live, searches, commands, gateway } = backing;
        let grant = Arc::new(access::grant());
        let live: Arc<dyn Live> = Arc::new(RestrictedLive::new(live, Arc::clone(&grant)));
        let tokens = Arc::new(Tokens::open(&auth, data_dir)?);
        for risk in risks(&edge, &auth, &tokens) {
            tracing::warn!(listen = %edge.listen, "{risk}");
        }
        Ok(Self {
            limits: Limits::new(&edge.limits, Arc::clone(&live) as _),
            origins: Origins::new(&edge.allowed_origins),
            authenticate: Arc::clone(&tokens) as _,
            passwords: Passwords::default(),
            edge: Arc::new(edge),
            auth: Arc::new(auth),
            store: Arc::new(RestrictedStore::new(store, grant)),
            live,
            searches,
            commands,
            tokens,
            gateway,
        })
    }

    /// Whether the web page that sends these headers may open a socket; what is no web page may.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        self.origins.admit(headers)
    }
}

/// What is fine on a developer's machine and not where others can connect.
fn risks(edge: &EdgeConfig, auth: &AuthConfig, tokens: &Tokens) -> Vec<&'static str> {
    if edge.listen.ip().to_canonical().is_loopback() {
        return Vec::new();
    }
    let mut risks = Vec::new();
    if auth.reveal_codes {
        risks.push(
            "auth.reveal_codes is on and others can connect: whoever registers a phone number is believed to own it",
        );
    }
    if tokens.are_of_this_process_only() {
        risks.push(
            "auth.signing_keys is not set: tokens are signed with a key in the data folder, \
             which other processes do not have and do not accept",
        );
    }
    risks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_for_development_are_warned_of_beyond_loopback() {
        let folder = tempfile::tempdir().unwrap();
        let auth = AuthConfig { reveal_codes: true, ..AuthConfig::default() };
        let tokens = Tokens::open(&auth, folder.path()).unwrap();
        let at = |listen: &str| EdgeConfig { listen: listen.parse().unwrap(), ..EdgeConfig::default() };
        assert!(risks(&at("127.0.0.1:1"), &auth, &tokens).is_empty());
        let said = risks(&at("0.0.0.0:1"), &auth, &tokens).join("\n");
        assert!(said.contains("auth.reveal_codes") && said.contains("auth.signing_keys"), "{said}");
        let quiet = AuthConfig::default();
        assert_eq!(risks(&at("[::]:1"), &quiet, &tokens).len(), 1);
    }
}
