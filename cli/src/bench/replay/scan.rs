//! The store as a rebuild reads it, and the rows below it.

use std::sync::Arc;

use anyhow::{bail, ensure};
use courant_connectors::model::tables::messages;
use courant_pipeline::runtime::{Ending, Host, run_to_end};
use courant_stages::derived::DerivedHome;
use courant_stages::host::PositionFiles;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Bench;

/// Everything through `dynamo-scan`, in its usual segments, into nothing.
pub(super) async fn scan(bench: &Bench<'_>) -> anyhow::Result<f64> {
    // A scan notes what it gave and how far it came: here in a folder of its own each time.
    let folder = tempfile::tempdir_in(bench.folder)?;
    let positions = Arc::new(PositionFiles::open(folder.path().join("positions")).await?);
    let services = bench.host.services.clone();
    let host = Host {
        services: services.with(Arc::new(DerivedHome::new(folder.path()))).with(Arc::clone(&positions)),
        positions,
        ..bench.host.clone()
    };
    let began = Instant::now();
    let report = run_to_end(bench.pipeline("scan"), &host, &CancellationToken::new()).await;
    let taken = began.elapsed();
    if let Ending::Failed(failure) = report.ending {
        bail!("the scan failed: {failure}");
    }
    ensure!(
        report.dispositions.delivered == bench.history.messages,
        "not everything was scanned: {report:?}"
    );
    Ok(bench.rate(taken))
}

/// Every row of the table below, one after the other.
pub(super) fn iterate(bench: &Bench<'_>) -> anyhow::Result<f64> {
    let began = Instant::now();
    let passed = tokio::task::block_in_place(|| bench.engine.plain_rows(&messages::SCHEMA.name))?;
    let taken = began.elapsed();
    ensure!(passed.rows == bench.history.messages, "the table has {} rows", passed.rows);
    Ok(bench.rate(taken))
}
