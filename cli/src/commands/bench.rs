//! `courant bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use courant_connectors::connections::{Connections, EmbeddedConnection, LogConnection, StoreConnection};
use courant_connectors::embedded::Engine;
use tempfile::TempDir;

use crate::args::{Bench, ReplayBenchOptions, StoreBenchOptions};
use crate::bench::{self, Figure, Format};
use crate::{app, settings};

pub(super) fn run(file: &Path, command: &Bench) -> anyhow::Result<()> {
    // A running process counts, so what is measured counts too.
    let metrics = app::start_metrics()?;
    let (seconds, json) = match command {
        Bench::Runtime(options) => (options.seconds, options.json),
        Bench::Store(StoreBenchOptions { common: options, .. })
        | Bench::Replay(ReplayBenchOptions { common: options, .. })
        | Bench::Log(options)
        | Bench::Live(options) => (options.seconds, options.json),
        Bench::Chat(options) => (options.seconds, options.json),
        Bench::Stream(options) => (options.seconds, options.json),
        Bench::Idle(options) => (1, options.json),
    };
    let lasting = Duration::from_secs(u64::from(seconds.max(1)));
    let format = if json { Format::JsonLines } else { Format::Table };
    let mut told = Ok(());
    let report = |figure: &Figure| {
        metrics.run_upkeep();
        if told.is_ok() {
            told = bench::report(figure, format);
        }
    };
    match command {
        Bench::Runtime(_) => bench::runtime::run(lasting, report)?,
        Bench::Store(StoreBenchOptions { fill: Some(size), .. }) => {
            on_a_runtime(fill(connections(file)?, size.0, report))?;
        }
        Bench::Store(_) => on_a_runtime(store(connections(file)?, lasting, report))?,
        Bench::Log(_) => on_a_runtime(log(connections(file)?, lasting, report))?,
        Bench::Live(_) => on_a_runtime(live(connections(file)?, lasting, report))?,
        Bench::Replay(options) => {
            on_a_runtime(replay(connections(file)?, options.messages, lasting, report))?;
        }
        Bench::Chat(options) => {
            on_a_runtime(bench::chat::run(file, &connections(file)?, options, lasting, report))?;
        }
        Bench::Stream(options) => {
            let one = (file, connections(file)?);
            let other = (&*options.event_bus, connections(&options.event_bus)?);
            on_a_runtime(bench::stream::run(one, other, options, lasting, report))?;
        }
        Bench::Idle(options) => {
            on_a_runtime(bench::chat::idle(file, &connections(file)?, options.connections, report))?;
        }
    }
    Ok(told?)
}

fn connections(file: &Path) -> anyhow::Result<Connections> {
    Ok(settings::load(file)?.section("connections"))
}

fn on_a_runtime(measuring: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measuring)
}

async fn store(
    mut connections: Connections,
    lasting: Duration,
    report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let folder = match &mut connections.store {
        StoreConnection::Embedded(embedded) => Some(move_aside(embedded)?),
        StoreConnection::DynamoDb(_) => None,
    };
    let (store, engine) = connections.open_store().await?;
    let measured = bench::store::run(store, folder.as_ref().map(TempDir::path), lasting, report).await;
    close(engine).await;
    measured
}

async fn fill(mut connections: Connections, bytes: u64, report: impl FnMut(&Figure)) -> anyhow::Result<()> {
    let StoreConnection::Embedded(embedded) = &mut connections.store else {
        anyhow::bail!("only the embedded engine is filled; `connections.store` is a server");
    };
    let _folder = move_aside(embedded)?;
    bench::fill::run(&connections, bytes, report).await
}

async fn replay(
    mut connections: Connections,
    messages: u64,
    lasting: Duration,
    report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let StoreConnection::Embedded(embedded) = &mut connections.store else {
        anyhow::bail!("replay is measured on the embedded engine; `connections.store` is a server");
    };
    let folder = move_aside(embedded)?;
    Box::pin(bench::replay::run(folder.path(), messages, lasting, report)).await
}

async fn log(
    mut connections: Connections,
    lasting: Duration,
    report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let folder = match &mut connections.log {
        LogConnection::Embedded(embedded) => Some(move_aside(embedded)?),
        LogConnection::Kafka(_) => None,
    };
    let (log, engine) = connections.open_log().await?;
    let measured = bench::log::run(log, folder.as_ref().map(TempDir::path), lasting, report).await;
    close(engine).await;
    measured
}

async fn live(
    connections: Connections,
    lasting: Duration,
    report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    bench::live::run(connections.open_live().await?, lasting, report).await
}

async fn close(engine: Option<Arc<Engine>>) {
    if let Some(engine) = engine {
        engine.close().await;
    }
}

/// A new folder beside the configured one, for the engine and for what it is measured against: the same disk, and
/// never the user's data. It is removed when dropped.
fn move_aside(embedded: &mut EmbeddedConnection) -> anyhow::Result<TempDir> {
    let beside = embedded.path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let folder = tempfile::Builder::new().prefix("courant-bench-").tempdir_in(beside);
    let folder = folder.with_context(|| format!("cannot make a folder in `{}`", beside.display()))?;
    embedded.path = folder.path().join("engine");
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_data_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let mut embedded = EmbeddedConnection { path: home.path().join("data") };
        let folder = move_aside(&mut embedded).unwrap();
        assert_eq!(folder.path().parent(), Some(home.path()), "on the same disk");
        assert_eq!(embedded.path, folder.path().join("engine"));
        assert!(!home.path().join("data").exists());
        drop(folder);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let mut embedded = EmbeddedConnection { path: "no/such/folder/data".into() };
        let error = move_aside(&mut embedded).unwrap_err();
        assert!(error.to_string().contains("`no/such/folder`"), "{error}");
    }
}
