//! Every metric of the runtime, named in one place.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::ack::{Disposition, Tally};
use crate::error::Class;

pub const READ: &str = "courant_source_read_total";
pub const DISPOSITIONS: &str = "courant_source_dispositions_total";
pub const RECORD_SECONDS: &str = "courant_source_read_to_disposition_seconds";
pub const IN_FLIGHT: &str = "courant_source_in_flight";
pub const COMMIT_LAG: &str = "courant_source_commit_lag";
pub const SOURCE_LAG: &str = "courant_source_lag";
pub const STAGE_IN: &str = "courant_stage_in_total";
pub const STAGE_OUT: &str = "courant_stage_out_total";
pub const STAGE_ERRORS: &str = "courant_stage_errors_total";
pub const STAGE_DROPPED: &str = "courant_stage_dropped_total";
pub const STAGE_DEAD_LETTERS: &str = "courant_stage_dead_letters_total";
pub const BATCH_RECORDS: &str = "courant_stage_batch_records";
pub const STAGE_SECONDS: &str = "courant_stage_seconds";
pub const QUEUE_DEPTH: &str = "courant_stage_queue_depth";
pub const PARKED: &str = "courant_stage_parked";
pub const CIRCUIT_OPEN: &str = "courant_stage_circuit_open";
pub const RESTARTS: &str = "courant_pipeline_restarts_total";
pub const RUNNING: &str = "courant_pipeline_running";
pub const RELOADS: &str = "courant_reloads_total";

/// Bucket bounds for the histograms in seconds: 50 µs to 10 s, each about 2.5 times the last.
pub const SECONDS_BUCKETS: [f64; 16] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
];
/// Bucket bounds for batch sizes in records.
pub const BATCH_BUCKETS: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0];

/// Says what each metric means, once a process.
pub fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(READ, "records read from the source");
    describe_counter!(
        DISPOSITIONS,
        "source records by how they ended; their sum equals the records read once idle"
    );
    describe_histogram!(RECORD_SECONDS, "from reading a batch to the disposition of its last record");
    describe_gauge!(IN_FLIGHT, "source records without a disposition");
    describe_gauge!(COMMIT_LAG, "source records read and not yet committed");
    describe_gauge!(SOURCE_LAG, "records that wait in the source, as far as it knows");
    describe_counter!(STAGE_IN, "records given to the stage, retries included");
    describe_counter!(STAGE_OUT, "records the stage handed on, or finished if it is the last");
    describe_counter!(STAGE_ERRORS, "records the stage failed on, by class");
    describe_counter!(STAGE_DROPPED, "records the stage left out, by reason");
    describe_counter!(STAGE_DEAD_LETTERS, "records the stage gave up on, kept as dead letters");
    describe_histogram!(BATCH_RECORDS, "records per call to the stage");
    describe_histogram!(STAGE_SECONDS, "time per call to the stage");
    describe_gauge!(QUEUE_DEPTH, "records waiting in front of the stage");
    describe_gauge!(PARKED, "records waiting for a retry, or behind one of their key");
    describe_gauge!(CIRCUIT_OPEN, "1 while the stage's dependency is left alone to recover");
    describe_counter!(RESTARTS, "restarts of the pipeline after a failure");
    describe_gauge!(RUNNING, "1 while the pipeline runs");
    describe_counter!(RELOADS, "reloads of the configuration, by outcome");
}

/// Counters of one pipeline's source; handles are looked up once, a batch costs a few atomic additions.
pub(crate) struct SourceMetrics {
    read: Counter,
    dispositions: [Counter; Disposition::ALL.len()],
    seconds: Histogram,
    pub(crate) in_flight: Gauge,
    pub(crate) commit_lag: Gauge,
    pub(crate) lag: Gauge,
}

impl Default for SourceMetrics {
    fn default() -> Self {
        Self {
            read: Counter::noop(),
            dispositions: Disposition::ALL.map(|_| Counter::noop()),
            seconds: Histogram::noop(),
            in_flight: Gauge::noop(),
            commit_lag: Gauge::noop(),
            lag: Gauge::noop(),
        }
    }
}

impl SourceMetrics {
    pub(crate) fn of(pipeline: &str) -> Self {
        let name = || pipeline.to_owned();
        Self {
            read: counter!(READ, "pipeline" => name()),
            dispositions: Disposition::ALL
                .map(|d| counter!(DISPOSITIONS, "pipeline" => name(), "disposition" => d.name())),
            seconds: histogram!(RECORD_SECONDS, "pipeline" => name()),
            in_flight: gauge!(IN_FLIGHT, "pipeline" => name()),
            commit_lag: gauge!(COMMIT_LAG, "pipeline" => name()),
            lag: gauge!(SOURCE_LAG, "pipeline" => name()),
        }
    }

    pub(crate) fn read(&self, count: u64) {
        self.read.increment(count);
        self.in_flight.increment(count as f64);
    }

    pub(crate) fn resolved(&self, tally: &Tally, since_read: Duration) {
        for (disposition, counter) in Disposition::ALL.into_iter().zip(&self.dispositions) {
            let count = tally.of(disposition);
            if count > 0 {
                counter.increment(count);
            }
        }
        self.in_flight.decrement(tally.sum() as f64);
        self.seconds.record(since_read.as_secs_f64());
    }
}

/// Counters of one pipeline as a whole.
pub(crate) struct PipelineMetrics {
    pub(crate) restarts: Counter,
    pub(crate) running: Gauge,
}

impl PipelineMetrics {
    pub(crate) fn noop() -> Self {
        Self { restarts: Counter::noop(), running: Gauge::noop() }
    }

    pub(crate) fn of(pipeline: &str) -> Self {
        Self {
            restarts: counter!(RESTARTS, "pipeline" => pipeline.to_owned()),
            running: gauge!(RUNNING, "pipeline" => pipeline.to_owned()),
        }
    }
}

/// Counters of one stage.
pub(crate) struct StageMetrics {
    pipeline: String,
    stage: String,
    pub(crate) records_in: Counter,
    pub(crate) records_out: Counter,
    errors: [Counter; Class::ALL.len()],
    dropped: Mutex<Vec<(&'static str, Counter)>>,
    pub(crate) dead_letters: Counter,
    pub(crate) batch_records: Histogram,
    pub(crate) seconds: Histogram,
    pub(crate) queue_depth: Gauge,
    pub(crate) parked: Gauge,
    pub(crate) circuit_open: Gauge,
}

impl StageMetrics {
    pub(crate) fn of(pipeline: &str, stage: &str) -> Self {
        let labels = [("pipeline", pipeline.to_owned()), ("stage", stage.to_owned())];
        Self {
            pipeline: pipeline.to_owned(),
            stage: stage.to_owned(),
            records_in: counter!(STAGE_IN, &labels),
            records_out: counter!(STAGE_OUT, &labels),
            errors: Class::ALL.map(|class| {
                counter!(STAGE_ERRORS, "pipeline" => pipeline.to_owned(), "stage" => stage.to_owned(), "class" => class.name())
            }),
            dropped: Mutex::default(),
            dead_letters: counter!(STAGE_DEAD_LETTERS, &labels),
            batch_records: histogram!(BATCH_RECORDS, &labels),
            seconds: histogram!(STAGE_SECONDS, &labels),
            queue_depth: gauge!(QUEUE_DEPTH, &labels),
            parked: gauge!(PARKED, &labels),
            circuit_open: gauge!(CIRCUIT_OPEN, &labels),
        }
    }

    pub(crate) fn error(&self, class: Class, count: u64) {
        self.errors[class as usize].increment(count);
    }

    /// Counts records left out; reasons are few and fixed, so their counters are looked up once each.
    pub(crate) fn dropped(&self, reason: &'static str, count: u64) {
        let mut known = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let index = known.iter().position(|(name, _)| *name == reason).unwrap_or_else(|| {
            let labels = [
                ("pipeline", self.pipeline.clone()),
                ("stage", self.stage.clone()),
                ("reason", reason.to_owned()),
            ];
            known.push((reason, counter!(STAGE_DROPPED, &labels)));
            known.len() - 1
        });
        known[index].1.increment(count);
    }
}
