//! What others talk to: the admin socket, HTTP with the client protocol, and the relay that takes other processes'
//! commands.
//!
//! Addresses are taken before anything is opened, so that a second process is told at once where the first one answers.
//! At the end clients are sent elsewhere first, while pipelines still answer what is under way.

use std::sync::Arc;

use courant_connectors::connections::Connected;
use courant_connectors::model::GatewayId;
use courant_connectors::search::Searches;
use courant_edge::admin::AdminServer;
use courant_edge::commands::Commands;
use courant_edge::http::{HttpServer, Routes};
use courant_edge::relay::{Relay, RelayServer};
use courant_edge::ws::Gateway;
use courant_edge::{Api, Backing, EdgeConfig, client_routes};
use courant_pipeline::Services;
use courant_pipeline::config::Loaded;
use courant_pipeline::intake::Intake;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::control::App;
use crate::settings::RuntimeConfig;

/// Addresses that are taken; nobody is answered yet.
pub(super) struct Bound {
    admin: AdminServer,
    http: Option<HttpServer>,
}

impl Bound {
    pub(super) async fn bind(loaded: &Loaded, without_edge: bool) -> anyhow::Result<Self> {
        // The socket first: a second process is told where the first one answers.
        let admin = AdminServer::bind(&loaded.section::<RuntimeConfig>("runtime").admin_socket())?;
        let http = if without_edge {
            None
        } else {
            Some(HttpServer::bind(&loaded.section::<EdgeConfig>("edge")).await?)
        };
        Ok(Self { admin, http })
    }

    /// Begins to answer. What no pipeline here carries out goes by the relay.
    pub(super) async fn serve(
        self,
        app: &Arc<App>,
        loaded: &Loaded,
        relay: Option<Relay>,
    ) -> anyhow::Result<Servers> {
        let services = &app.runtime().host().services;
        let takes_commands = app.takes_commands(loaded);
        let mut servers = Servers { clients: None, stop: CancellationToken::new(), tasks: JoinSet::new() };
        servers.tasks.spawn(self.admin.run(Arc::clone(app) as _, servers.stop.clone()));
        if takes_commands && let Some(intake) = services.get::<Intake>() {
            let config = loaded.section::<EdgeConfig>("edge").relay;
            if let Some(listening) = RelayServer::bind(&config, (*intake).clone()).await? {
                servers.tasks.spawn(listening.run(servers.stop.clone()));
            }
        }
        if let Some(http) = self.http {
            let routes = match open_gateway(loaded, services, relay)? {
                Some((gateway, routes)) => {
                    servers.clients = Some(Clients::start(gateway));
                    Some(routes)
                }
                None => None,
            };
            tracing::info!(address = %http.address(), "listening");
            servers.tasks.spawn(http.run(Arc::clone(app) as _, routes, servers.stop.clone()));
        }
        Ok(servers)
    }
}

/// The client protocol; none in a process without connections, which has nothing to answer from.
fn open_gateway(
    loaded: &Loaded,
    services: &Services,
    relay: Option<Relay>,
) -> anyhow::Result<Option<(Gateway, Routes)>> {
    let (Some(connected), Some(intake)) = (services.get::<Connected>(), services.get::<Intake>()) else {
        return Ok(None);
    };
    let edge: EdgeConfig = loaded.section("edge");
    let backing = Backing {
        store: Arc::clone(&connected.store) as _,
        live: Arc::clone(&connected.live),
        searches: services.get::<Searches>().unwrap_or_default(),
        commands: Commands::new((*intake).clone(), edge.request_timeout.0).relayed_by(relay),
        gateway: GatewayId::generate(),
    };
    let data_dir = loaded.section::<RuntimeConfig>("runtime").data_dir;
    let api = Api::open(edge, loaded.section("auth"), &data_dir, backing)?;
    let gateway = Gateway::new(&api);
    Ok(Some((gateway.clone(), client_routes(api, gateway))))
}

/// Everything that answers.
pub(super) struct Servers {
    clients: Option<Clients>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// The sockets of clients, which end before everything else.
struct Clients {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Clients {
    fn start(gateway: Gateway) -> Self {
        let stop = CancellationToken::new();
        let until = stop.clone();
        Self { stop, running: tokio::spawn(async move { gateway.run(until).await }) }
    }
}

impl Servers {
    /// Answers what clients wait for and sends them to other processes. Pipelines must still run.
    pub(super) async fn send_clients_away(&mut self) {
        if let Some(clients) = self.clients.take() {
            clients.stop.cancel();
            if let Err(error) = clients.running.await {
                tracing::error!(%error, "the gateway failed while it was ending");
            }
        }
    }

    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
