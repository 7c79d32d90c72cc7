//! `courant bench store`: durable single-item writes at 1, 64 and 1024 in flight.
//!
//! Each of the writers puts one item of about 500 bytes and waits until it is on disk. On the embedded engine the limit
//! is a loop that appends as many records of the same size to a file and syncs it, in the same folder and run; rounds
//! alternate between the two. Beside it, what is left of that loop once each record has a writer who waits for it. On a server there is no such limit, and the figure stands alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use courant_connectors::store::{
    BatchWrite, Capacity, Durability, Item, KeyAttribute, Name, Returning, Store, StoreError, Stream,
    TableSchema, Write,
};

use super::disk::{append_and_sync, append_for_writers, incompressible};
use super::load::closed_loop;
use super::{Figure, IN_FLIGHT, RECORD_BYTES, ROUNDS, median};

/// Measures and reports each figure. `disk` is the folder to measure the limit in.
pub async fn run(
    store: Arc<dyn Store>,
    disk: Option<&Path>,
    lasting: Duration,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let table = Name::from(format!("bench_{}", ulid::Ulid::generate()).to_lowercase());
    store.create_table(&schema(&table)).await?;
    let parts = (IN_FLIGHT.len() + 1) * ROUNDS * if disk.is_some() { 3 } else { 1 };
    let round = lasting / u32::try_from(parts).expect("a few parts");
    for in_flight in IN_FLIGHT {
        let (mut rates, mut limits, mut p50s, mut p99s) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut costs, mut queued) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            if let Some(folder) = disk {
                limits.push(append_and_sync(folder, RECORD_BYTES, in_flight, round)?);
                queued.push(append_for_writers(folder, RECORD_BYTES, in_flight, round).await?);
            }
            let measured = closed_loop(in_flight, 1, round, |writer| puts(&store, &table, writer)).await?;
            rates.push(measured.rate);
            costs.push(measured.cpu_micros);
            p50s.push(measured.p50.as_secs_f64() * 1e3);
            p99s.push(measured.p99.as_secs_f64() * 1e3);
        }
        let mut figure = Figure::new(format!("store_write_{in_flight}"), median(&mut rates), "records/s");
        (figure.p50_ms, figure.p99_ms) = (Some(median(&mut p50s)), Some(median(&mut p99s)));
        if disk.is_some() {
            figure = figure.against(median(&mut limits));
        }
        report(&figure);
        if disk.is_some() {
            let figure = Figure::new(format!("queue_write_{in_flight}"), median(&mut queued), "records/s");
            report(&figure.against(median(&mut limits)));
            report(&Figure::new(format!("store_cpu_{in_flight}"), median(&mut costs), "us/record"));
        }
    }
    report(&batches(&store, &table, disk, round).await?);
    store.drop_table(&table).await?;
    Ok(())
}

/// Puts of one call: as many as DynamoDB takes.
const PER_CALL: usize = 25;
const CALLERS: usize = 40;

/// A thousand in flight as those write who have many.
async fn batches(
    store: &Arc<dyn Store>,
    table: &Name,
    disk: Option<&Path>,
    round: Duration,
) -> anyhow::Result<Figure> {
    let (mut rates, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        if let Some(folder) = disk {
            limits.push(append_and_sync(folder, RECORD_BYTES, CALLERS * PER_CALL, round)?);
        }
        let call = |writer| {
            let (store, item) = (Arc::clone(store), items(writer));
            let put = (table.clone(), item);
            move |call: u64| {
                let (table, item) = &put;
                let sequences = call * PER_CALL as u64..(call + 1) * PER_CALL as u64;
                let puts =
                    sequences.map(|sequence| BatchWrite::Put { table: table.clone(), item: item(sequence) });
                let (store, puts) = (Arc::clone(&store), puts.collect());
                async move { store.batch_write(puts).await }
            }
        };
        rates.push(closed_loop(CALLERS, PER_CALL, round, call).await?.rate);
    }
    let figure = Figure::new("store_batch_1000", median(&mut rates), "records/s");
    Ok(if disk.is_some() { figure.against(median(&mut limits)) } else { figure })
}

pub(super) fn schema(table: &Name) -> TableSchema {
    TableSchema {
        name: table.clone(),
        partition: KeyAttribute::text("chat_id"),
        sort: Some(KeyAttribute::number("sequence")),
        indexes: Vec::new().into(),
        ttl: None,
        stream: Stream::Off,
        capacity: Capacity::OnDemand,
        point_in_time_recovery: false,
    }
}

/// What one writer puts: its own chat, one sequence after another.
fn items(writer: usize) -> impl Fn(u64) -> Item + Send + use<> {
    let (chat, content) = (format!("chat_{writer:026}"), text());
    move |sequence| {
        Item::new().with("chat_id", chat.clone()).with("sequence", sequence).with("content", content.clone())
    }
}

fn puts(store: &Arc<dyn Store>, table: &Name, writer: usize) -> impl FnMut(u64) -> Put + Send + use<> {
    let (store, table, item) = (Arc::clone(store), table.clone(), items(writer));
    move |sequence| {
        let (store, write) = (Arc::clone(&store), Write::put(table.clone(), item(sequence)));
        Box::pin(async move { store.write(write, Returning::Nothing, Durability::Synced).await.map(drop) })
    }
}

type Put = std::pin::Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;

/// What makes an item about as large as a record: keys and names take the rest.
pub(super) fn text() -> String {
    incompressible((RECORD_BYTES - 90) / 2).iter().map(|byte| format!("{byte:02x}")).collect()
}
