//! `route`: sends each record out by the first output whose condition holds.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Output, Stage, StageError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::jq::Expr;

pub static SPEC: StageSpec = StageSpec::transform::<Config>("route", Takes::Any, Gives::Same)
    .summary("sends each record to the first of several outputs whose jq condition holds")
    .example(
        "[[pipeline.stage]]\nkind = \"route\"\nparams.routes = { errors = '.level == \"error\"', large = '.size > 1000' }\nparams.otherwise = \"drop\"\n",
    );

/// The metric label of records that no route takes.
const NO_ROUTE: &str = "no-route";
/// What `otherwise` says to have no output for the rest.
const DROP: &str = "drop";

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Outputs by name, each with its condition in jq: `.` is the payload, `$key` the key, `$headers` the
    /// headers. They are tried in the order they are written in; the first whose first result is neither
    /// `false` nor `null` takes the record. Another stage takes an output as `input = "<stage>.<output>"`.
    pub routes: Routes,
    /// The output for records that no route takes, or `"drop"` to leave them out.
    #[serde(default = "default_otherwise")]
    pub otherwise: String,
}

fn default_otherwise() -> String {
    "otherwise".to_owned()
}

/// Names and conditions in the order they were written in, which a map would lose.
#[derive(Debug)]
pub struct Routes(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Routes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Routes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of output names and jq conditions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Routes, A::Error> {
                let routes = std::iter::from_fn(|| entries.next_entry().transpose());
                routes.collect::<Result<_, _>>().map(Routes)
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

impl JsonSchema for Routes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Routes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": { "type": "string", "description": "a jq condition" },
            "minProperties": 1,
        })
    }
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut outputs = Vec::new();
        let mut conditions = Vec::new();
        for (name, code) in self.routes.0 {
            let key = format!("routes.{name}");
            problems.extend(name_problem(&key, &name, &self.otherwise));
            match Expr::on_record(key, &code) {
                Ok(condition) => conditions.push(condition),
                Err(more) => problems.extend(more),
            }
            outputs.push(name);
        }
        if outputs.is_empty() {
            problems.push(Problem::new("routes", "there are no routes"));
        }
        if outputs.len() >= usize::from(Output::MAX) {
            problems.push(Problem::new("routes", "there are too many routes"));
        }
        if self.otherwise.is_empty() || self.otherwise.contains('.') {
            problems.push(Problem::new("otherwise", "an output's name is not empty and has no dot"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let rest = if self.otherwise == DROP { Rest::Drop } else { Rest::To(output(conditions.len())) };
        if let Rest::To(_) = rest {
            outputs.push(self.otherwise);
        }
        Ok(Built::stage(Route { conditions, rest }).outputs(outputs))
    }
}

fn name_problem(key: &str, name: &str, otherwise: &str) -> Option<Problem> {
    let message = match name {
        "" => "an output needs a name".to_owned(),
        DROP => "`drop` is what `otherwise` says; an output cannot have that name".to_owned(),
        name if name == otherwise => format!("`{name}` is the output for the rest already"),
        name if name.contains('.') => {
            format!("`{name}` has a dot, which separates stage and output in `input`")
        }
        _ => return None,
    };
    Some(Problem::new(key, message))
}

fn output(index: usize) -> Output {
    Output::try_from(index).expect("building refused more routes than outputs can be numbered")
}

struct Route {
    conditions: Vec<Expr>,
    rest: Rest,
}

/// Where records go that no route takes.
enum Rest {
    To(Output),
    Drop,
}

#[async_trait]
impl Stage for Route {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        batch.each(|slot| {
            for (index, condition) in self.conditions.iter().enumerate() {
                if condition.is_true(slot.record_mut())? {
                    slot.send_to(output(index));
                    return Ok(());
                }
            }
            match self.rest {
                Rest::To(output) => slot.send_to(output),
                Rest::Drop => slot.drop_as(NO_ROUTE),
            }
            Ok(())
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, build, process, stage};
    use courant_pipeline::Services;
    use serde_json::{Value, json};

    /// Written as text: the order of the routes is the point.
    fn params(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn the_first_route_that_holds_takes_the_record() {
        let params = params(r#"{"routes": {"z": ". > 10", "a": ". > 5"}}"#);
        let built = build(&SPEC, params.clone(), &Services::default()).ok().unwrap();
        assert_eq!(built.outputs, ["z", "a", "otherwise"]);
        let fates = process(&*stage(&SPEC, params), batch(&["11", "6", "1"])).await;
        assert_eq!(fates, ["to 0: 11", "to 1: 6", "to 2: 1"]);
    }

    #[tokio::test]
    async fn the_rest_can_be_dropped_and_errors_are_not_the_rest() {
        let params = params(r#"{"routes": {"a": ".x + 1 > 5"}, "otherwise": "drop"}"#);
        assert_eq!(build(&SPEC, params.clone(), &Services::default()).ok().unwrap().outputs, ["a"]);
        let fates = process(&*stage(&SPEC, params), batch(&[r#"{"x":1}"#, r#"{"x":"1"}"#])).await;
        assert_eq!(fates[0], "dropped: no-route");
        assert!(fates[1].starts_with("reject: evaluate `routes.a`"), "{}", fates[1]);
    }

    #[test]
    fn every_wrong_route_is_reported() {
        let wrong =
            json!({"routes": {"": "1", "drop": "1", "rest": "1", "a.b": "1", "x": "("}, "otherwise": "rest"});
        let problems = build(&SPEC, wrong, &Services::default()).err().unwrap();
        let keys: Vec<_> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, ["routes.", "routes.drop", "routes.rest", "routes.a.b", "routes.x"]);
        assert!(build(&SPEC, json!({"routes": {}}), &Services::default()).is_err());
    }
}
