//! What a rebuild would cost, found out without making anything that stays.

use std::sync::Arc;
use std::time::Duration;

use courant_connectors::files::generations::Generations;
use courant_connectors::model::tables::messages;
use courant_pipeline::runtime::{Ending, Job};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::build::Range;
use super::plan::{History, without_effects};
use super::request::{Pace, Request};
use super::{Engine, Error, Result};

/// How long to try: enough for a rate that means something.
const TRIAL: Duration = Duration::from_secs(2);
/// A strongly consistent read of this much is one unit, as DynamoDB counts.
const UNIT_BYTES: u64 = 4096;

/// A guess at what a rebuild takes; where nothing is known, nothing is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Whether the store is scanned, or the log is enough.
    pub scanned: bool,
    pub records: Option<u64>,
    pub bytes: Option<u64>,
    /// Of the store, with the comparison that follows.
    pub read_units: Option<u64>,
    /// As a short trial ran, or as it is throttled.
    pub records_per_second: Option<f64>,
    pub seconds: Option<f64>,
}

/// Nothing is told of what is only in memory yet, or was not counted yet: DynamoDB counts every six hours.
fn known(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

impl Engine<'_> {
    /// Tries for a moment how fast it goes, and removes what came of that.
    pub async fn estimate(&self, request: &Request) -> Result<Estimate> {
        let plan = self.plan(request)?;
        plan.check(&request.from)?;
        self.check_pace(request.pace())?;
        let Range { start, join, fence, .. } = self.range(&plan, request).await?;
        let scanned = join.is_some();
        let history = if scanned {
            History::Scan { join: None, published_before: None, end: &fence }
        } else {
            History::Log { start: &start, end: &fence }
        };
        let records = self.expected_records(&plan, &history).await;
        let connected = self.connected()?;
        let table = connected.store.describe_table(&messages::SCHEMA.name).await.ok().flatten();
        let table_bytes = table.and_then(|table| table.bytes).and_then(known).filter(|_| plan.can_scan());
        let bytes = if scanned { table_bytes } else { self.log_bytes(&plan, records).await };
        let scans = u64::from(plan.can_scan()) + u64::from(scanned);
        let read_units = table_bytes.map(|bytes| bytes.div_ceil(UNIT_BYTES) * scans);
        // It is asked how fast it could go.
        let pace = Pace { yield_over: None, ..request.pace() };
        let topology = without_effects(plan.reading(&history, request.segments, pace));
        // Nothing is tried if everything is behind an effect: it would say nothing.
        let tried = match plan.compared().next() {
            Some(_) => self.try_for_a_moment(&topology).await?,
            None => None,
        };
        let rate = match (request.rate, tried) {
            (Some(rate), Some(tried)) => Some(rate.min(tried)),
            (rate, tried) => rate.or(tried),
        };
        let seconds = records.zip(rate).map(|(records, rate)| records as f64 / rate);
        Ok(Estimate { scanned, records, bytes, read_units, records_per_second: rate, seconds })
    }

    async fn log_bytes(&self, plan: &super::plan::Plan, records: Option<u64>) -> Option<u64> {
        let (log, topic) = (Arc::clone(&self.connected().ok()?.log), plan.topics.first()?);
        let held: u64 = log.watermarks(topic).await.ok()?.iter().map(|marks| marks.high - marks.low).sum();
        let bytes = log.describe_topic(topic).await.ok().flatten()?.bytes.and_then(known)?;
        // Records are of one size, more or less.
        Some(
            u64::try_from(u128::from(bytes) * u128::from(records?) / u128::from(held.max(1)))
                .unwrap_or(u64::MAX),
        )
    }

    /// Records per second through the pipeline's own stages into a store that is removed again.
    async fn try_for_a_moment(&self, topology: &courant_pipeline::config::Topology) -> Result<Option<f64>> {
        let folder = tempfile::tempdir().map_err(|source| Error::Scratch { source })?;
        let scratch = Generations::of(folder.path(), &topology.name)?.begin().await?;
        let host = self.host_for(&scratch).await?;
        let (job, stop) = (Job::of(topology), self.stop.child_token());
        let began = Instant::now();
        let run = job.run(&host, &stop);
        let enough = async {
            tokio::time::sleep(TRIAL).await;
            stop.cancel();
        };
        let (report, ()) = tokio::join!(
            async {
                let report = run.await;
                stop.cancel();
                report
            },
            async {
                stop.run_until_cancelled(enough).await;
            }
        );
        if let Ending::Failed(failure) = report.ending {
            return Err(Error::Run(failure));
        }
        let ended = report.dispositions.sum() - report.dispositions.failed;
        Ok((ended > 0).then(|| ended as f64 / began.elapsed().as_secs_f64().max(0.001)))
    }
}
