//! The stages of `courant bench runtime`: the same functions as in the loop by hand, in a pipeline.

use std::time::Duration;

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, JSON, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::stage::{Partition, Positions, Read, ReadBatch};
use courant_pipeline::{Batch, Key, Payload, Record, Source, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::Instant;

use super::runtime::{Event, generate, keep, map};

pub(super) static GENERATE: StageSpec = StageSpec::source::<GenerateConfig>("bench-generate", JSON);
pub(super) static MAP: StageSpec = StageSpec::transform::<MapConfig>("bench-map", Takes::Any, Gives::Same);
pub(super) static FILTER: StageSpec =
    StageSpec::transform::<FilterConfig>("bench-filter", Takes::Any, Gives::Same);
pub(super) static PASS: StageSpec = StageSpec::transform::<PassConfig>("bench-pass", Takes::Any, Gives::Same);

#[derive(Deserialize, JsonSchema)]
struct GenerateConfig {
    millis: u64,
    keys: u64,
}

struct Generate {
    lasting: Duration,
    until: Option<Instant>,
    keys: Vec<Key>,
    n: u64,
}

impl StageConfig for GenerateConfig {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let keys = (0..self.keys).map(|key| Key::new(format!("chat_{key:026}"))).collect();
        Ok(Built::source(Generate { lasting: Duration::from_millis(self.millis), until: None, keys, n: 0 }))
    }
}

#[async_trait]
impl Source for Generate {
    fn identity(&self) -> String {
        "bench".into()
    }

    async fn open(&mut self, _: &Positions) -> Result<(), StageError> {
        self.until = Some(Instant::now() + self.lasting);
        Ok(())
    }

    async fn read(&mut self, max: usize) -> Result<Read, StageError> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(Read::End);
        }
        let mut batch = ReadBatch::new(Partition::only(), max);
        for _ in 0..max {
            let mut record = Record::new(generate(self.n));
            if !self.keys.is_empty() {
                let key = usize::try_from(self.n % self.keys.len() as u64).unwrap_or(0);
                record.key = Some(self.keys[key].clone());
            }
            self.n += 1;
            batch.push(record, self.n);
        }
        Ok(Read::Batch(batch))
    }
}

#[derive(Deserialize, JsonSchema)]
struct MapConfig {}

struct Map;

impl StageConfig for MapConfig {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Map))
    }
}

#[async_trait]
impl Stage for Map {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        for slot in batch {
            let record = slot.record_mut();
            if let Payload::Text(text) = &record.payload {
                match map(text) {
                    Ok(event) => record.payload = Payload::value(event),
                    Err(error) => slot.fail(StageError::reject("read an event", error)),
                }
            }
        }
        Ok(())
    }
}

#[derive(Deserialize, JsonSchema)]
struct FilterConfig {}

struct Filter;

impl StageConfig for FilterConfig {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Filter))
    }
}

#[async_trait]
impl Stage for Filter {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        for slot in batch {
            match slot.record().payload.as_value::<Event>() {
                Some(event) if keep(event) => {}
                Some(_) => slot.drop_as("filtered"),
                None => slot.fail(StageError::reject("read an event", "it was not mapped")),
            }
        }
        Ok(())
    }
}

#[derive(Deserialize, JsonSchema)]
struct PassConfig {}

/// Leaves everything as it is: a hop, or a blackhole at the end.
struct Pass;

impl StageConfig for PassConfig {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Pass))
    }
}

#[async_trait]
impl Stage for Pass {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        std::hint::black_box(batch);
        Ok(())
    }
}
