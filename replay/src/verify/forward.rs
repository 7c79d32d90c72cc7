//! What only moves forward, looked at twice. One look cannot tell: so the first passes over the tables write some values
//! down, and after the time that was asked for they are read again, strongly. A late answer the first time was too small
//! at most, so a smaller one the second time is wrong.
//!
//! Up to [`KEPT`] of each are written down, chosen by a hash of their keys: everywhere in the tables and not only where a
//! scan begins.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use courant_connectors::store::{Get, Item, Value};
use xxhash_rust::xxh3::Xxh3;

use super::Result;
use super::checks::{self, Check};
use super::context::Context;
use super::report::Example;

/// About 300 bytes each.
const KEPT: usize = 100_000;
/// Read again together.
const TOGETHER: usize = 1000;

#[derive(Default)]
pub(super) struct Samples {
    pub(super) watermarks: Sample,
    pub(super) counters: Sample,
}

/// Values by hash; those with the smallest hashes.
#[derive(Default)]
pub(super) struct Sample(Mutex<BTreeMap<u128, (Get, u64)>>);

impl Sample {
    pub(super) fn add(&self, lookup: Get, value: u64) {
        let hash = hash(&lookup);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT || kept.last_key_value().is_some_and(|(last, _)| hash < *last) {
            kept.insert(hash, (lookup, value));
        }
        if kept.len() > KEPT {
            kept.pop_last();
        }
    }

    fn take(&self) -> Vec<(Get, u64)> {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_values().collect()
    }
}

fn hash(lookup: &Get) -> u128 {
    let mut hash = Xxh3::new();
    for (_, value) in std::iter::once(&lookup.key.partition).chain(&lookup.key.sort) {
        let text = value.as_text().unwrap_or_default();
        hash.update(&text.len().to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.digest128()
}

pub(super) async fn run(context: &Arc<Context>) -> Result<()> {
    let Some(watch) = context.options.watch else { return Ok(()) };
    let (watermarks, counters) = (context.samples.watermarks.take(), context.samples.counters.take());
    let count = watermarks.len() + counters.len();
    context.figures().watched = count as u64;
    context.expect(count as u64);
    context.pause(watch).await?;
    look_again(context, &checks::WATERMARK_FORWARD, "last_acked_sequence", watermarks).await?;
    look_again(context, &checks::COUNTER_FORWARD, "sequence_counter", counters).await
}

async fn look_again(
    context: &Context,
    check: &Check,
    attribute: &str,
    before: Vec<(Get, u64)>,
) -> Result<()> {
    context.looked_at(check, before.len());
    for part in before.chunks(TOGETHER) {
        context.check_stop()?;
        let found = context.reads.get_all(part.iter().map(|(get, _)| get.clone()).collect()).await?;
        for ((get, before), item) in part.iter().zip(found) {
            let value = item.as_ref().and_then(|item| item.u64(attribute));
            if value.is_none_or(|value| value < *before) {
                let now = value.map_or_else(|| "gone".to_owned(), |value| format!("at {value}"));
                context.found(check, named_by(get).saying(format!("was at {before} and is {now}")));
            }
        }
        context.advance(part.len());
    }
    Ok(())
}

fn named_by(get: &Get) -> Example {
    let key: Item = get.key.clone().into_item();
    let text = |name| key.get(name).and_then(Value::as_text);
    Example {
        chat_id: text("chat_id").map(Into::into),
        user_id: text("user_id").map(Into::into),
        ..Example::default()
    }
}
