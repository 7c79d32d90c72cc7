//! `filter`: lets records pass for which an expression holds.

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::jq::Expr;

pub static SPEC: StageSpec = StageSpec::transform::<Config>("filter", Takes::Any, Gives::Same)
    .summary("lets records pass for which a jq expression holds, and drops the rest")
    .example("[[pipeline.stage]]\nkind = \"filter\"\nparams = { expr = '.type == \"message\" and .size < 1000' }\n");

/// The metric label of what is left out.
const FILTERED: &str = "filtered";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The condition, in jq: `.` is the record's payload, `$key` its key, `$headers` its headers. A record
    /// passes if the first result is neither `false` nor `null`. A record on which the expression fails is
    /// refused, which `on_error` deals with.
    pub expr: String,
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        Ok(Built::stage(Filter { expr: Expr::on_record("expr", &self.expr)? }))
    }
}

struct Filter {
    expr: Expr,
}

#[async_trait]
impl Stage for Filter {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        batch.each(|slot| {
            if !self.expr.is_true(slot.record_mut())? {
                slot.drop_as(FILTERED);
            }
            Ok(())
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, problem, process, stage};
    use serde_json::json;

    #[tokio::test]
    async fn the_first_result_decides() {
        let stage = stage(&SPEC, json!({"expr": ".ok"}));
        let fates = process(
            &*stage,
            batch(&[r#"{"ok":true}"#, r#"{"ok":false}"#, r#"{"ok":0}"#, "{}", "[]", "{nope"]),
        );
        let fates = fates.await;
        assert_eq!(fates[..4], [r#"{"ok":true}"#, "dropped: filtered", r#"{"ok":0}"#, "dropped: filtered"]);
        assert!(fates[4].starts_with("reject: evaluate `expr`: cannot index"), "{}", fates[4]);
        assert!(fates[5].starts_with("reject: read the payload as JSON"), "{}", fates[5]);
    }

    #[tokio::test]
    async fn no_result_drops() {
        let stage = stage(&SPEC, json!({"expr": "empty"}));
        assert_eq!(process(&*stage, batch(&["1"])).await, ["dropped: filtered"]);
    }

    #[test]
    fn a_wrong_expression_is_found_when_it_is_built() {
        let problem = problem(&SPEC, json!({"expr": ".a | lenght"}));
        assert_eq!((problem.key.as_str(), problem.offset), ("expr", Some(5)));
        assert_eq!(problem.help.as_deref(), Some("did you mean `length`?"));
    }
}
