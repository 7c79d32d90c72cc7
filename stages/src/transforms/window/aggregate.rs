//! What is known of the records of a window, as a few numbers.

use courant_pipeline::spec::Problem;
use courant_pipeline::{Record, StageError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::jq::{Expr, Scalar};

/// One number of a window, over the records in it. Values that are missing or null are left out.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregate {
    /// How many records there are.
    Count,
    /// The sum of a number, in jq. Of whole numbers it is exact.
    Sum(#[schemars(description = "the number, in jq")] String),
    /// The least of a number or text, in jq.
    Min(#[schemars(description = "the number or text, in jq")] String),
    /// The greatest of a number or text, in jq.
    Max(#[schemars(description = "the number or text, in jq")] String),
    /// How many different values there are, in jq. Exact: every value is kept on disk until its window ends.
    Distinct(#[schemars(description = "the value, in jq")] String),
}

/// An aggregate that is ready to work.
pub(super) struct Measure {
    kind: Kind,
    /// None for counting.
    of: Option<Expr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Count,
    Sum,
    Min,
    Max,
    Distinct,
}

impl Measure {
    pub(super) fn new(name: &str, aggregate: &Aggregate) -> Result<Self, Vec<Problem>> {
        let (kind, code, key) = match aggregate {
            Aggregate::Count => return Ok(Self { kind: Kind::Count, of: None }),
            Aggregate::Sum(code) => (Kind::Sum, code, "sum"),
            Aggregate::Min(code) => (Kind::Min, code, "min"),
            Aggregate::Max(code) => (Kind::Max, code, "max"),
            Aggregate::Distinct(code) => (Kind::Distinct, code, "distinct"),
        };
        Ok(Self { kind, of: Some(Expr::on_record(format!("aggregates.{name}.{key}"), code)?) })
    }

    /// What the record adds.
    pub(super) fn of(&self, name: &str, record: &mut Record) -> Result<Sample, StageError> {
        let Some(of) = &self.of else { return Ok(Sample::Record) };
        let Some(json) = of.first(record)?.filter(|json| !json.is_null()) else { return Ok(Sample::Nothing) };
        let refused = |reason| Err(StageError::reject(format!("measure `{name}`"), reason));
        match (self.kind, json.scalar()) {
            (Kind::Distinct, _) => Ok(Sample::Member(json.text().to_vec())),
            (_, Scalar::Int(number)) => Ok(Sample::Value(Single::Int(number.into()))),
            (_, Scalar::Float(number)) if number.is_finite() => Ok(Sample::Value(Single::Float(number))),
            (Kind::Min | Kind::Max, Scalar::Text(text)) => Ok(Sample::Value(Single::Text(text.into_owned()))),
            (Kind::Sum, _) => refused("the value is not a number"),
            _ => refused("the value is neither a number nor text"),
        }
    }

    /// Of no record.
    pub(super) fn start(&self) -> Total {
        match self.kind {
            Kind::Count | Kind::Distinct => Total::Count(0),
            Kind::Sum => Total::Sum(Single::Int(0)),
            Kind::Min => Total::Min(None),
            Kind::Max => Total::Max(None),
        }
    }
}

/// What a record adds to an aggregate.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Sample {
    Nothing,
    /// Itself.
    Record,
    Value(Single),
    /// A value as JSON, which counts if it was not there before.
    Member(Vec<u8>),
}

/// A single value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Single {
    Int(i128),
    Float(f64),
    Text(String),
}

impl Single {
    fn as_f64(&self) -> f64 {
        match self {
            Self::Int(number) => *number as f64,
            Self::Float(number) => *number,
            Self::Text(_) => f64::NAN,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Int(one), Self::Int(two)) => Self::Int(one.saturating_add(*two)),
            (one, two) => Self::Float(one.as_f64() + two.as_f64()),
        }
    }

    /// Numbers before text.
    fn is_less(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(one), Self::Int(two)) => one < two,
            (Self::Text(one), Self::Text(two)) => one < two,
            (Self::Text(_), _) => false,
            (_, Self::Text(_)) => true,
            (one, two) => one.as_f64() < two.as_f64(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Int(number) => {
                i64::try_from(*number).map_or_else(|_| Value::from(*number as f64), Value::from)
            }
            Self::Float(number) => Value::from(*number),
            Self::Text(text) => Value::from(text.as_str()),
        }
    }
}

/// An aggregate of the records so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Total {
    Count(u64),
    Sum(Single),
    Min(Option<Single>),
    Max(Option<Single>),
}

impl Total {
    /// Adds a record's sample; one that is a member only if it is new.
    pub(super) fn add(&mut self, sample: &Sample) {
        match (self, sample) {
            (Self::Count(count), Sample::Record | Sample::Member(_)) => *count += 1,
            (Self::Sum(sum), Sample::Value(value)) => *sum = sum.plus(value),
            (Self::Min(least), Sample::Value(value))
                if least.as_ref().is_none_or(|least| value.is_less(least)) =>
            {
                *least = Some(value.clone());
            }
            (Self::Max(greatest), Sample::Value(value))
                if greatest.as_ref().is_none_or(|greatest| greatest.is_less(value)) =>
            {
                *greatest = Some(value.clone());
            }
            _ => {}
        }
    }

    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Count(count) => Value::from(*count),
            Self::Sum(sum) => sum.to_json(),
            Self::Min(value) | Self::Max(value) => value.as_ref().map_or(Value::Null, Single::to_json),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn total(aggregate: &Aggregate, payloads: &[&str]) -> Result<Value, String> {
        let measure = Measure::new("x", aggregate).unwrap();
        let mut total = measure.start();
        for payload in payloads {
            let sample = measure.of("x", &mut Record::new((*payload).to_owned()));
            total.add(&sample.map_err(|error| error.to_string())?);
        }
        Ok(total.to_json())
    }

    #[test]
    fn numbers_are_exact_while_they_are_whole() {
        let sum = Aggregate::Sum(".n".into());
        let large = r#"{"n":9007199254740993}"#;
        assert_eq!(total(&sum, &[large, r#"{"n":-1}"#]), Ok(json!(9_007_199_254_740_992_i64)));
        assert_eq!(total(&sum, &[r#"{"n":1}"#, r#"{"n":0.5}"#, "{}", r#"{"n":null}"#]), Ok(json!(1.5)));
        assert_eq!(total(&sum, &[]), Ok(json!(0)));
        assert!(
            total(&sum, &[r#"{"n":"1"}"#]).unwrap_err().contains("measure `x`: the value is not a number")
        );
    }

    #[test]
    fn least_and_greatest_of_numbers_and_text() {
        let payloads = [r#"{"n":3}"#, r#"{"n":-2.5}"#, r#"{"n":7}"#, "{}"];
        assert_eq!(total(&Aggregate::Min(".n".into()), &payloads), Ok(json!(-2.5)));
        assert_eq!(total(&Aggregate::Max(".n".into()), &payloads), Ok(json!(7)));
        assert_eq!(
            total(&Aggregate::Max(".n".into()), &[r#"{"n":"a"}"#, r#"{"n":"b"}"#, r#"{"n":1}"#]),
            Ok(json!("b"))
        );
        assert_eq!(total(&Aggregate::Min(".n".into()), &["{}"]), Ok(json!(null)));
        assert!(total(&Aggregate::Min(".n".into()), &[r#"{"n":[]}"#]).is_err());
        assert_eq!(total(&Aggregate::Count, &["{}", "{}"]), Ok(json!(2)));
    }
}
