//! What operators see of it.

use std::time::Duration;

use courant_connectors::store::StoreError;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;
use crate::metrics as names;
use crate::testing::faulty::{Call, Fault};

/// The lines of one metric after a day of everything.
fn lines<'a>(rendered: &'a str, name: &str) -> Vec<&'a str> {
    rendered.lines().filter(|line| line.starts_with(name)).collect()
}

async fn a_day() {
    let (world, stage) = world().await;
    let (chat, broken) = (world.chat(&[ANN]).await, world.chat(&[ANN]).await);
    world.remove_counter(&broken).await;
    // Two stored, one of them twice in the batch, and two refused for their counter.
    let records = ["a", "b", "a"].map(|id| send(&chat, id)).into_iter();
    tell(&*stage, records.chain(["x", "y"].map(|id| send(&broken, id))).collect()).await;
    // One known, found at once and found late; one whose allocation fails.
    tell(&*stage, vec![send(&chat, "a")]).await;
    world.store.once(|call| matches!(call, Call::BatchGet), Fault::Stale);
    tell(&*stage, vec![send(&chat, "a")]).await;
    let throttled = Fault::Refuse(StoreError::Throttled("slow down".into()));
    world.store.once(|call| matches!(call, Call::Write(_)), throttled);
    tell(&*stage, vec![send(&chat, "c")]).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    tell(&*stage, vec![send(&chat, "a")]).await;
}

#[test]
fn what_the_design_wants_watched_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        names::describe();
        runtime.block_on(a_day());
    });
    let rendered = recorder.handle().render();
    for (name, line) in [
        (names::IDEMPOTENCY_CHECKS, "courant_idempotency_checks_total 9"),
        (names::IDEMPOTENCY_HITS, "courant_idempotency_hits_total 3"),
        (names::ALLOCATED, "courant_sequences_allocated_total 3"),
        (names::ALLOCATION_ERRORS, "courant_sequence_allocation_errors_total 1"),
        (names::COUNTER_MISSING, "courant_counter_missing_total{fault=\"missing\"} 2"),
        (names::PERSISTED, "courant_messages_persisted_total 2"),
        (names::STORE_WRITE_UNITS, "courant_persist_write_units_total 16"),
        (names::PERSIST_CONFLICTS, "courant_persist_conflicts_total{cause=\"known-key\"} 1"),
    ] {
        assert_eq!(lines(&rendered, name), [line]);
    }
    for (name, count) in [
        (names::ALLOCATION_SECONDS, "courant_sequence_allocation_seconds_count 3"),
        (names::PERSIST_SECONDS, "courant_persist_seconds_count 2"),
        (names::CHAT_PER_MINUTE, "courant_chat_messages_per_minute_count 2"),
    ] {
        assert!(lines(&rendered, name).contains(&count), "{name}: {rendered}");
    }
}
