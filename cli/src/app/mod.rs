//! A running process: pipelines, edge and admin socket, from start to drain.

mod components;
mod control;
mod data_folder;
mod host;
mod jobs;
mod logging;
mod redrive;
mod replay;
mod servers;
mod table;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use courant_connectors::capability::Grant;
use courant_edge::EdgeConfig;
use courant_edge::relay::Relay;
use courant_pipeline::config::Loaded;
use courant_pipeline::runtime::Runtime;
use futures::future::OptionFuture;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

pub use host::{open_host, start_metrics};
pub use jobs::{Job, JobUpdate, job_here};
pub use redrive::redrive_here;
pub use replay::{ReplayAsk, ReplayUpdate, replay_here};
pub use table::{look_up, table_here};

use crate::args;
use crate::settings::{LoggingConfig, RuntimeConfig};
use components::Components;
use control::App;
use data_folder::DataFolder;
use servers::{Bound, Servers};

/// What a process touches of the servers that answers clients, beside what its pipelines do.
pub fn edge_grant() -> Grant {
    courant_edge::grant().and(components::grant())
}

/// Runs what was loaded until it is told to stop.
pub async fn run(file: PathBuf, loaded: Loaded, options: args::Run) -> anyhow::Result<()> {
    logging::start(&loaded.section::<LoggingConfig>("logging"))?;
    let metrics = start_metrics()?;
    tokio::spawn(host::upkeep(metrics.clone()));
    let config: RuntimeConfig = loaded.section("runtime");
    refuse_unknown(&options.only, &loaded)?;
    DataFolder::create(&config.data_dir)?;
    let bound = Bound::bind(&loaded, options.without_edge).await?;
    let runtime = Runtime::new(open_host(&loaded).await?);
    if let Some(letters) = runtime.host().services.get() {
        tokio::spawn(host::watch_letters(letters));
    }
    let relay =
        if options.without_edge { None } else { Relay::start(&loaded.section::<EdgeConfig>("edge").relay)? };
    let components = Components::watch(runtime.host().services.get(), relay.clone()).await;
    let until_finished = options.until_finished;
    let app = Arc::new(App::new(file, options.only, runtime, metrics, components, &loaded));
    let mut servers = bound.serve(&app, &loaded, relay).await?;
    let mut stop_signals = StopSignals::listen()?;
    app.start(loaded).await;
    serve(&app, config, until_finished, &mut stop_signals).await?;
    drain(&app, &mut servers, &mut stop_signals).await?;
    servers.stop().await;
    host::close_connections(&app.runtime().host().services).await;
    tracing::info!("stopped");
    Ok(())
}

/// Reloads when asked to, and returns when it is time to stop.
///
/// A reload is a task of its own: it waits for pipelines to drain, and a stop must not wait for it.
async fn serve(
    app: &Arc<App>,
    config: RuntimeConfig,
    until_finished: bool,
    stop_signals: &mut StopSignals,
) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut changes = watch::Watch::new(config.watch.0);
    let mut reload: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            () = stop_signals.next() => return Ok(()),
            () = app.stop_asked() => return Ok(()),
            () = app.runtime().finished(), if until_finished => return Ok(()),
            Some(_) = OptionFuture::from(reload.as_mut()) => reload = None,
            _ = hangup.recv(), if reload.is_none() => reload = Some(start_reload(app)),
            () = changes.next(|| app.files_read(), async || app.look_at_files().await), if reload.is_none() => reload = Some(start_reload(app)),
        }
    }
}

fn start_reload(app: &Arc<App>) -> JoinHandle<()> {
    let app = Arc::clone(app);
    // What is wrong has been logged where it was found, and everything goes on as before.
    tokio::spawn(async move { drop(app.reload_file().await) })
}

/// Waits until everything under way has ended, unless it is told to stop again.
async fn drain(app: &App, servers: &mut Servers, stop_signals: &mut StopSignals) -> anyhow::Result<()> {
    tracing::info!("draining");
    let ended = async {
        servers.send_clients_away().await;
        app.drain().await;
    };
    tokio::select! {
        () = ended => Ok(()),
        () = stop_signals.next() => {
            tracing::warn!("told to stop again, not waiting for the drain");
            bail!("stopped before everything under way was finished; sources will offer it again");
        }
    }
}

/// What tells the process to end. Listened to by one pair from start to end, so that none is missed in between.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn refuse_unknown(only: &[String], loaded: &Loaded) -> anyhow::Result<()> {
    let names: Vec<&str> = loaded.topologies.iter().map(|topology| &*topology.name).collect();
    match only.iter().find(|name| !names.contains(&name.as_str())) {
        Some(name) => bail!("--only names `{name}`, but the file declares: {}", names.join(", ")),
        None => Ok(()),
    }
}
