//! `courant bench log`: durable appends at 1, 64 and 1024 in flight, and reading them back.
//!
//! Each of the writers appends one record of 500 bytes, or as many as a pipeline does, and waits until it is safe. On the embedded engine the limits are
//! a loop that appends as many records of the same size to a file and syncs it, and a loop that reads a file of the same
//! bytes from front to back; rounds alternate. On a server there are no such limits, and the figures stand alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use courant_connectors::log::{
    Fetch, Log, LogError, NewRecord, Offsets, Retention, Topic, TopicPartition, TopicSpec,
};
use tokio::time::Instant;

use super::disk::{append_and_sync, incompressible, read_sequentially};
use super::load::closed_loop;
use super::{Figure, RECORD_BYTES, ROUNDS, median};

/// Records that are read back: some hundred megabytes, more than any cache of the log itself.
const READ_RECORDS: usize = 400_000;
/// Records appended at a time to have something to read.
const FILL_BATCH: usize = 2_000;
/// What a pipeline asks for at a time.
const FETCH_RECORDS: usize = 1_000;

/// Who appends, and how.
#[derive(Clone, Copy)]
struct Load {
    figure: &'static str,
    writers: usize,
    /// Records that a writer appends with one call.
    per_call: usize,
}

const fn one_by_one(figure: &'static str, writers: usize) -> Load {
    Load { figure, writers, per_call: 1 }
}

const LOADS: [Load; 4] = [
    one_by_one("log_write_1", 1),
    one_by_one("log_write_64", 64),
    one_by_one("log_write_1024", 1024),
    // As pipelines append: a batch with each call.
    Load { figure: "log_batch_1024", writers: 16, per_call: 64 },
];

/// Measures and reports each figure. `disk` is the folder to measure the limits in.
pub async fn run(
    log: Arc<dyn Log>,
    disk: Option<&Path>,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let topic = Topic::from(&*format!("bench.{}", ulid::Ulid::generate()).to_lowercase());
    let spec =
        TopicSpec { name: topic.clone(), partitions: 1, retention: Retention::default(), replication: 1 };
    log.create_topic(&spec).await?;
    let parts = (LOADS.len() + 1) * ROUNDS * if disk.is_some() { 2 } else { 1 };
    let round = lasting / u32::try_from(parts).expect("a few parts");
    for load in LOADS {
        let (figure, cost) = writes(&log, &topic, disk, load, round).await?;
        report(&figure);
        if disk.is_some() && load.per_call == 1 {
            report(&Figure::new(format!("log_cpu_{}", load.writers), cost, "us/record"));
        }
    }
    report(&reads(&log, &topic, disk, round).await?);
    log.delete_topic(&topic).await?;
    Ok(())
}

/// The figure, and what a record took of the processors.
async fn writes(
    log: &Arc<dyn Log>,
    topic: &Topic,
    disk: Option<&Path>,
    Load { figure, writers, per_call }: Load,
    round: Duration,
) -> anyhow::Result<(Figure, f64)> {
    let (mut rates, mut limits, mut p50s, mut p99s) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        if let Some(folder) = disk {
            limits.push(append_and_sync(folder, RECORD_BYTES, writers * per_call, round)?);
        }
        let call = |writer| appends(log, topic, vec![record(writer); per_call]);
        let measured = closed_loop(writers, per_call, round, call).await?;
        rates.push(measured.rate);
        costs.push(measured.cpu_micros);
        p50s.push(measured.p50.as_secs_f64() * 1e3);
        p99s.push(measured.p99.as_secs_f64() * 1e3);
    }
    let mut figure = Figure::new(figure, median(&mut rates), "records/s");
    (figure.p50_ms, figure.p99_ms) = (Some(median(&mut p50s)), Some(median(&mut p99s)));
    let figure = if disk.is_some() { figure.against(median(&mut limits)) } else { figure };
    Ok((figure, median(&mut costs)))
}

type Appending = std::pin::Pin<Box<dyn Future<Output = Result<(), LogError>> + Send>>;

fn appends(
    log: &Arc<dyn Log>,
    topic: &Topic,
    records: Vec<NewRecord>,
) -> impl FnMut(u64) -> Appending + Send + use<> {
    let (log, topic) = (Arc::clone(log), topic.clone());
    move |_| {
        let (log, topic, records) = (Arc::clone(&log), topic.clone(), records.clone());
        Box::pin(
            async move { log.produce(&topic, records).await.into_iter().try_for_each(|one| one.map(drop)) },
        )
    }
}

fn record(writer: usize) -> NewRecord {
    let key = Bytes::from(format!("chat_{writer:026}"));
    let payload = Bytes::from(incompressible(RECORD_BYTES - key.len()));
    NewRecord { key: Some(key), payload, headers: Vec::new() }
}

/// Reads everything from the beginning, again and again.
async fn reads(
    log: &Arc<dyn Log>,
    topic: &Topic,
    disk: Option<&Path>,
    round: Duration,
) -> anyhow::Result<Figure> {
    let start = fill(log, topic).await?;
    let (mut rates, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        if let Some(folder) = disk {
            limits.push(read_sequentially(folder, READ_RECORDS * RECORD_BYTES, round)? / RECORD_BYTES as f64);
        }
        let started = Instant::now();
        let mut records = 0;
        while started.elapsed() < round {
            records += read_all(log, topic, start).await?;
        }
        rates.push(records as f64 / started.elapsed().as_secs_f64());
    }
    let figure = Figure::new("log_read", median(&mut rates), "records/s");
    Ok(if disk.is_some() { figure.against(median(&mut limits)) } else { figure })
}

/// Appends what is read later; returns the first offset of it.
async fn fill(log: &Arc<dyn Log>, topic: &Topic) -> anyhow::Result<u64> {
    let start = log.watermarks(topic).await?[0].high;
    for batch in 0..READ_RECORDS / FILL_BATCH {
        for appended in log.produce(topic, vec![record(batch); FILL_BATCH]).await {
            appended?;
        }
    }
    Ok(start)
}

async fn read_all(log: &Arc<dyn Log>, topic: &Topic, start: u64) -> anyhow::Result<usize> {
    let mut reader = log.read_from(Offsets::from([(TopicPartition::new(topic, 0), start)])).await?;
    let mut read = 0;
    while read < READ_RECORDS {
        if let Fetch::Records { records, .. } = reader.fetch(FETCH_RECORDS).await? {
            read += records.len();
        }
    }
    Ok(read)
}
