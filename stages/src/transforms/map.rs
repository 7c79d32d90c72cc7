//! `map`: makes new payloads out of a record's payload.

use async_trait::async_trait;
use courant_pipeline::spec::{BuildContext, Built, Gives, JSON, Problem, StageConfig, StageSpec, Takes};
use courant_pipeline::{Batch, Payload, Slot, Stage, StageError};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::jq::{Expr, Json, key_from};

pub static SPEC: StageSpec = StageSpec::transform::<Config>("map", Takes::Any, Gives::Kind(JSON))
    .summary("replaces each record by the results of a jq expression: none, one or many")
    .example(
        "[[pipeline.stage]]\nkind = \"map\"\nparams = { expr = '.recipients[] as $to | {to: $to, text}', key = '.to' }\n",
    );

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What takes the record's place, in jq: `.` is its payload, `$key` its key, `$headers` its headers. Each
    /// result becomes a record with the same key and headers; no result drops the record. At most 10000.
    pub expr: String,
    /// The new records' key, in jq on the new payload: text, a number or a truth value; `null` for none. The
    /// old key if left out.
    #[serde(default)]
    pub key: Option<String>,
}

impl StageConfig for Config {
    fn build(self, _: &BuildContext<'_>) -> Result<Built, Vec<Problem>> {
        let expr = Expr::on_record("expr", &self.expr);
        let key = self.key.map(|key| Expr::on_record("key", &key)).transpose();
        match (expr, key) {
            (Ok(expr), Ok(key)) => {
                let rekeys = key.is_some();
                Ok(Built::stage(Map { expr, key }).rekeys(rekeys))
            }
            (expr, key) => Err([expr.err(), key.err()].into_iter().flatten().flatten().collect()),
        }
    }
}

struct Map {
    expr: Expr,
    key: Option<Expr>,
}

#[async_trait]
impl Stage for Map {
    async fn process(&self, batch: &mut Batch) -> Result<(), StageError> {
        batch.each(|slot| {
            let outputs = self.expr.all(slot.record_mut())?;
            match &self.key {
                None => slot.replace_payloads(outputs.into_iter().map(Payload::value).collect()),
                Some(key) => rekey(slot, outputs, key)?,
            }
            Ok(())
        });
        Ok(())
    }
}

/// Changes the record only after nothing can fail any more, so that a dead letter shows it as it came.
fn rekey(slot: &mut Slot, outputs: Vec<Json>, expr: &Expr) -> Result<(), StageError> {
    let mut records = Vec::with_capacity(outputs.len());
    for output in outputs {
        let key = key_from(expr.first_of(&output, slot.record())?.as_ref())?;
        let mut record = slot.record().derive(Payload::value(output));
        record.key = key;
        records.push(record);
    }
    slot.replace(records);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, build, process, stage};
    use courant_pipeline::{Fate, Key, Record, Services};
    use serde_json::json;

    #[tokio::test]
    async fn one_in_any_number_out() {
        let stage = stage(&SPEC, json!({"expr": ".[]"}));
        let fates = process(&*stage, batch(&["[1]", "[1,2]", "[]", "7"])).await;
        assert_eq!(fates[..3], ["1", "1 + 2", ""]);
        assert!(fates[3].starts_with("reject: evaluate `expr`"), "{}", fates[3]);
    }

    #[tokio::test]
    async fn a_new_key_comes_from_the_new_payload() {
        let stage = stage(&SPEC, json!({"expr": "{id: .[]}", "key": ".id"}));
        let mut batch =
            Batch::from(vec![Record::new(Payload::from_static(r#"["a",7,null]"#)).with_key("old")]);
        stage.process(&mut batch).await.unwrap();
        let Fate::Replaced(records) = batch.slots()[0].fate() else { panic!("{batch:?}") };
        let keys: Vec<_> = records.iter().map(|record| record.key.as_ref().map(Key::as_str)).collect();
        assert_eq!(keys, [Some("a"), Some("7"), None]);
    }

    #[tokio::test]
    async fn a_record_that_fails_stays_as_it_was() {
        let stage = stage(&SPEC, json!({"expr": ".[]", "key": "."}));
        let mut batch = batch(&[r#"["a",{}]"#]);
        stage.process(&mut batch).await.unwrap();
        assert!(matches!(batch.slots()[0].fate(), Fate::Failed(_)));
        assert_eq!(batch.slots()[0].record().payload.to_json(), r#"["a",{}]"#);
    }

    #[test]
    fn both_expressions_are_checked_at_once() {
        let built = build(&SPEC, json!({"expr": "(", "key": "nope"}), &Services::default());
        let keys: Vec<_> = built.err().unwrap().into_iter().map(|problem| problem.key).collect();
        assert_eq!(keys, ["expr", "key"]);
    }
}
