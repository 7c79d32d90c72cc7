//! `blackhole`: takes everything, keeps nothing. For measuring and for trying out what comes before it.

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

pub static SPEC: StageSpec = StageSpec::sink::<Config>("blackhole", Takes::Any)
    .summary("takes every record and keeps none; its stage metrics count them")
    .example("[[pipeline.stage]]\nkind = \"blackhole\"\n");

/// It has no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Blackhole))
    }
}

/// Nothing to count here: the runtime counts what each stage takes.
struct Blackhole;

#[async_trait]
impl Stage for Blackhole {
    async fn process(&self, _: &mut Batch) -> Result<(), StageError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, problem, process, stage};
    use serde_json::json;

    #[tokio::test]
    async fn everything_passes() {
        let stage = stage(&SPEC, json!({}));
        assert_eq!(process(&*stage, batch(&["1", "not json"])).await, ["1", "not json"]);
        assert!(problem(&SPEC, json!({"size": 1})).message.contains("size"));
    }
}
