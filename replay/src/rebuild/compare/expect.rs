//! A sink in place of a derived one, which notes what the store should hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use courant_pipeline::derived::Derived;
use courant_pipeline::spec::{BuildContext, Built, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use super::spill::Spill;

pub(super) static SPEC: StageSpec =
    StageSpec::sink::<Config>("replay-expect", Takes::Any).summary("notes what a derived store should hold");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {}

/// What is noted of each stage; offered to the stages of one run.
#[derive(Default)]
pub(super) struct Expectations(pub(super) HashMap<Arc<str>, Expectation>);

#[derive(Clone)]
pub(super) struct Expectation {
    pub(super) store: Arc<dyn Derived>,
    pub(super) spill: Arc<Spill>,
    /// Keys of interest; all if none.
    pub(super) only: Option<Arc<HashSet<Box<str>>>>,
}

impl StageConfig for Config {
    fn build(self, context: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let expectations = context.services.get::<Expectations>();
        let found = expectations.and_then(|all| all.0.get(context.stage).cloned());
        match found {
            Some(expectation) => Ok(Built::stage(Expect(expectation))),
            None => Err(vec![Problem::new("", "this stage is part of a comparison only")]),
        }
    }
}

struct Expect(Expectation);

#[async_trait]
impl Stage for Expect {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        let Expectation { store, spill, only } = &self.0;
        let mut entries = Vec::with_capacity(batch.len());
        batch.each(|slot| {
            let entry = store.expected(slot.record())?;
            entries.extend(entry.filter(|entry| only.as_ref().is_none_or(|only| only.contains(&entry.key))));
            Ok(())
        });
        let spill = Arc::clone(spill);
        let added = tokio::task::spawn_blocking(move || spill.add(entries)).await;
        let added = added.map_err(|error| StageError::fatal("note what is expected", error))?;
        // Not again: some of them may be noted already.
        added.map_err(|error| StageError::fatal("note what is expected", error))
    }
}
