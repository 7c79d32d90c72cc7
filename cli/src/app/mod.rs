//! A running process: pipelines, edge and admin socket, from start to drain.

mod control;
mod host;
mod logging;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use courant_edge::EdgeConfig;
use courant_edge::admin::AdminServer;
use courant_edge::http::HttpServer;
use courant_pipeline::config::Loaded;
use courant_pipeline::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use host::{open_host, start_metrics};

use crate::args;
use crate::settings::{LoggingConfig, RuntimeConfig};
use control::App;

/// Runs what was loaded until it is told to stop.
pub async fn run(file: PathBuf, loaded: Loaded, options: args::Run) -> anyhow::Result<()> {
    logging::start(&loaded.section::<LoggingConfig>("logging"))?;
    let metrics = start_metrics()?;
    tokio::spawn(host::upkeep(metrics.clone()));
    let config: RuntimeConfig = loaded.section("runtime");
    refuse_unknown(&options.only, &loaded)?;
    // The socket first: it also keeps a second process out of the data folder.
    std::fs::create_dir_all(&config.data_dir)
        .with_context(|| format!("cannot create the data folder `{}`", config.data_dir.display()))?;
    let admin = AdminServer::bind(&config.admin_socket())?;
    let http = if options.without_edge {
        None
    } else {
        Some(HttpServer::bind(&loaded.section::<EdgeConfig>("edge")).await?)
    };
    let runtime = Runtime::new(open_host(&config).await?);
    let until_finished = options.until_finished;
    let app = Arc::new(App::new(file, options.only, runtime, metrics, &loaded));
    let servers_stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    servers.spawn(admin.run(Arc::clone(&app) as _, servers_stop.clone()));
    if let Some(http) = http {
        tracing::info!(address = %http.address(), "listening");
        servers.spawn(http.run(Arc::clone(&app) as _, servers_stop.clone()));
    }
    app.start(loaded).await;
    serve(&app, config, until_finished).await?;
    tracing::info!("draining");
    tokio::select! {
        () = app.runtime().drain() => {}
        () = another_signal() => {
            tracing::warn!("told to stop again, not waiting for the drain");
            bail!("stopped before everything under way was finished; sources will offer it again");
        }
    }
    servers_stop.cancel();
    while servers.join_next().await.is_some() {}
    tracing::info!("stopped");
    Ok(())
}

/// Reloads when asked to, and returns when it is time to stop.
async fn serve(app: &Arc<App>, config: RuntimeConfig, until_finished: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut changes = watch::Watch::new(config.watch.0);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = app.stop_asked() => return Ok(()),
            () = app.runtime().finished(), if until_finished => return Ok(()),
            _ = hangup.recv() => reload(app).await,
            () = changes.next(|| app.files()) => reload(app).await,
        }
    }
}

async fn reload(app: &Arc<App>) {
    // What is wrong has been logged where it was found, and everything goes on as before.
    let _ = app.reload_file().await;
}

async fn another_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn refuse_unknown(only: &[String], loaded: &Loaded) -> anyhow::Result<()> {
    let names: Vec<&str> = loaded.topologies.iter().map(|topology| &*topology.name).collect();
    match only.iter().find(|name| !names.contains(&name.as_str())) {
        Some(name) => bail!("--only names `{name}`, but the file declares: {}", names.join(", ")),
        None => Ok(()),
    }
}
