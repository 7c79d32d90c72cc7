//! What a process provides to its pipelines.

use std::sync::Arc;

use anyhow::Context as _;
use courant_pipeline::runtime::Host;
use courant_pipeline::{Services, metrics};
use courant_stages::host::{DeadLetterStore, PositionFiles};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::settings::RuntimeConfig;

/// Opens the stores in the data folder.
pub async fn open_host(config: &RuntimeConfig) -> anyhow::Result<Host> {
    let dead_letters = Arc::new(DeadLetterStore::open(config.dead_letters()).await?);
    let positions = Arc::new(PositionFiles::open(config.positions()).await?);
    Ok(Host {
        services: Services::default().with(Arc::clone(&dead_letters)),
        dead_letters,
        positions,
        drain_deadline: config.drain_deadline.0,
    })
}

/// Installs the recorder behind `/metrics`.
pub fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let seconds = [metrics::STAGE_SECONDS, metrics::RECORD_SECONDS];
    let mut builder = PrometheusBuilder::new();
    for name in seconds {
        builder =
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &metrics::SECONDS_BUCKETS)?;
    }
    let batches = Matcher::Full(metrics::BATCH_RECORDS.to_owned());
    let handle = builder
        .set_buckets_for_metric(batches, &metrics::BATCH_BUCKETS)?
        .install_recorder()
        .context("cannot install the metrics recorder")?;
    metrics::describe();
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
