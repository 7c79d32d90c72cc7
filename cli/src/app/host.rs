//! What a process provides to its pipelines.

use std::sync::Arc;

use anyhow::Context as _;
use courant_connectors::connections::{Connected, Connections};
use courant_connectors::files::FileError;
use courant_connectors::search::Searches;
use courant_edge::EdgeConfig;
use courant_pipeline::config::{Loaded, Topology};
use courant_pipeline::intake::Intake;
use courant_pipeline::runtime::Host;
use courant_pipeline::{Services, clock, metrics};
use courant_stages::derived::{DerivedHome, OpenTables};
use courant_stages::host::{DeadLetterStore, PositionFiles};
use courant_stages::metrics as stage_metrics;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::data_folder::DataFolder;
use crate::settings::RuntimeConfig;

/// Takes the data folder and opens what pipelines use. Nobody else can take it until the host and its clones are gone.
pub async fn open_host(loaded: &Loaded) -> anyhow::Result<Host> {
    let mut host = open_folder(&loaded.section("runtime")).await?;
    host.services = host.services.with(Arc::new(Intake::default())).with(Arc::new(Searches::default()));
    if uses_connections(loaded) {
        let connections: Connections = loaded.section("connections");
        host.services = host.services.with(Arc::new(connections.open().await?));
    }
    Ok(host)
}

/// Whether any pipeline reads or writes store, log or live state, or serves clients, who do; or others carry out what
/// the clients of this process ask for. A process that only moves files needs no engine.
fn uses_connections(loaded: &Loaded) -> bool {
    if !loaded.section::<EdgeConfig>("edge").relay.to.is_empty() {
        return true;
    }
    let touches_any = |topology: &Topology| topology.stages.iter().any(|stage| !stage.access.is_empty());
    loaded.topologies.iter().any(|topology| !topology.serves.is_empty() || touches_any(topology))
}

/// Puts on disk what the embedded engine holds; the last thing a process does.
pub(super) async fn close_connections(services: &Services) {
    if let Some(connected) = services.get::<Connected>() {
        connected.close().await;
    }
}

pub(super) async fn open_folder(config: &RuntimeConfig) -> anyhow::Result<Host> {
    let folder = Arc::new(DataFolder::take(&config.data_dir)?);
    let dead_letters = Arc::new(DeadLetterStore::open(config.dead_letters()).await?);
    let positions = Arc::new(PositionFiles::open(config.positions()).await?);
    Ok(Host {
        services: Services::default()
            .with(Arc::clone(&dead_letters))
            .with(Arc::clone(&positions))
            .with(Arc::new(DerivedHome::new(config.derived())))
            .with(Arc::new(OpenTables::default()))
            .with(folder),
        dead_letters,
        positions,
        drain_deadline: config.drain_deadline.0,
    })
}

/// Installs the recorder behind `/metrics`.
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let seconds = [metrics::STAGE_SECONDS, metrics::RECORD_SECONDS, courant_edge::rest::metrics::SECONDS];
    let mut builder = PrometheusBuilder::new();
    for name in seconds.into_iter().chain(stage_metrics::SECONDS) {
        builder =
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &metrics::SECONDS_BUCKETS)?;
    }
    let batches = Matcher::Full(metrics::BATCH_RECORDS.to_owned());
    let per_minute = Matcher::Full(stage_metrics::CHAT_PER_MINUTE.to_owned());
    let handle = builder
        .set_buckets_for_metric(batches, &metrics::BATCH_BUCKETS)?
        .set_buckets_for_metric(per_minute, &stage_metrics::PER_MINUTE_BUCKETS)?
        .install_recorder()
        .context("cannot install the metrics recorder")?;
    metrics::describe();
    stage_metrics::describe();
    Ok(handle)
}

/// The recorder keeps histogram samples until somebody sorts them into buckets. Nobody may ever ask for
/// `/metrics`, so memory would grow without this.
pub(super) async fn upkeep(handle: PrometheusHandle) {
    let mut every = tokio::time::interval(std::time::Duration::from_secs(1));
    loop {
        every.tick().await;
        handle.run_upkeep();
    }
}

/// Between two looks at the dead letters: soon enough for an alert, rare enough for queues that are long.
const LETTERS_EVERY: std::time::Duration = std::time::Duration::from_secs(15);

/// Tells how many dead letters wait, and for how long.
pub(super) async fn watch_letters(store: Arc<DeadLetterStore>) {
    let mut every = tokio::time::interval(LETTERS_EVERY);
    loop {
        every.tick().await;
        if let Err(error) = count_letters(&store).await {
            tracing::warn!(%error, "cannot count the dead letters");
        }
    }
}

async fn count_letters(store: &DeadLetterStore) -> Result<(), FileError> {
    for depth in store.journal().queues().await? {
        let first = store.journal().list(Some(&depth.queue), 1).await?;
        let waited = first.first().map(|first| clock::unix_millis().saturating_sub(first.letter.failed_at));
        let waited = std::time::Duration::from_millis(waited.unwrap_or(0));
        stage_metrics::letters(&depth.queue, depth.pending, waited);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_data_folder_is_taken_as_long_as_the_host_lives() {
        let folder = tempfile::tempdir().unwrap();
        let config = RuntimeConfig { data_dir: folder.path().join("data"), ..RuntimeConfig::default() };
        let host = open_folder(&config).await.unwrap();
        let used_by_a_pipeline = host.services.clone();
        drop(host);
        let refused = open_folder(&config).await.err().expect("a pipeline still runs").to_string();
        assert!(refused.contains("another courant uses the data folder"), "{refused}");
        drop(used_by_a_pipeline);
        open_folder(&config).await.unwrap();
    }
}
