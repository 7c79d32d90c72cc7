//! What the client protocol is answered from: queries go to the store, commands to pipelines, sockets to live state.

use std::sync::Arc;

use courant_connectors::live::Live;
use courant_connectors::model::GatewayId;
use courant_connectors::store::ReadStore;

use crate::auth::{AuthConfig, Authenticate};
use crate::commands::Commands;
use crate::config::EdgeConfig;
use crate::limits::Limits;

/// Everything a route may use. Clones share it.
#[derive(Clone)]
pub struct Api {
    /// Without a way to write: what changes something is a command.
    pub store: Arc<dyn ReadStore>,
    pub live: Arc<dyn Live>,
    pub commands: Commands,
    pub authenticate: Arc<dyn Authenticate>,
    pub limits: Limits,
    /// This process among those that hold sockets.
    pub gateway: GatewayId,
    pub edge: Arc<EdgeConfig>,
    pub auth: Arc<AuthConfig>,
}
