//! `courant bench store --fill 5GB`: whether memory stays bounded while much is written, and how soon the folder opens
//! again.
//!
//! The engine is closed as soon as everything is acknowledged, so opening it has as much of a journal to read as there
//! can be. Then the last item of every writer is looked for: what counts is a folder that is whole.

use std::sync::Arc;

use anyhow::ensure;
use courant_connectors::connections::Connections;
use courant_connectors::store::{BatchWrite, Consistency, Get, Item, Key, Name, Store};
use tokio::time::Instant;

use super::process::peak_megabytes;
use super::store::{schema, text};
use super::{Figure, RECORD_BYTES};

/// Enough to fill every group, few enough to be no load of their own.
const WRITERS: u64 = 16;
/// As many as DynamoDB takes at a time.
const BATCH: u64 = 25;

/// Measures and reports each figure.
pub async fn run(
    connections: &Connections,
    bytes: u64,
    mut report: impl FnMut(&Figure),
) -> anyhow::Result<()> {
    let (store, engine) = connections.open_store().await?;
    let table = Name::new_static("bench_fill");
    store.create_table(&schema(&table)).await?;
    let per_writer = (bytes / RECORD_BYTES as u64 / WRITERS).next_multiple_of(BATCH).max(BATCH);
    let started = Instant::now();
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(fill(Arc::clone(&store), writer, per_writer))).collect();
    for writer in writers {
        writer.await??;
    }
    let rate = (per_writer * WRITERS) as f64 / started.elapsed().as_secs_f64();
    report(&Figure::new("store_fill", rate, "records/s"));
    report(&Figure::new("store_fill_peak", peak_megabytes()?, "MB"));
    drop(store);
    if let Some(engine) = engine {
        engine.close().await;
    }

    let started = Instant::now();
    let (store, engine) = connections.open_store().await?;
    report(&Figure::new("store_reopen", started.elapsed().as_secs_f64() * 1e3, "ms"));
    report(&Figure::new("store_reopen_peak", peak_megabytes()?, "MB"));
    for writer in 0..WRITERS {
        let key = Key::new("chat_id", chat(writer)).and("sequence", per_writer - 1);
        let last = store.get(Get { table: table.clone(), key, consistency: Consistency::Strong }).await?;
        ensure!(last.is_some(), "the last item of writer {writer} is gone");
    }
    drop(store);
    if let Some(engine) = engine {
        engine.close().await;
    }
    Ok(())
}

fn chat(writer: u64) -> String {
    format!("chat_{writer:026}")
}

async fn fill(store: Arc<dyn Store>, writer: u64, items: u64) -> anyhow::Result<()> {
    let (table, chat, content) = (Name::new_static("bench_fill"), chat(writer), text());
    let put = |sequence: u64| {
        let item = Item::new().with("chat_id", chat.clone()).with("sequence", sequence);
        BatchWrite::Put { table: table.clone(), item: item.with("content", content.clone()) }
    };
    for first in (0..items).step_by(usize::try_from(BATCH)?) {
        store.batch_write((first..first + BATCH).map(put).collect()).await?;
    }
    Ok(())
}
