//! Expressions in the jq language: the one place that talks to jaq.
//!
//! An [`Expr`] is compiled when the stage is built, so a mistake in it is found when the file is checked, with
//! its place. A payload is parsed once: the decoded [`Json`] goes back into the record, and the next expression
//! finds it there.
//!
//! Payloads come from strangers, so they are strict JSON of bounded depth. Expressions come from whoever may
//! edit `pipelines.toml`; they still see neither environment nor files and cannot end the process, and one
//! record yields at most [`MAX_OUTPUTS`] results. An expression that runs for ever without a result, such as
//! `until(false; .)`, does hang its lane: jaq has no fuel to cut it short.

mod compile;
mod json;

use courant_pipeline::spec::Problem;
use courant_pipeline::{Key, Payload, Record, StageError};
use jaq_core::data::JustLut;
use jaq_core::{Ctx, ValT as _, Vars};
use jaq_json::Val;
use std::sync::Arc;

pub use json::{Json, Scalar};

/// Results one expression may give for one record: far more than a sane fan-out, little enough to hold.
pub const MAX_OUTPUTS: usize = 10_000;

/// Error texts quote the value at fault; more of it than this helps nobody and fills the logs.
const MAX_ERROR_TEXT: usize = 300;

/// What expressions on records can refer to beside the payload.
const RECORD_VARIABLES: [&str; 2] = ["$key", "$headers"];

type Data = JustLut<Val>;

/// A compiled expression.
pub struct Expr {
    /// The parameter it was given as, for messages.
    name: String,
    filter: jaq_core::Filter<Data>,
    /// The variables that are bound, in order.
    variables: Vec<&'static str>,
}

impl Expr {
    /// An expression on a record: `.` is its payload, `$key` its key or null, `$headers` its headers.
    pub fn on_record(name: impl Into<String>, code: &str) -> Result<Self, Vec<Problem>> {
        // Binding costs an allocation a record, so only what the text mentions is bound.
        Self::compile(name.into(), code, RECORD_VARIABLES.into_iter().filter(|name| code.contains(name)))
    }

    /// An expression on nothing but variables, each named with its `$`; `.` is null.
    pub fn on_variables(
        name: impl Into<String>,
        code: &str,
        variables: &[&'static str],
    ) -> Result<Self, Vec<Problem>> {
        Self::compile(name.into(), code, variables.iter().copied())
    }

    fn compile(
        name: String,
        code: &str,
        variables: impl Iterator<Item = &'static str>,
    ) -> Result<Self, Vec<Problem>> {
        let variables: Vec<_> = variables.collect();
        let filter = compile::compile(&name, code, &variables)?;
        Ok(Self { name, filter, variables })
    }

    /// The first result, if there is any.
    pub fn first(&self, record: &mut Record) -> Result<Option<Json>, StageError> {
        let input = decode(record)?;
        self.run(input.value(), self.record_variables(record)).next().transpose()
    }

    /// The first result on this payload instead of the record's.
    pub fn first_of(&self, payload: &Json, record: &Record) -> Result<Option<Json>, StageError> {
        self.run(payload.value(), self.record_variables(record)).next().transpose()
    }

    /// Whether the first result is neither false nor null; no result counts as false.
    pub fn is_true(&self, record: &mut Record) -> Result<bool, StageError> {
        Ok(self.first(record)?.is_some_and(|json| json.value().as_bool()))
    }

    /// Every result, at most [`MAX_OUTPUTS`].
    pub fn all(&self, record: &mut Record) -> Result<Vec<Json>, StageError> {
        let input = decode(record)?;
        let mut outputs = Vec::new();
        for output in self.run(input.value(), self.record_variables(record)) {
            if outputs.len() == MAX_OUTPUTS {
                return Err(self.failed(format!("it gives more than {MAX_OUTPUTS} results for one record")));
            }
            outputs.push(output?);
        }
        Ok(outputs)
    }

    /// The first result given the variables' values, in the order they were declared in.
    pub fn first_with(&self, variables: Vec<Json>) -> Result<Option<Json>, StageError> {
        self.run(&Val::Null, variables.into_iter().map(Json::into_value).collect()).next().transpose()
    }

    fn run(&self, input: &Val, variables: Vec<Val>) -> impl Iterator<Item = Result<Json, StageError>> {
        let context = Ctx::<Data>::new(&self.filter.lut, Vars::new(variables));
        self.filter.id.run((context, input.clone())).map(|output| match output {
            Ok(value) => Ok(Json::from(value)),
            Err(exception) => Err(match exception.get_err() {
                Ok(error) => self.failed(error.to_string()),
                Err(_control_flow) => self.failed("it ended outside of its control flow".to_owned()),
            }),
        })
    }

    fn record_variables(&self, record: &Record) -> Vec<Val> {
        let variable = |name: &&str| match *name {
            "$key" => record.key.as_ref().map_or(Val::Null, |key| text(key.as_str())),
            _ => Val::obj(record.headers.iter().map(|(name, value)| (text(name), text(value))).collect()),
        };
        self.variables.iter().map(variable).collect()
    }

    fn failed(&self, mut message: String) -> StageError {
        if let Some((end, _)) = message.char_indices().nth(MAX_ERROR_TEXT) {
            message.truncate(end);
            message.push('…');
        }
        StageError::reject(format!("evaluate `{}`", self.name), message)
    }
}

/// The payload as JSON. One that was text is kept in its decoded form; values of other types stay what they
/// are, because the stages that made them will want them back.
pub fn decode(record: &mut Record) -> Result<Arc<Json>, StageError> {
    let failed = |error| StageError::reject("read the payload as JSON", error);
    match &record.payload {
        Payload::Text(text) => {
            let json = Arc::new(Json::parse(text.clone()).map_err(failed)?);
            record.payload = Payload::Value(Arc::clone(&json) as _);
            Ok(json)
        }
        Payload::Value(_) => record.payload.decode().map_err(failed),
    }
}

/// The record key that a `key` expression's result stands for: none for null or no result.
pub fn key_from(result: Option<&Json>) -> Result<Option<Key>, StageError> {
    match result.map(Json::value) {
        None | Some(Val::Null) => Ok(None),
        Some(Val::TStr(text)) => Ok(Some(Key::new(String::from_utf8_lossy(text)))),
        Some(value @ (Val::Num(_) | Val::Bool(_))) => Ok(Some(Key::new(value.to_string()))),
        Some(_) => Err(StageError::reject("evaluate `key`", "a key is text, a number or a truth value")),
    }
}

fn text(text: &str) -> Val {
    Val::utf8_str(bytes::Bytes::copy_from_slice(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use courant_pipeline::Class;

    fn record(text: &'static str) -> Record {
        Record::new(Payload::from_static(text)).with_key("chat_1")
    }

    fn all(code: &str, input: &'static str) -> Vec<String> {
        let outputs = Expr::on_record("expr", code).unwrap().all(&mut record(input)).unwrap();
        outputs.iter().map(|json| String::from_utf8(json.text().to_vec()).unwrap()).collect()
    }

    #[test]
    fn results_are_json() {
        assert_eq!(all(".a[] | {n: .}", r#"{"a":[1,2]}"#), [r#"{"n":1}"#, r#"{"n":2}"#]);
        assert_eq!(all("$key, $headers", "null"), [r#""chat_1""#, "{}"]);
        assert_eq!(all(".s | fromjson | .x", r#"{"s":"{\"x\":1.5}"}"#), ["1.5"]);
        assert_eq!(all("[limit(2; .[])], (map(tostring) | join(\"-\"))", "[1,2,3]"), ["[1,2]", "\"1-2-3\""]);
    }

    #[test]
    fn a_payload_is_parsed_once() {
        let mut record = record(r#"{"a": 1}"#);
        let expr = Expr::on_record("expr", ".a").unwrap();
        expr.first(&mut record).unwrap();
        let decoded = record.payload.decode::<Json>().unwrap();
        assert!(Arc::ptr_eq(&decoded, &decode(&mut record).unwrap()));
        assert_eq!(record.payload.to_json(), r#"{"a": 1}"#, "text that is only looked at stays as it was");
    }

    #[test]
    fn errors_at_run_time_reject_the_record_and_stay_short() {
        let expr = Expr::on_record("expr", ".a + 1").unwrap();
        let long = format!(r#"{{"a":["{}"]}}"#, "x".repeat(10_000));
        let error = expr.first(&mut Record::new(long)).unwrap_err();
        assert_eq!(error.class, Class::Reject);
        assert!(error.to_string().starts_with("evaluate `expr`: cannot calculate"), "{error}");
        assert!(error.to_string().len() < 400);
        let error = expr.first(&mut record("{nope")).unwrap_err();
        assert!(error.to_string().starts_with("read the payload as JSON: "), "{error}");
    }

    #[test]
    fn an_endless_stream_of_results_is_cut() {
        let error = Expr::on_record("expr", "repeat(1)").unwrap().all(&mut record("1")).unwrap_err();
        assert!(error.to_string().contains("more than 10000 results"), "{error}");
        assert_eq!(all("limit(1; repeat(1))", "1"), ["1"]);
    }

    #[test]
    fn text_inside_a_payload_is_parsed_within_the_same_limits() {
        let expr = Expr::on_record("expr", ".s | fromjson").unwrap();
        let hostile = format!(r#"{{"s":"{}"}}"#, "[".repeat(1_000_000));
        let error = expr.first(&mut Record::new(hostile)).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }

    #[test]
    fn variables_are_given_in_order() {
        let expr = Expr::on_variables("payload", "{n: $n, key: $key}", &["$n", "$key"]).unwrap();
        let json = expr.first_with(vec![Json::from(7), Json::from("k")]).unwrap().unwrap();
        assert_eq!(json.text(), r#"{"n":7,"key":"k"}"#);
    }

    #[test]
    fn keys_are_text_and_nothing_means_none() {
        let key = |code: &str| {
            let result = Expr::on_record("key", code).unwrap().first(&mut record("{}")).unwrap();
            key_from(result.as_ref()).map(|key| key.map(|key| key.to_string()))
        };
        assert_eq!(key("\"a\"").unwrap().as_deref(), Some("a"));
        assert_eq!(key("12").unwrap().as_deref(), Some("12"));
        assert_eq!(key(".missing, 1").unwrap(), None);
        assert_eq!(key("empty").unwrap(), None);
        assert!(key("{}").is_err());
    }
}
